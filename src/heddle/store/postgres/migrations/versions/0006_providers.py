"""Providers that were entered."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the table."""
    op.execute("""
        CREATE TABLE providers (
            name TEXT COLLATE "C" NOT NULL,
            base_url TEXT COLLATE "C" NOT NULL,
            secret TEXT COLLATE "C" NOT NULL,
            hint TEXT COLLATE "C" NOT NULL,
            updated_at BIGINT NOT NULL,
            updated_by TEXT COLLATE "C" NOT NULL,
            PRIMARY KEY (name)
        )
    """)
