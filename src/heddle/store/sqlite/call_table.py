"""Calls in SQLite as queries see them, and the statements that select them."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.store.query import sqlite
from heddle.store.query.calls import CallTable, Selection, expanded, feedback_members
from heddle.store.query.compiler import Compiler, JsonValue, Kind, Value, contained
from heddle.store.query.sqlite import Parameters, SqliteDialect, quote
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.schema import stored_name
from heddle.wire import callfields, refs
from heddle.wire.callfields import CallField
from heddle.wire.callfields import Kind as FieldKind
from heddle.wire.calls import BODY_IN, BODY_OUT, COLUMNS, CallsQuery, CostTest
from heddle.wire.inference import CostOf
from heddle.wire.query import And, Compare, Field, Literal, Operand, Scalar

_COLUMNS = {
    **{column.name: f"c.{column.name}" for column in COLUMNS},
    **{
        column.name: f"(SELECT v FROM names WHERE k = c.{stored_name(column)})"
        for column in COLUMNS
        if column.is_repeated
    },
    "deleted_at": "c.deleted_at",
    "expire_at": "NULL",
    **{name: f"bi.{name}" for name in BODY_IN},
    **{name: f"bo.{name}" for name in BODY_OUT},
}
_COST_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
PRICED = "n.v, u.started_at, u.requests, u.prompt, u.completion, u.cache_read, u.cache_creation"
"""What the function `call_cost` takes, of a row `u` of usage and the name `n` of its model."""
_NUMBERED = {column.name: stored_name(column) for column in COLUMNS if column.is_repeated}


class SqliteCallTable(CallTable):
    """The fields of calls: heads in `calls` (`c`), bodies in `body_in` (`bi`) and `body_out` (`bo`)."""

    status = "CASE c.status WHEN 0 THEN 'success' WHEN 1 THEN 'error' WHEN 2 THEN 'descendant_error' ELSE 'running' END"
    latency = "((c.ended_at - c.started_at - 999 * (c.ended_at < c.started_at)) / 1000)"
    label = "(SELECT label FROM names WHERE k = c.op)"

    def __init__(
        self, query: CallsQuery, number: int, raw: sqlite3.Connection | None = None, names: NameReader | None = None
    ) -> None:
        self.parameters = Parameters()
        super().__init__(SqliteDialect(self.parameters), query)
        self._number = number
        self._raw = raw
        self._names = names

    def column(self, name: str) -> str:
        """The SQL of a column."""
        return quote(self.external) if name == "project_id" else _COLUMNS[name]

    def json_column(self, name: str) -> str:
        """The SQL of the text of a JSON column."""
        return _COLUMNS[name]

    def referenced(self, above: JsonValue, path: tuple[str, ...]) -> str:
        """The JSON text of what a ref at a path points to (an object version or a dataset row), or of the value."""
        prefix = quote(f"{refs.INTERNAL}{self.project}/")
        own = quote(self.project)
        version = f"SELECT val FROM object_versions WHERE project = {own} AND deleted_at IS NULL AND ref ="
        row = (
            f"SELECT val FROM table_rows WHERE project = {own} AND digest = substr(r.ref, -43) "
            f"AND EXISTS ({version} substr(r.ref, 1, instr(r.ref, {quote(refs.ROWS)}) - 1))"
        )
        # The ref is computed once, in a FROM clause of its own: it may be a long expression that follows a ref itself.
        return (
            f"(SELECT CASE WHEN substr(r.ref, 1, length({prefix})) = {prefix} THEN ifnull(({version} r.ref), ({row})) "
            f"ELSE r.inline END FROM "
            f"(SELECT {sqlite.scalar(above.source, path)} AS ref, {sqlite.fragment(above.source, path)} AS inline) r)"
        )

    def _feedback_rows(self, item: CallField) -> str:
        """FROM and WHERE of the feedback rows of the current call that a field speaks of; alias `f`."""
        prefix = quote(f"{refs.INTERNAL}{self.project}/call/")
        condition = f"f.project = {quote(self.project)} AND f.weave_ref = {prefix} || c.id"
        if item.feedback_type != "*":
            condition += f" AND f.feedback_type = {quote(item.feedback_type)}"
        return f"FROM feedback f WHERE {condition}"

    @staticmethod
    def _feedback_text(item: CallField) -> str:
        """The value of one feedback row `f` as text; a missing one is empty."""
        if item.column == "payload":
            return sqlite.text("f.payload", item.path) if item.path else "f.payload"
        return f"ifnull(f.{item.column}, '')"

    def feedback(self, item: CallField) -> Value:
        """The first feedback row of a call."""
        rows, members = self._feedback_rows(item), feedback_members(self, item)
        if item.feedback_type == "*" or item.column != "payload":
            value = self._feedback_text(item)
            filled = f" AND {value} <> ''" if item.feedback_type == "*" else ""
            sql = f"ifnull((SELECT {value} {rows}{filled} ORDER BY f.seq LIMIT 1), '')"
            return Value(Kind.TEXT, sql, members=members)
        payload = JsonValue(self.dialect, f"(SELECT f.payload {rows} ORDER BY f.seq LIMIT 1)", item.path)
        text = payload.read("text") if item.path else f"ifnull({payload.source}, '')"
        return Value(Kind.JSON, text, None if members else payload, members=members)

    def any_feedback(self, item: CallField, test: str, text: str) -> str:
        """The condition that any feedback row equals or contains a text."""
        value, constant = self._feedback_text(item), self.parameters.value(text)
        condition = f"{value} = {constant}"
        if test != "=":
            condition = contained(self.dialect, value, constant, test == "folded")
        return f"EXISTS (SELECT 1 {self._feedback_rows(item)} AND {condition})"

    def no_feedback(self, item: CallField) -> str:
        """The condition that a call has no feedback row with the value."""
        filled = f" AND {self._feedback_text(item)} <> ''" if item.path or item.column != "payload" else ""
        return f"(NOT EXISTS (SELECT 1 {self._feedback_rows(item)}{filled}))"

    def _queue_rows(self) -> str:
        return f"FROM annotation_queue_items q WHERE q.project = {quote(self.project)} AND q.call_id = c.id"

    def queue(self) -> str:
        """The SQL of the first annotation queue that a call is in."""
        return f"(SELECT min(q.queue_id) {self._queue_rows()})"

    def in_queue(self, queues: Sequence[str]) -> str:
        """The condition that a call is in any of some annotation queues."""
        return f"EXISTS (SELECT 1 {self._queue_rows()} AND q.queue_id IN {self.parameters.values(queues)})"

    def has_ref(self, name: str, ref: str) -> str:
        """The condition that a call names a ref."""
        rows = f"FROM call_refs r JOIN names n ON n.k = r.ref WHERE r.rid = c.rid AND r.side = {_side(name)}"
        return f"EXISTS (SELECT 1 {rows} AND n.v = {self.parameters.value(ref)})"

    def equals_name(self, column: str, text: str) -> str | None:
        """The condition that a column of repeated texts is the number of a text."""
        if column not in _NUMBERED:
            return None
        known = f"SELECT k FROM names WHERE v = {self.parameters.value(text)}"
        return f"(c.{_NUMBERED[column]} = ifnull(({known}), -1))"

    def among_names(self, column: str, names: Sequence[str]) -> str:
        """Membership in numbers that stand in the text, as there may be more than SQLite binds."""
        assert self._raw is not None and self._names is not None
        numbers = self._names.numbers(self._raw, names)
        column = f"c.{_NUMBERED[column]}" if column in _NUMBERED else column
        if len(numbers) == 1:
            return f"{column} = {numbers[0]}"
        return f"{column} IN ({', '.join(map(str, numbers))})"

    def names_refs(self, column: str, names: Sequence[str]) -> str:
        """The condition that a call names any of some refs."""
        inside = self.among_names("ref", names)
        rows = f"FROM call_refs WHERE project = {self._number} AND side = {_side(column)} AND {inside}"
        return f"c.rid IN (SELECT rid {rows})"

    def indexable(self, operand: Operand) -> tuple[str, str] | None:
        """The table and the expression of a comparison of a JSON path with a constant: an index can answer it."""
        match operand:
            case Compare(op, Field(path), Literal(constant)) if not _holds_for_missing(op, constant):
                item = callfields.resolve(path)
                if item.kind is not FieldKind.JSON or expanded(item, self.query.expand):
                    return None
                json = self.json(item)
                beside = json.beside([constant], op == "eq")
                sql = (beside.sql if beside else None) or json.read("text")
                body, alias = ("body_in", "bi") if item.column in BODY_IN else ("body_out", "bo")
                return body, sql.replace(f"{alias}.", "")
        return None


def _side(name: str) -> int:
    return 0 if name == "input_refs" else 1


def _holds_for_missing(op: str, literal: Scalar) -> bool:
    """True when a call without the value (or still without an end) can match: a walk from the bodies would miss it."""
    if isinstance(literal, str):
        return op in ("lt", "lte") or literal == ""
    return literal is None


UNFILTERED = 3
"""How many conditions a selection has that takes every live call."""


@dataclass(slots=True)
class SqliteSelection(Selection):
    """FROM, WHERE and ORDER BY of a calls query; `driver` is a body table whose index answers the query."""

    bodies: set[str] = field(default_factory=set)
    indexable: list[tuple[str, str]] = field(default_factory=list)
    parameters: dict[str, Scalar] = field(default_factory=dict)
    driver: str = ""

    def source(self) -> str:
        """The FROM clause; a driver leads the join."""
        alias = {"body_in": "bi", "body_out": "bo"}
        joins = "calls c"
        if self.driver:
            joins = f"{self.driver} {alias[self.driver]} CROSS JOIN calls c ON c.rid = {alias[self.driver]}.rid"
        if "body_in" in self.bodies and self.driver != "body_in":
            joins += " CROSS JOIN body_in bi ON bi.rid = c.rid"
        if "body_out" in self.bodies and self.driver != "body_out":
            joins += " LEFT JOIN body_out bo ON bo.rid = c.rid"
        return joins

    def answer_by(self, driver: str) -> None:
        """Let the index of a body table answer the query."""
        self.driver = driver
        self.where[0] = "+c.project" + self.where[0].removeprefix("c.project")


def select(raw: sqlite3.Connection, names: NameReader, query: CallsQuery) -> SqliteSelection | None:
    """Compile a query; None when the project has no call at all. Raises InvalidField for a field that calls lack."""
    number = names.number(raw, query.project)
    table = SqliteCallTable(query, number or 0, raw, names)
    where = [f"c.project = {number or 0}", "c.deleted_at IS NULL", "c.started_at IS NOT NULL"]
    selection = SqliteSelection(table, where, parameters=table.parameters.given)
    compiled = Compiler(table.dialect, table.resolve).compile(query.query) if query.query is not None else ""
    selection.sort(query.sort)
    if number is None:
        return None
    where.extend(table.filter(query.filter))
    if query.cost is not None:
        where.append(_cost_condition(raw, query.cost))
    if query.query is not None:
        where.append(compiled)
        conjuncts = query.query.operands if isinstance(query.query, And) else (query.query,)
        selection.indexable = [found for item in conjuncts if (found := table.indexable(item)) is not None]
    for item in table.fields:
        if item.column in BODY_IN or item.column in BODY_OUT:
            selection.bodies.add("body_in" if item.column in BODY_IN else "body_out")
    return selection


def set_price(raw: sqlite3.Connection, price: CostOf) -> None:
    """Make the prices a function `call_cost` of the connection."""

    def cost(model: str, at: int, requests: int, prompt: int, completion: int, read: int, created: int) -> float | None:
        return price(
            model,
            at,
            requests=requests,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=read,
            created_tokens=created,
        )

    raw.create_function("call_cost", 7, cost)


def _cost_condition(raw: sqlite3.Connection, test: CostTest) -> str:
    """The SQL of a test on the dollars of the current call `c`; the prices become a function of the connection."""
    set_price(raw, test.price)
    return f"""ifnull((SELECT sum(call_cost({PRICED})) FROM usage u JOIN names n ON n.k = u.model
        WHERE u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid), 0)
        {_COST_OPERATORS[test.op]} {float(test.dollars)!r}"""
