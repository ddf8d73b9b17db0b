"""How often a job of evaluation was cut off by the end of a server."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE eval_jobs ADD COLUMN crashes BIGINT DEFAULT 0 NOT NULL")
