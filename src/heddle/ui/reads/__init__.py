"""Answers made for the pages alone, under /_ui/api: internal, they change with the pages."""
