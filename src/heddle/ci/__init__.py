"""Holds a change of a model or a prompt back when an evaluation got worse: a client of the API, for any CI."""
