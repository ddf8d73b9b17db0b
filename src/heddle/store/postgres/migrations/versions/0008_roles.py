"""Roles of keys, their ends, and where requests came from."""

import sqlalchemy as sa
from alembic import op

from heddle.store.control.keys import grants_of_scopes

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Keys keep what they could do: whoever could write could delete, too."""
    op.execute("ALTER TABLE audit_log ADD COLUMN address TEXT COLLATE \"C\" DEFAULT '' NOT NULL")
    op.execute('ALTER TABLE train_jobs ADD COLUMN key_id TEXT COLLATE "C"')
    op.execute("""
        ALTER TABLE api_keys
            ADD COLUMN grants TEXT COLLATE "C" DEFAULT '[]' NOT NULL,
            ADD COLUMN last_used_from TEXT COLLATE "C",
            ADD COLUMN expires_at BIGINT,
            ADD COLUMN rotated_at BIGINT,
            ADD COLUMN previous_hash TEXT COLLATE "C",
            ADD COLUMN previous_until BIGINT
    """)
    connection = op.get_bind()
    change = sa.text("UPDATE api_keys SET grants = :grants WHERE id = :id")
    for row in connection.execute(sa.text("SELECT id, scopes, entity, project FROM api_keys")).all():
        grants = grants_of_scopes(row.scopes, row.entity, row.project)
        connection.execute(change, {"id": row.id, "grants": grants})
    op.execute("ALTER TABLE api_keys DROP COLUMN scopes, DROP COLUMN entity, DROP COLUMN project")
    op.execute("ALTER TABLE api_keys ALTER COLUMN grants DROP DEFAULT")
    op.execute("CREATE INDEX ix_api_keys_previous_hash ON api_keys (previous_hash)")
