"""Results of evaluations, compared row by row (contract: trace-evals, section 5)."""
