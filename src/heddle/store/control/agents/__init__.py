"""Spans of agents and models: an index row each, and what is read, grouped and summed of them."""
