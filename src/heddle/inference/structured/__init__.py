"""Structured outputs: from the fields of a request to a grammar, checked before it reaches an engine."""
