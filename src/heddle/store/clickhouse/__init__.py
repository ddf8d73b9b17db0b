"""Calls and rows of tables on ClickHouse."""
