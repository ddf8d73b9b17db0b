"""Messages of alerts as jobs, each to one target."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns, and name the states as those of other jobs."""
    op.execute("""
        ALTER TABLE alert_deliveries
            ADD COLUMN lease_owner TEXT COLLATE "C",
            ADD COLUMN started_at BIGINT,
            ADD COLUMN cancel_asked BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN target TEXT COLLATE "C" DEFAULT '' NOT NULL
    """)
    op.execute("UPDATE alert_deliveries SET state = 'queued', lease_until = NULL WHERE state = 'pending'")
    op.execute("UPDATE alert_deliveries SET state = 'succeeded' WHERE state = 'delivered'")
