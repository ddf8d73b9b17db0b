"""Calls: written in halves or whole, read back as streams, counted, summed and deleted."""
