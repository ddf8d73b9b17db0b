"""What is computed of calls, as SQL that SQLite and ClickHouse understand."""

from heddle.store.query.calls import CallTable
from heddle.store.query.compiler import Kind
from heddle.wire.aggregates import MODEL, OTHERS, CallAggregate, Measure, Split, Value
from heddle.wire.calls import ERROR

USED = (
    Measure("calls"),
    *(Measure(name, "sum", Value(name)) for name in ("requests", "prompt", "completion", "cache_read")),
    *(Measure(name, "sum", Value(name)) for name in ("cache_creation", "tokens")),
    Measure("priced_at", "min", Value("started_at")),
)
"""The measures of a `UsageSum`."""
_CALL_VALUES = {
    "latency_ms": "(c.ended_at - c.started_at) / 1000.0",
    "seconds": "(c.ended_at - c.started_at) / 1000000.0",
    "call_count": "1",
    "error_count": f"(c.status = {ERROR})",
    "trace_id": "c.trace_id",
    "user": "c.user",
}
_USAGE_VALUES = {
    **{name: "{0}" + name for name in ("requests", "prompt", "completion", "cache_read", "cache_creation")},
    "input_tokens": "{0}prompt",
    "output_tokens": "{0}completion",
    "total_tokens": "{0}total",
    "cache_read_input_tokens": "{0}cache_read",
    "cache_creation_input_tokens": "{0}cache_creation",
    "tokens": "coalesce({0}total, {0}prompt + {0}completion)",
}
_FUNCTIONS = {
    "count": "count({0})",
    "count_distinct": "count(DISTINCT {0})",
    "sum": "coalesce(sum({0}), 0)",
    "avg": "avg({0})",
    "min": "min({0})",
    "max": "max({0})",
    "count_true": "coalesce(sum({0} = 1), 0)",
    "count_false": "coalesce(sum({0} = 0), 0)",
}


def paths_of(request: CallAggregate) -> list[str]:
    """The fields of calls that are read beside those of the query."""
    values = [item.value.key for item in request.measures if item.value is not None and item.value.source == "path"]
    return values if request.split is None or request.split.path == MODEL else [*values, request.split.path]


def reads_calls(request: CallAggregate) -> bool:
    """Whether a sum over usage reads something of the calls themselves."""
    keys = {item.value.key for item in request.measures if item.value is not None}
    return bool(paths_of(request) or {*request.group_by} - {MODEL} or keys & _CALL_VALUES.keys())


def value_of(request: CallAggregate, measure: Measure, usage: str, started_at: str, table: CallTable) -> str:
    """The SQL of what a measure is computed of; `usage` is the prefix of its columns."""
    if measure.value is not None and measure.value.source == "path":
        return _number_of(table, measure.value.key)
    key = measure.value.key if measure.value is not None else "*"
    if key == "call":
        return table.call
    if key in ("*", "started_at"):
        return "*" if key == "*" else started_at
    return _CALL_VALUES[key] if request.of == "calls" or key not in _USAGE_VALUES else _USAGE_VALUES[key].format(usage)


def key_of(table: CallTable, split: Split, model: str) -> str:
    """The SQL of the key of a split; `model` is that of the name of a model."""
    key = model
    if split.path == "op_name":
        key = f"coalesce({table.label}, '')"
    elif split.path != MODEL:
        key = _text_of(table, split.path)
    if split.kept is None:
        return key
    bound = table.dialect.bound
    return f"CASE WHEN {key} IN {bound.values(split.kept)} THEN {key} ELSE {bound.value(OTHERS)} END"


def _number_of(table: CallTable, path: str) -> str:
    value = table.resolve(path)
    if value.kind in (Kind.NUMBER, Kind.INSTANT):
        # Whole numbers of more than 64 bits would be refused by SQLite, and other numbers in ClickHouse.
        return table.dialect.as_double(value.sql or "NULL")
    readings = [
        table.dialect.reread(value.sql or "''", reading) if value.json is None else value.json.read(reading)
        for reading in ("double", "boolean")
    ]
    return f"coalesce({readings[0]}, {table.dialect.as_double(readings[1])})"


def _text_of(table: CallTable, path: str) -> str:
    value = table.resolve(path)
    text = value.sql or (value.json.read("text") if value.json is not None else "NULL")
    if value.kind in (Kind.NUMBER, Kind.INSTANT):
        text = table.dialect.spelled(text, value.kind)
    return f"coalesce({text}, '')"


def written(measure: Measure, value: str) -> str:
    """The SQL of a measure of a value; of `values` it is made elsewhere."""
    return _FUNCTIONS[measure.function].format(value)
