"""The tables on ClickHouse, as numbered steps; one server, or replicated and distributed over a cluster.

A row of `calls` is a whole call; writing it again with a higher version replaces it. Readers say FINAL.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heddle.wire import refs
from heddle.wire.calls import COLUMNS, KIND_PATHS, KIND_PATTERNS, KIND_WORDS, PLAIN_KIND, CallColumn, ColumnType

CALLS = "calls"
CALL_KEYS = "call_keys"
TABLE_ROWS = "table_rows"
STEPS = "schema_steps"

_TEXT = "CODEC(ZSTD(1))"


def call_type(column: CallColumn) -> str:
    """The type of a column of calls; null is what a start or an end may lack, and what comes with the end."""
    if column.name == "status":
        return "UInt8"
    kind = "Int64" if column.type in (ColumnType.INTEGER, ColumnType.INSTANT) else "String"
    kind = kind if column.is_required and not column.of_end else f"Nullable({kind})"
    kind = f"LowCardinality({kind})" if column.is_repeated else kind
    return f"{kind} {_TEXT}" if column.is_body else kind


_CALLS = (
    ("project", "LowCardinality(String)"),
    *((column.name, call_type(column)) for column in COLUMNS),
    ("deleted_at", "Int64"),
    ("size_in", "Int64"),
    ("size_out", "Int64"),
    ("files", "Map(String, String)"),
    ("input_refs", "Array(String)"),
    ("output_refs", "Array(String)"),
    ("usage_model", "Array(LowCardinality(String))"),
    ("usage_requests", "Array(Int64)"),
    ("usage_prompt", "Array(Int64)"),
    ("usage_completion", "Array(Int64)"),
    ("usage_total", "Array(Nullable(Int64))"),
    ("usage_cache_read", "Array(Int64)"),
    ("usage_cache_creation", "Array(Int64)"),
    ("inserted_at", "Int64"),
    ("version", "UInt64"),
)
"""The columns of a call; instants are microseconds. `deleted_at` is 0 for a live call, below for a place it has left.

`files` maps a field whose text was shortened to the blob with the whole. `inserted_at` is when the first half was
written, and orders what was not sorted. `version` grows with what is known: running, ended, deleted, then by time.
The `usage_` columns have one element for each model that the end reported.
"""
_KEYS = (("project", "LowCardinality(String)"), ("id", "String"), ("started_at", "Int64"), ("version", "UInt64"))
_ROWS = (("project", "LowCardinality(String)"), ("digest", "String"), ("val", f"String {_TEXT}"))
_STEPS = (("number", "UInt32"), ("title", "String"))
TYPES = {
    table: {name: kind.removesuffix(f" {_TEXT}") for name, kind in columns}
    for table, columns in ((CALLS, _CALLS), (CALL_KEYS, _KEYS), (TABLE_ROWS, _ROWS), (STEPS, _STEPS))
}
"""The types of the columns by table and name, without their compression."""
_INDEXES = (
    "INDEX by_id id TYPE bloom_filter(0.01) GRANULARITY 1",
    "INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1",
    "INDEX by_parent parent_id TYPE bloom_filter(0.01) GRANULARITY 1",
    "INDEX by_thread thread_id TYPE bloom_filter(0.01) GRANULARITY 1",
)
# Hostile dates must not make hostile numbers of partitions: everything before 1970 is one, and after 2106.
_MONTH = "toYYYYMM(toDateTime(least(greatest(intDiv(started_at, 1000000), 0), 4294967295), 'UTC'))"


@dataclass(frozen=True, slots=True)
class Place:
    """Where tables are made: a database, the cluster where there is one, and whether texts can have an index there."""

    database: str
    cluster: str | None = None
    has_text_index: bool = False

    @property
    def on_cluster(self) -> str:
        """What DDL says to reach every node."""
        return f" ON CLUSTER {quoted(self.cluster)}" if self.cluster else ""

    def table(self, name: str, body: str, engine: str, arguments: str, shard_by: str, clauses: str) -> list[str]:
        """The statements that make a table: plain, or a replicated one on each node and a distributed one over them."""
        if self.cluster is None:
            return [f"CREATE TABLE IF NOT EXISTS {name} ({body}) ENGINE = {engine}({arguments}) {clauses}"]
        local = f"{name}_local"
        path = f"'/clickhouse/tables/{{shard}}/{self.database}/{local}', '{{replica}}'"
        replicated = f"Replicated{engine}({', '.join(filter(None, (path, arguments)))})"
        spread = f"Distributed({quoted(self.cluster)}, {quoted(self.database)}, {local}, {shard_by})"
        return [
            f"CREATE TABLE IF NOT EXISTS {local}{self.on_cluster} ({body}) ENGINE = {replicated} {clauses}",
            f"CREATE TABLE IF NOT EXISTS {name}{self.on_cluster} AS {local} ENGINE = {spread}",
        ]

    def local(self, name: str) -> str:
        """The table that holds the rows on each node."""
        return name if self.cluster is None else f"{name}_local"


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def listed(values: Iterable[str | int | float | tuple[str | int, ...]]) -> str:
    """Texts, numbers or tuples of them as a list for IN; long lists fit here, but not among bound parameters."""
    return "(" + ",".join(map(_literal, values)) + ")"


def _literal(value: str | int | float | tuple[str | int, ...]) -> str:
    if isinstance(value, tuple):
        return listed(value)
    return quoted(value) if isinstance(value, str) else str(value)


def _label() -> str:
    """The name that people read of an op, see `refs.operation_name`."""

    def name(kind: str) -> str:
        start = f"position(op_name, '{kind}')"
        return f"{start} > 0, decodeURLComponent(extract(substring(op_name, {start} + {len(kind)}), '^[^/:]*'))"

    is_ref = f"startsWith(op_name, '{refs.INTERNAL}') OR startsWith(op_name, '{refs.EXTERNAL}')"
    return f"multiIf(NOT ({is_ref}), op_name, {name('/op/')}, {name('/object/')}, op_name)"


OP_LABEL = _label()


def _body(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def make_calls(place: Place) -> list[str]:
    """The statements that make the tables of calls."""
    body = ", ".join([_body(_CALLS), *_INDEXES])
    clauses = f"PARTITION BY {_MONTH} ORDER BY (project, started_at, id) SETTINGS index_granularity = 1024"
    keyed = "ORDER BY (project, id, started_at) SETTINGS index_granularity = 256"
    view = (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {CALL_KEYS}_of_calls{place.on_cluster} TO {place.local(CALL_KEYS)} "
        f"AS SELECT project, id, started_at, version FROM {place.local(CALLS)}"
    )
    return [
        *place.table(CALLS, body, "ReplacingMergeTree", "version", "cityHash64(trace_id)", clauses),
        *place.table(CALL_KEYS, _body(_KEYS), "ReplacingMergeTree", "version", "cityHash64(id)", keyed),
        view,
    ]


def make_table_rows(place: Place) -> list[str]:
    """The statements that make the table of rows of tables."""
    clauses = "ORDER BY (project, digest) SETTINGS index_granularity = 1024"
    return place.table(TABLE_ROWS, _body(_ROWS), "ReplacingMergeTree", "", "cityHash64(digest)", clauses)


def add_kind(place: Place) -> list[str]:
    """The statements that give calls their kind; those that were written before get what `kind_of` says."""
    words = f"[{', '.join(map(quoted, KIND_WORDS))}], [{', '.join(map(quoted, KIND_WORDS.values()))}]"
    paths = (", ".join(["attributes", *map(quoted, path)]) for path in KIND_PATHS)
    said = [f"nullIf(transform(lower(JSONExtractString({path})), {words}, ''), '')" for path in paths]
    tests = (f"match({OP_LABEL}, {quoted(pattern)}), {quoted(kind)}" for pattern, kind in KIND_PATTERNS)
    kind = f"coalesce({', '.join(said)}, multiIf({', '.join(tests)}, {quoted(PLAIN_KIND)}))"
    return _add_column(place, f"kind {TYPES[CALLS]['kind']} DEFAULT {kind}")


def add_error_group(place: Place) -> list[str]:
    """The statements that give failed calls the group of their error."""
    return _add_column(place, f"error_group {TYPES[CALLS]['error_group']}")


def _add_column(place: Place, column: str) -> list[str]:
    added = f"ADD COLUMN IF NOT EXISTS {column}"
    tables = dict.fromkeys((place.local(CALLS), CALLS))
    return [f"ALTER TABLE {table}{place.on_cluster} {added}" for table in tables]


def steps_table(place: Place) -> list[str]:
    """The statements that make the table of the steps that were taken."""
    return place.table(STEPS, _body(_STEPS), "ReplacingMergeTree", "", "number", "ORDER BY number")
