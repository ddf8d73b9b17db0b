"""Queries of the wire as conditions of SQL: one compiler, a dialect for each database."""
