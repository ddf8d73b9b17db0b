"""A call field as ClickHouse expressions over the table of calls `c` and what was looked up for the query."""

from dataclasses import dataclass, field

from heddle.store.clickhouse import jsonread
from heddle.store.clickhouse.bound import Bound
from heddle.store.conditions import FieldSql
from heddle.wire import refs
from heddle.wire.callfields import CallField, Kind

RID = "toInt64(bitShiftRight(cityHash64(c.project, c.id), 1))"
"""A number for a call, as `CallRow.rid` has it."""
STATUS = "transform(c.status, [0, 1, 2], ['success', 'error', 'descendant_error'], 'running')"
LATENCY = "intDiv(c.ended_at - c.started_at - 999 * (c.ended_at < c.started_at), 1000)"
_NO_INSTANT = "CAST(NULL, 'Nullable(Int64)')"
_NULLABLE_JSON = ("otel_dump", "output", "summary")
_COLUMNS = {
    "wb_user_id": "c.user",
    "wb_run_id": "c.run_id",
    "wb_run_step": "c.run_step",
    "wb_run_step_end": "c.run_step_end",
}


def _label() -> str:
    """The name that people read of an op, see `refs.operation_name`."""

    def name(kind: str) -> str:
        start = f"position(c.op_name, '{kind}')"
        return f"{start} > 0, decodeURLComponent(extract(substring(c.op_name, {start} + {len(kind)}), '^[^/:]*'))"

    is_ref = f"startsWith(c.op_name, '{refs.INTERNAL}') OR startsWith(c.op_name, '{refs.EXTERNAL}')"
    return f"multiIf(NOT ({is_ref}), c.op_name, {name('/op/')}, {name('/object/')}, c.op_name)"


LABEL = _label()

FeedbackKey = tuple[str, str]
"""Type and column of feedback rows."""


@dataclass(slots=True)
class Lookups:
    """Names of sent tables with what the control tables hold of a query: see `lookups.py`."""

    feedback: dict[FeedbackKey, str] = field(default_factory=dict)
    queue_items: str = ""
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The SQL of the JSON text that a path leads to whose refs are followed; null where there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a query runs: project, retention in microseconds, the paths whose refs are followed, what was looked up."""

    project: str
    retention: int | None
    expand: tuple[tuple[str, ...], ...]
    bound: Bound
    lookups: Lookups

    @property
    def external(self) -> str:
        """The project as clients name it."""
        return refs.external_project(self.project) or ""


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON text (an SQL expression, null only where `nullable`) and a path inside it."""

    source: str
    parts: tuple[str, ...]
    bound: Bound
    nullable: bool = False

    def cast(self, target: str) -> str:
        """The value read as `string`, `int`, `double` or `bool`."""
        if target == "string":
            return self._unless_null(jsonread.text(self._text(), self.parts, self.bound.value))
        read = {"int": jsonread.integer, "double": jsonread.double, "bool": jsonread.boolean}
        return self._unless_null(read[target](self.raw()))

    def plain_text(self) -> str:
        """The value as text, right where it is compared with a word."""
        return jsonread.plain_text(self.source, self.parts, self.bound.value)

    def size(self) -> str:
        """How many elements or characters the value has."""
        return self._unless_null(jsonread.size(self.raw()))

    def present(self) -> str:
        """1 where the value is there and not null."""
        return jsonread.present(self.raw())

    def raw(self) -> str:
        """The JSON text at the path, empty where there is none."""
        return jsonread.fragment(self._text(), self.parts, self.bound.value)

    def _text(self) -> str:
        return f"ifNull({self.source}, '')" if self.nullable else self.source

    def _unless_null(self, value: str) -> str:
        return f"if(isNull({self.source}), NULL, {value})" if self.nullable else value


def field_sql(item: CallField, place: Place) -> FieldSql:
    """The SQL of a field; type is text, number, time, refs or json."""
    if item.kind is Kind.JSON:
        value = _json_value(item, place)
        return FieldSql(value.cast("string"), "json", value, item)
    if item.kind is Kind.FEEDBACK:
        return _feedback(item, place)
    if item.kind is Kind.COMPUTED:
        return _computed(item)
    if item.kind is Kind.TIME:
        return FieldSql(_time_column(item.column, place), "time", field=item)
    if item.kind is Kind.REFS:
        return FieldSql("NULL", "refs", field=item)
    if item.kind is Kind.QUEUE:
        return FieldSql(_queue(place), "text", field=item)
    if item.column == "project_id":
        return FieldSql(place.bound.value(place.external), "text", field=item)
    column = _COLUMNS.get(item.column, f"c.{item.column}")
    return FieldSql(column, "number" if item.kind is Kind.NUMBER else "text", field=item)


def _time_column(column: str, place: Place) -> str:
    if column == "deleted_at":
        return _NO_INSTANT
    if column != "expire_at":
        return f"c.{column}"
    return f"(c.started_at + {place.retention})" if place.retention is not None else _NO_INSTANT


def _computed(item: CallField) -> FieldSql:
    if item.column == "latency_ms":
        return FieldSql(LATENCY, "number", field=item)
    if item.column == "status":
        return FieldSql(STATUS, "text", field=item)
    return FieldSql(f"ifNull(nullIf(c.display_name, ''), {LABEL})", "text", field=item)


def _json_value(item: CallField, place: Place) -> JsonValue:
    """The column's text and path; where the path runs through an expanded column, the referenced value's text."""
    value = JsonValue(column_text(item.column), item.path, place.bound)
    for _, column in expanded(item, place.expand):
        value = JsonValue(place.lookups.sources[column], (item.column, *item.path)[len(column) :], place.bound, True)
    return value


def column_text(column: str) -> str:
    """A JSON column; empty where the call has none yet."""
    return f"ifNull(c.{column}, '')" if column in _NULLABLE_JSON else f"c.{column}"


def expanded(item: CallField, expand: tuple[tuple[str, ...], ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The expanded columns that a path runs through, the shortest first, each with what is above it."""
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    taken: tuple[str, ...] = (item.column,)
    full = (item.column, *item.path)
    for column in sorted(expand, key=len):
        if len(taken) < len(column) < len(full) and full[: len(column)] == column:
            found.append((taken, column))
            taken = column
    return found


def referenced(value: JsonValue, place: Place, sent: str) -> str:
    """The JSON text of what a ref at a path points to (a sent table has them), or of an inline value; else null."""
    known = place.bound.define(f"(SELECT (groupArray(ref), groupArray(v)) FROM {sent})")
    prefix = place.bound.value(f"{refs.INTERNAL}{place.project}/")
    found = f"transform(t, {known}.1, {known}.2, '')"
    inline = f"if(startsWith(t, {prefix}), nullIf({found}, ''), nullIf(v, ''))"
    raw = jsonread.once(_ref_text("v"), "t", inline)
    return jsonread.once(value.raw(), "v", raw)


def ref_at(value: JsonValue) -> str:
    """The text at a path, empty where there is none."""
    return jsonread.once(value.raw(), "v", _ref_text("v"))


def _ref_text(raw: str) -> str:
    return f"if(startsWith({raw}, '\"'), JSONExtractString({raw}), '')"


def _queue(place: Place) -> str:
    rows = f"(SELECT call_id, min(queue_id) AS first FROM {place.lookups.queue_items} GROUP BY call_id)"
    known = place.bound.define(f"(SELECT (groupArray(call_id), groupArray(first)) FROM {rows})")
    return f"nullIf(transform(c.id, {known}.1, {known}.2, ''), '')"


def feedback_text(item: CallField, place: Place) -> str:
    """The value of a sent feedback row as text; a missing one is empty."""
    return jsonread.text("value", item.path, place.bound.value) if item.path else "value"


def feedback_rows(item: CallField, place: Place) -> str:
    """The name of the sent table with the feedback rows that a field speaks of."""
    return place.lookups.feedback[item.feedback_type, item.column]


def _feedback(item: CallField, place: Place) -> FieldSql:
    rows, text = feedback_rows(item, place), "value"
    if item.feedback_type == "*":
        rows = f"(SELECT call_id, n, {feedback_text(item, place)} AS value FROM {rows})"
        rows = f"(SELECT * FROM {rows} WHERE value != '')"
    firsts = f"(SELECT call_id, argMin({text}, n) AS first FROM {rows} GROUP BY call_id)"
    known = place.bound.define(f"(SELECT (groupArray(call_id), groupArray(first)) FROM {firsts})")
    first = f"transform(c.id, {known}.1, {known}.2, '')"
    if item.feedback_type == "*" or item.column != "payload":
        return FieldSql(first, "text", field=item)
    payload = JsonValue(first, item.path, place.bound)
    value = FieldSql(payload.cast("string") if item.path else first, "json", payload, item)
    return FieldSql(value.sql, "json", None, item) if value.multi_value else value
