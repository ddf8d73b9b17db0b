"""The control tables on PostgreSQL."""
