"""Stored responses, and conversations."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the tables with their indexes."""
    op.execute("""
        CREATE TABLE responses (
            id TEXT COLLATE "C" NOT NULL,
            owner TEXT COLLATE "C" NOT NULL,
            previous_id TEXT COLLATE "C",
            thread_id TEXT COLLATE "C" NOT NULL,
            status TEXT COLLATE "C" NOT NULL,
            body TEXT COLLATE "C" NOT NULL,
            input TEXT COLLATE "C" NOT NULL,
            created_at BIGINT NOT NULL,
            cancel_asked BIGINT NOT NULL,
            lease_owner TEXT COLLATE "C",
            lease_until BIGINT,
            PRIMARY KEY (id)
        )
    """)
    op.execute("CREATE INDEX responses_created ON responses (created_at)")
    op.execute("CREATE INDEX responses_status ON responses (status)")
    op.execute("CREATE INDEX responses_thread ON responses (thread_id, created_at)")
    op.execute("""
        CREATE TABLE conversations (
            id TEXT COLLATE "C" NOT NULL,
            owner TEXT COLLATE "C" NOT NULL,
            metadata TEXT COLLATE "C" NOT NULL,
            created_at BIGINT NOT NULL,
            changed_at BIGINT NOT NULL,
            PRIMARY KEY (id)
        )
    """)
    op.execute("CREATE INDEX conversations_changed ON conversations (changed_at)")
    op.execute("""
        CREATE TABLE conversation_items (
            conversation_id TEXT COLLATE "C" NOT NULL,
            place BIGINT NOT NULL,
            item_id TEXT COLLATE "C" NOT NULL,
            item TEXT COLLATE "C" NOT NULL,
            PRIMARY KEY (conversation_id, place)
        )
    """)
