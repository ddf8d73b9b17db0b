"""Alerts: a webhook when a figure of calls crosses a threshold."""
