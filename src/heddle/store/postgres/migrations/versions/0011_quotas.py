"""Quotas of projects and keys."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column, and the table of what was used."""
    op.execute('ALTER TABLE inference_limits ADD COLUMN quotas TEXT COLLATE "C"')
    op.execute("""
        CREATE TABLE quota_counts (
            kind TEXT COLLATE "C" NOT NULL,
            name TEXT COLLATE "C" NOT NULL,
            quota TEXT COLLATE "C" NOT NULL,
            begins_at BIGINT NOT NULL,
            ends_at BIGINT NOT NULL,
            used BIGINT NOT NULL,
            PRIMARY KEY (kind, name, quota, begins_at)
        )
    """)
    op.execute("CREATE INDEX ix_quota_counts_ends_at ON quota_counts (ends_at)")
