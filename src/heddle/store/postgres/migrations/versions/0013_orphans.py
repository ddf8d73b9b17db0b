"""Rows whose project nobody knows are removed."""

from alembic import op

from heddle.store.control.erasure import REMOVE_ORPHANS

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Let jobs keep the project of a model that is deleted; remove what earlier versions left without one."""
    op.execute('ALTER TABLE train_jobs ADD COLUMN former_project TEXT COLLATE "C"')
    for statement in REMOVE_ORPHANS:
        op.execute(statement)
