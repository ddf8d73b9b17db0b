"""Feedback: what people and scorers say about calls."""
