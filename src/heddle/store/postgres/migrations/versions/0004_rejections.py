"""What exports held that was not stored."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.execute("""
        CREATE TABLE rejections (
            project TEXT COLLATE "C" NOT NULL,
            signal TEXT COLLATE "C" NOT NULL,
            cause TEXT COLLATE "C" NOT NULL,
            count BIGINT NOT NULL,
            last_at BIGINT NOT NULL,
            message TEXT COLLATE "C" NOT NULL,
            PRIMARY KEY (project, signal, cause)
        )
    """)
