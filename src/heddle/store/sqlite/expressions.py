"""A call field as SQL expressions over the tables of the store."""

from collections.abc import Callable
from dataclasses import dataclass

from heddle.store import jsonpath
from heddle.store.conditions import FieldSql
from heddle.store.jsonpath import quote
from heddle.wire import refs
from heddle.wire.callfields import MULTI_VALUE_FEEDBACK, CallField, Kind

BODY_OF = {
    "inputs": "body_in",
    "attributes": "body_in",
    "otel_dump": "body_in",
    "output": "body_out",
    "summary": "body_out",
}
ALIAS = {"body_in": "bi", "body_out": "bo"}

_STATUS = "CASE c.status WHEN 0 THEN 'success' WHEN 1 THEN 'error' WHEN 2 THEN 'descendant_error' ELSE 'running' END"
_LATENCY = "((c.ended_at - c.started_at - 999 * (c.ended_at < c.started_at)) / 1000)"
_OP_NAME = "(SELECT v FROM names WHERE k = c.op)"
_OP_LABEL = "(SELECT label FROM names WHERE k = c.op)"
_COLUMNS = {
    "op_name": _OP_NAME,
    "wb_user_id": "(SELECT v FROM names WHERE k = c.user)",
    "wb_run_id": "c.run_id",
    "wb_run_step": "c.run_step",
    "wb_run_step_end": "c.run_step_end",
    "exception": "bo.exception",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a query runs: the project, its retention in microseconds, and the paths whose refs are followed."""

    number: int
    project: str
    external: str
    retention: int | None = None
    expand: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON text (an SQL expression, null when `nullable` and unresolved) and a path inside it."""

    source: str
    parts: tuple[str, ...]
    nullable: bool = False
    body: str = ""

    def cast(self, target: str) -> str:
        """The value read as `string`, `int`, `double` or `bool`."""
        read = {"string": jsonpath.text, "int": jsonpath.integer, "double": jsonpath.double, "bool": jsonpath.boolean}[
            target
        ]
        return self.read(read)

    def plain_text(self) -> str:
        """The value as text, right where it is compared with a word."""
        return self.read(jsonpath.plain_text)

    def size(self) -> str:
        """How many elements or characters the value has."""
        return self.read(jsonpath.size)

    def present(self) -> str:
        """1 where the value is there and not null."""
        return self.read(jsonpath.present)

    def read(self, reader: Callable[[str, tuple[str, ...]], str]) -> str:
        """What a function of `jsonpath` makes of it; a source that is a query of its own runs once."""
        if not self.source.startswith("("):
            return reader(self.source, self.parts)
        value = reader("s.j", self.parts)
        value = f"CASE WHEN s.j IS NOT NULL THEN {value} END" if self.nullable else value
        return f"(SELECT {value} FROM (SELECT {self.source} AS j) s)"


def field_sql(field: CallField, place: Place) -> FieldSql:
    """The SQL of a field; type is text, number, time, refs or json."""
    if field.kind is Kind.JSON:
        value = _json_value(field, place)
        return FieldSql(value.cast("string"), "json", value, field)
    if field.kind is Kind.FEEDBACK:
        return _feedback(field, place)
    if field.kind is Kind.COMPUTED:
        return _computed(field)
    if field.kind is Kind.TIME:
        return FieldSql(_time_column(field.column, place), "time", field=field)
    if field.kind is Kind.REFS:
        return FieldSql("NULL", "refs", field=field)
    if field.kind is Kind.QUEUE:
        return FieldSql(f"(SELECT min(q.queue_id) {queue_rows(place)})", "text", field=field)
    if field.column == "project_id":
        return FieldSql(quote(place.external), "text", field=field)
    column = _COLUMNS.get(field.column, f"c.{field.column}")
    return FieldSql(column, "number" if field.kind is Kind.NUMBER else "text", field=field)


def _time_column(column: str, place: Place) -> str:
    if column != "expire_at":
        return f"c.{column}"
    return f"(c.started_at + {place.retention})" if place.retention is not None else "NULL"


def _computed(field: CallField) -> FieldSql:
    if field.column == "latency_ms":
        return FieldSql(_LATENCY, "number", field=field)
    if field.column == "status":
        return FieldSql(_STATUS, "text", field=field)
    return FieldSql(f"ifnull(nullif(c.display_name, ''), {_OP_LABEL})", "text", field=field)


def _json_value(field: CallField, place: Place) -> JsonValue:
    """The column's text and path; where the path runs through an expanded column, the referenced value's text."""
    body = BODY_OF[field.column]
    source = f"{ALIAS[body]}.{field.column}"
    parts = field.path
    taken: tuple[str, ...] = (field.column,)
    nullable = False
    for column in sorted(place.expand, key=len):
        full = (field.column, *field.path)
        if len(column) > len(taken) and full[: len(column)] == column and len(full) > len(column):
            source = _referenced(source, column[len(taken) :], place)
            taken, parts, nullable = column, full[len(column) :], True
    return JsonValue(source, parts, nullable, "" if nullable else body)


def _referenced(source: str, parts: tuple[str, ...], place: Place) -> str:
    """The JSON text of what a ref at a path points to (an object version or a dataset row), or of an inline value."""
    prefix = quote(f"{refs.INTERNAL}{place.project}/")
    version = f"SELECT val FROM object_versions WHERE project = {quote(place.project)} AND deleted_at IS NULL AND ref ="
    row = (
        f"SELECT val FROM table_rows WHERE project = {quote(place.project)} AND digest = substr(r.ref, -43) "
        f"AND EXISTS ({version} substr(r.ref, 1, instr(r.ref, {quote(refs.ROWS)}) - 1))"
    )
    # The ref is computed once, in a FROM clause of its own: it may be a long expression that follows a ref itself.
    return (
        f"(SELECT CASE WHEN substr(r.ref, 1, length({prefix})) = {prefix} THEN ifnull(({version} r.ref), ({row})) "
        f"ELSE r.inline END FROM "
        f"(SELECT {jsonpath.scalar(source, parts)} AS ref, {jsonpath.fragment(source, parts)} AS inline) r)"
    )


def feedback_rows(field: CallField, place: Place) -> str:
    """FROM and WHERE of the feedback rows of the current call that a field speaks of; alias `f`."""
    prefix = quote(f"{refs.INTERNAL}{place.project}/call/")
    condition = f"f.project = {quote(place.project)} AND f.weave_ref = {prefix} || c.id"
    if field.feedback_type != "*":
        condition += f" AND f.feedback_type = {quote(field.feedback_type)}"
    return f"FROM feedback f WHERE {condition}"


def queue_rows(place: Place) -> str:
    """FROM and WHERE of the annotation queue items of the current call; alias `q`."""
    return f"FROM annotation_queue_items q WHERE q.project = {quote(place.project)} AND q.call_id = c.id"


def feedback_text(field: CallField) -> str:
    """The value of one feedback row `f` as text; a missing one is empty."""
    if field.column == "payload":
        return jsonpath.text("f.payload", field.path) if field.path else "f.payload"
    return f"ifnull(f.{field.column}, '')"


def _feedback(field: CallField, place: Place) -> FieldSql:
    rows = feedback_rows(field, place)
    if field.feedback_type == "*":
        value = feedback_text(field)
        return FieldSql(
            f"ifnull((SELECT {value} {rows} AND {value} <> '' ORDER BY f.seq LIMIT 1), '')", "text", field=field
        )
    if field.column != "payload":
        return FieldSql(f"ifnull((SELECT f.{field.column} {rows} ORDER BY f.seq LIMIT 1), '')", "text", field=field)
    payload = JsonValue(f"(SELECT f.payload {rows} ORDER BY f.seq LIMIT 1)", field.path)
    text = payload.cast("string") if field.path else f"ifnull({payload.source}, '')"
    return FieldSql(text, "json", None if field.feedback_type in MULTI_VALUE_FEEDBACK else payload, field)
