"""What was said to a model and what it answered, whichever library wrote it down: one form for all of them."""
