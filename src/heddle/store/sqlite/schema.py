"""The tables of calls in SQLite: heads, bodies, usage, refs."""

from collections.abc import Sequence

from heddle.store.sqlite.call_bodies import COLUMN
from heddle.wire.calls import BODY_IN, BODY_OUT, COLUMNS, CallColumn, ColumnType


def stored_name(column: CallColumn) -> str:
    """The name of a column in its table; texts that repeat are numbers of `names` there."""
    return "op" if column.name == "op_name" else column.name


def definition(column: CallColumn) -> str:
    """Name and type of a column; of the head of a call whose start has not come only its id is known."""
    is_number = column.is_repeated or column.type in (ColumnType.INTEGER, ColumnType.INSTANT)
    is_filled = column.is_required and (column.is_body or column.name == "id")
    return f"{stored_name(column)} {'INTEGER' if is_number else 'TEXT'}{' NOT NULL' if is_filled else ''}"


def _body(names: Sequence[str]) -> str:
    return ", ".join(definition(column) for column in COLUMNS if column.name in names)


HEAD = ("rid", "project", *(stored_name(column) for column in COLUMNS if not column.is_body))
HEAD = (*HEAD, "size_in", "size_out", "spilled", "deleted_at")
"""The columns of a head in the order of its checksum; what is new has no last one."""
CHECKED = {"calls": HEAD, "body_in": BODY_IN, "body_out": BODY_OUT}
"""The columns of which each part of a call has its checksum."""
_HEAD_COLUMNS = ", ".join(definition(column) for column in COLUMNS if not column.is_body)
CALL_TABLES = (
    "CREATE TABLE names (k INTEGER PRIMARY KEY, v TEXT NOT NULL UNIQUE, label TEXT NOT NULL)",
    f"""CREATE TABLE calls (rid INTEGER PRIMARY KEY, project INTEGER NOT NULL, {_HEAD_COLUMNS}, deleted_at INTEGER,
        size_in INTEGER NOT NULL DEFAULT 0, size_out INTEGER NOT NULL DEFAULT 0, spilled INTEGER NOT NULL DEFAULT 0,
        {COLUMN} INTEGER)""",
    "CREATE UNIQUE INDEX calls_id ON calls (id, project)",
    "CREATE INDEX calls_time ON calls (project, started_at, deleted_at)",
    "CREATE INDEX calls_roots ON calls (project, started_at, deleted_at) WHERE parent_id IS NULL",
    "CREATE INDEX calls_op ON calls (project, op, started_at, deleted_at)",
    "CREATE INDEX calls_trace ON calls (trace_id, project)",
    "CREATE INDEX calls_parent ON calls (parent_id, project) WHERE parent_id IS NOT NULL",
    "CREATE INDEX calls_thread ON calls (project, thread_id, started_at) WHERE thread_id IS NOT NULL",
    f"CREATE TABLE body_in (rid INTEGER PRIMARY KEY, {_body(BODY_IN)}, {COLUMN} INTEGER)",
    f"CREATE TABLE body_out (rid INTEGER PRIMARY KEY, {_body(BODY_OUT)}, {COLUMN} INTEGER)",
    """CREATE TABLE usage (
        project INTEGER NOT NULL, started_at INTEGER NOT NULL, rid INTEGER NOT NULL, model INTEGER NOT NULL,
        requests INTEGER NOT NULL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL, total INTEGER,
        cache_read INTEGER NOT NULL, cache_creation INTEGER NOT NULL,
        PRIMARY KEY (project, started_at, rid, model)) WITHOUT ROWID""",
    """CREATE TABLE call_refs (
        project INTEGER NOT NULL, ref INTEGER NOT NULL, side INTEGER NOT NULL, rid INTEGER NOT NULL,
        PRIMARY KEY (project, ref, side, rid)) WITHOUT ROWID""",
    "CREATE INDEX call_refs_rid ON call_refs (rid)",
    """CREATE TABLE call_files (
        rid INTEGER NOT NULL, field TEXT NOT NULL, blob TEXT NOT NULL, PRIMARY KEY (rid, field)) WITHOUT ROWID""",
    "CREATE INDEX call_files_blob ON call_files (blob)",
    """CREATE TABLE path_indexes (
        name TEXT PRIMARY KEY, body TEXT NOT NULL, expression TEXT NOT NULL UNIQUE, slow_uses INTEGER NOT NULL,
        last_used INTEGER NOT NULL, built_at INTEGER)""",
)
ENDINGS_TABLE = """CREATE TABLE IF NOT EXISTS call_endings (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, project INTEGER NOT NULL, call TEXT NOT NULL,
    is_taken INTEGER NOT NULL DEFAULT 0)"""
"""The outbox of calls that ended, for monitors."""
ERRORS_INDEX = """CREATE INDEX IF NOT EXISTS calls_errors
    ON calls (project, error_group, started_at, op, user, trace_id, id, parent_id, deleted_at)
    WHERE error_group IS NOT NULL AND deleted_at IS NULL"""
"""What errors are counted by; failed calls alone are in it."""
