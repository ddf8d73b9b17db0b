"""One run of an evaluation: rows are answered and scored, each stored once, and summed at the end."""
