"""Engines: token ids in, token events out. Nothing outside this folder knows which one runs."""
