"""Every control table."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables with their indexes, and the functions that queries use."""
    for name in ("0001_control_tables.sql", "0001_functions.sql"):
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})
