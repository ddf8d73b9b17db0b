"""Monitors: stored rules by which new calls are scored as they end."""
