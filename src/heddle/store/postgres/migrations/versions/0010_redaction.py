"""What is taken out of the content of a project."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column."""
    op.execute('ALTER TABLE projects ADD COLUMN redaction TEXT COLLATE "C"')
