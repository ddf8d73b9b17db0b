"""The small, mutable tables, written once in SQLAlchemy Core for SQLite and PostgreSQL."""
