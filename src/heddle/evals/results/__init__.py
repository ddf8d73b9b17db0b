"""Results of evaluations, compared row by row."""
