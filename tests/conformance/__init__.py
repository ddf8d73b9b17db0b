"""Tests against recorded traffic, the schemas and the reference server."""
