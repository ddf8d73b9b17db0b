"""Synthetic tasks: each is a function from a random source to a question with its answer, or to a whole chat."""
