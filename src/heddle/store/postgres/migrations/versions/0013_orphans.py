"""Rows whose project nobody knows are removed."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Let jobs keep the project of a model that is deleted; remove what earlier versions left without one."""
    op.execute('ALTER TABLE train_jobs ADD COLUMN former_project TEXT COLLATE "C"')
    for table, column, above, key in (
        ("annotation_queue_items", "queue_id", "annotation_queues", "id"),
        ("annotation_progress", "item_id", "annotation_queue_items", "id"),
        ("conversation_items", "conversation_id", "conversations", "id"),
        ("table_chunks", "table_number", "tables", "number"),
        ("replay_items", "replay_id", "eval_jobs", "id"),
        ("train_jobs", "model_id", "train_models", "id"),
        ("train_events", "job_id", "train_jobs", "id"),
    ):
        op.execute(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {above})")
