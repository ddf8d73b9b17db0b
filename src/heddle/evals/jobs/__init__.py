"""Background jobs of evaluation: stored with their caller, run a few at a time, continued after a restart."""
