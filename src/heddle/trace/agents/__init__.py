"""Reads over spans of agents and models: lists, figures, search, chat views."""
