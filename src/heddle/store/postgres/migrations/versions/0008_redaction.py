"""What is taken out of the content of a project."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column."""
    op.execute('ALTER TABLE projects ADD COLUMN redaction TEXT COLLATE "C"')
