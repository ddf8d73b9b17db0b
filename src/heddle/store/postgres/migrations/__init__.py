"""The schema of the control tables on PostgreSQL, as numbered revisions that Alembic runs."""
