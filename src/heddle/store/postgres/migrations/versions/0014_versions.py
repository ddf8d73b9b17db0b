"""Indexes of the versions and aliases of objects."""

from alembic import op

revision = "0014"
down_revision = "0013"

_INDEXES = {
    "object_versions_order": "object_versions (project, object_id, version_index)",
    "object_versions_latest": "object_versions (project, object_id, is_latest) WHERE is_latest = 1",
    "object_aliases_digest": "object_aliases (project, object_id, digest)",
}


def upgrade() -> None:
    """Find one version of an object without reading all of them."""
    for name, columns in _INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")
