"""Annotation queues: calls that wait for people to look at them."""
