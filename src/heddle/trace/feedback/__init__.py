"""Feedback: what people and scorers say about calls."""

from heddle.trace.feedback.routes import router as router
