"""Checksums of agent spans."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE agent_spans ADD COLUMN crc BIGINT")
