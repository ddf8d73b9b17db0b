"""Evaluations: a model answers the rows of a dataset, scorers judge the answers."""
