"""Calls in SQLite as queries see them: the statements that select and read them, and the indexes of slow ones."""

import hashlib
import json
import logging
import sqlite3
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from heddle.store.query.calls import CallTable, Position, Selection, expanded, feedback_members
from heddle.store.query.compiler import Compiler, JsonValue, Kind, Value, conjuncts_of, is_word
from heddle.store.query.sqlite import Parameters, SqliteDialect, quote, read
from heddle.store.sqlite.call_bodies import WHOLE_DUMP, dump_source, needs_output
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.schema import stored_name
from heddle.store.sqlite.search import INDEXED_BODIES, Hits, calls_that_may_hold, require
from heddle.wire import refs, times
from heddle.wire.call_fields import CallField, resolve_field
from heddle.wire.call_fields import FieldKind as FieldKind
from heddle.wire.calls import BODY_IN, BODY_OUT, COLUMNS, CallRow, CallsQuery, CostOf, CostTest, Usage
from heddle.wire.query import And, Compare, Field, Literal, Operand, Scalar, Search
from heddle.wire.query import searches as texts_in

SLICE = 256
SLICE_BYTES = 256 * 1024
"""A slice ends at so many rows, or with the row that brings its stored JSON to so many bytes."""
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
    call = "u.rid"

    def __init__(self, query: CallsQuery, number: int, raw: sqlite3.Connection, names: NameReader) -> None:
        self.parameters = Parameters()
        super().__init__(SqliteDialect(self.parameters), query)
        self._number = number
        self._raw = raw
        self._names = names

    def hits(self, node: Search) -> Hits:
        """What a text search finds."""
        return Hits(node, self.project, self._number, self.parameters)

    def column(self, name: str) -> str:
        return quote(self.external) if name == "project_id" else _COLUMNS[name]

    def json_column(self, name: str) -> str:
        return _COLUMNS[name]

    def json(self, item: CallField) -> JsonValue:
        """As for any table; of a span's dump as much is read as the path needs."""
        found = super().json(item)
        if item.column != "otel_dump":
            return found
        return replace(found, source=found.source.replace(_COLUMNS["otel_dump"], dump_source(item)))

    def referenced(self, above: JsonValue, path: tuple[str, ...]) -> str:
        """The JSON text of what a ref at a path points to: an object version or a row of a dataset."""
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
            f"END FROM (SELECT {read(above.source, path, 'scalar')} AS ref) r)"
        )

    def _feedback_rows(self, item: CallField) -> str:
        """FROM and WHERE of the feedback rows of the current call that a field speaks of; alias `f`."""
        prefix = quote(f"{refs.INTERNAL}{self.project}/call/")
        condition = f"f.project = {quote(self.project)} AND f.weave_ref = {prefix} || c.id"
        if item.feedback_type != "*":
            condition += f" AND f.feedback_type = {quote(item.feedback_type)}"
        return f"FROM feedback f WHERE {condition}"

    def feedback_text(self, item: CallField) -> str:
        if item.column == "payload":
            return read("f.payload", item.path, "text") if item.path else "f.payload"
        return f"ifnull(f.{item.column}, '')"

    def feedback(self, item: CallField) -> Value:
        rows, members = self._feedback_rows(item), feedback_members(self, item)
        if item.feedback_type == "*" or item.column != "payload":
            value = self.feedback_text(item)
            filled = f" AND {value} <> ''" if item.feedback_type == "*" else ""
            sql = f"ifnull((SELECT {value} {rows}{filled} ORDER BY f.seq LIMIT 1), '')"
            return Value(Kind.TEXT, sql, members=members)
        payload = JsonValue(self.dialect, f"(SELECT f.payload {rows} ORDER BY f.seq LIMIT 1)", item.path)
        text = payload.read("text") if item.path else f"ifnull({payload.source}, '')"
        return Value(Kind.JSON, text, None if members else payload, members=members)

    def any_feedback(self, item: CallField, test: str, text: str) -> str:
        return f"EXISTS (SELECT 1 {self._feedback_rows(item)} AND {self.feedback_test(item, test, text)})"

    def no_feedback(self, item: CallField) -> str:
        filled = f" AND {self.feedback_text(item)} <> ''" if item.path or item.column != "payload" else ""
        return f"(NOT EXISTS (SELECT 1 {self._feedback_rows(item)}{filled}))"

    def _queue_rows(self) -> str:
        return f"FROM annotation_queue_items q WHERE q.project = {quote(self.project)} AND q.call_id = c.id"

    def queue(self) -> str:
        return f"(SELECT min(q.queue_id) {self._queue_rows()})"

    def in_queue(self, queues: Sequence[str]) -> str:
        return f"EXISTS (SELECT 1 {self._queue_rows()} AND q.queue_id IN {self.parameters.values(queues)})"

    def has_ref(self, name: str, ref: str | None) -> str:
        rows = f"FROM call_refs r JOIN names n ON n.k = r.ref WHERE r.rid = c.rid AND r.side = {_side(name)}"
        return f"EXISTS (SELECT 1 {rows}{'' if ref is None else f' AND n.v = {self.parameters.value(ref)}'})"

    def equals_names(self, column: str, texts: Sequence[str]) -> str | None:
        if column not in _NUMBERED:
            return None
        if len(texts) > 1:
            return f"(c.{_NUMBERED[column]} IN (SELECT k FROM names WHERE v IN {self.parameters.values(texts)}))"
        text = texts[0]
        known = f"SELECT k FROM names WHERE v = {self.parameters.value(text)}"
        return f"(c.{_NUMBERED[column]} = ifnull(({known}), -1))"

    def among_names(self, column: str, names: Sequence[str]) -> str:
        """Membership in numbers that stand in the text, as there may be more than SQLite binds."""
        numbers = self._names.numbers(self._raw, names)
        column = f"c.{_NUMBERED[column]}" if column in _NUMBERED else column
        if len(numbers) == 1:
            return f"{column} = {numbers[0]}"
        return f"{column} IN ({', '.join(map(str, numbers))})"

    def names_refs(self, column: str, names: Sequence[str]) -> str:
        inside = self.among_names("ref", names)
        rows = f"FROM call_refs WHERE project = {self._number} AND side = {_side(column)} AND {inside}"
        return f"c.rid IN (SELECT rid {rows})"

    def indexable(self, operand: Operand) -> tuple[str, str] | None:
        """The table and the expression of a comparison of a JSON path with a constant: an index can answer it."""
        match operand:
            case Compare(op, Field(path), Literal(constant)) if not _holds_for_missing(op, constant):
                item = resolve_field(path)
                if item.kind is not FieldKind.JSON or expanded(item, self.query.expand) or _reads_both(item):
                    return None
                json = self.json(item)
                beside = json.beside([constant], op == "eq")
                sql = (beside.sql if beside else None) or json.read("text")
                body, alias = ("body_in", "bi") if item.column in BODY_IN else ("body_out", "bo")
                return body, sql.replace(f"{alias}.", "")
        return None

    def held(self, operand: Operand) -> str:
        """The text that a comparison wants as a JSON string in a body that text search knows; empty for any other."""
        match operand:
            case Compare("eq", Field(path), Literal(str(constant))) if is_word(constant) and self.indexable(operand):
                return constant if resolve_field(path).column in INDEXED_BODIES else ""
        return ""


def _reads_both(item: CallField) -> bool:
    """True for a field that both bodies of a call are read for."""
    return item.column == "otel_dump" and needs_output(item)


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
class Page:
    """Some selected calls: row numbers, stored bytes, the position of the last, and the rows of the first slice."""

    rids: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    last: Position | None = None
    is_followed: bool = False
    rows: list[CallRow] = field(default_factory=list)

    def slice_ends(self) -> Iterator[int]:
        """Where each slice of the rows ends."""
        count = start = total = 0
        for count, size in enumerate(self.sizes, 1):
            total += size
            if total >= SLICE_BYTES or count - start == SLICE:
                yield count
                start, total = count, 0
        if count > start:
            yield count


@dataclass(slots=True)
class SqliteSelection(Selection):
    """FROM, WHERE and ORDER BY of a calls query; `driver` is a body table whose index answers the query."""

    bodies: set[str] = field(default_factory=set)
    indexable: list[tuple[str, str]] = field(default_factory=list)
    parameters: dict[str, Scalar] = field(default_factory=dict)
    driver: str = ""
    hits: Hits | None = None
    held: str = ""
    """A text that each selected call has as a JSON string in an indexed body."""

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
        self._look_elsewhere()

    def _look_elsewhere(self) -> None:
        """Keep the planner from the indexes that begin with the project."""
        self.where[0] = "+c.project" + self.where[0].removeprefix("c.project")

    def look_up_holding(self, raw: sqlite3.Connection, project: int) -> None:
        """Find the calls by the text that they hold, where text search knows these."""
        rids = calls_that_may_hold(raw, project, self.held) if self.held and not self.driver else None
        if rids is not None:
            self.parameters["held"] = json.dumps(rids)
            self.where.append("c.rid IN (SELECT value FROM json_each(:held))")
            self._look_elsewhere()

    def narrowed(self, place: int, condition: str) -> "SqliteSelection":
        """The same with another condition at a place, by which the calls are found."""
        found = replace(self, where=[*self.where[:place], condition, *self.where[place + 1 :]])
        found._look_elsewhere()
        return found


def select(
    raw: sqlite3.Connection, names: NameReader, query: CallsQuery, paths: Sequence[str] = ()
) -> SqliteSelection | None:
    """Compile a query, `paths` are read beside its own; None when the project has no call at all.

    Raises InvalidField for a field that calls lack.
    """
    number = names.number(raw, query.project)
    table = SqliteCallTable(query, number or 0, raw, names)
    where = [f"c.project = {number or 0}", "c.deleted_at IS NULL", "c.started_at IS NOT NULL"]
    selection = SqliteSelection(table, where, parameters=table.parameters.given)
    conjuncts = list(conjuncts_of(query.query)) if query.query is not None else []
    searches = [item for item in conjuncts if isinstance(item, Search)]
    if query.query is not None and any(texts_in(query.query)):
        require(raw)
    alone = searches[0] if len(searches) == 1 else None
    compiled = ""
    if others := tuple(item for item in conjuncts if item is not alone):
        compiler = Compiler(table.dialect, table.resolve, search=lambda node: table.hits(node).sql())
        compiled = compiler.condition(And(others))
    selection.sort(query.sort)
    for path in paths:
        table.resolve(path)
    if number is None:
        return None
    where.extend(table.filter(query.filter))
    if query.cost is not None:
        where.append(_cost_condition(raw, query.cost))
    if query.used is not None:
        model = f" AND {table.among_names('u.model', [query.used])}" if query.used else ""
        where.append(f"""EXISTS (SELECT 1 FROM usage u WHERE u.project = c.project AND u.started_at = c.started_at
            AND u.rid = c.rid AND NOT u.repeated{model})""")
    if compiled:
        where.append(compiled)
    if alone is not None:
        selection.hits = table.hits(alone)
        selection.hits.place = len(where)
        where.append(selection.hits.sql())
    else:
        selection.indexable = [found for item in conjuncts if (found := table.indexable(item)) is not None]
        selection.held = max(map(table.held, conjuncts), key=len, default="")
    for item in table.fields:
        if item.column in BODY_IN or item.column in BODY_OUT:
            selection.bodies.add("body_in" if item.column in BODY_IN else "body_out")
        if _reads_both(item):
            selection.bodies.add("body_out")
    return selection


def set_price(raw: sqlite3.Connection, price: CostOf) -> None:
    """Make the prices a function `call_cost` of the connection."""

    def cost(model: str, at: int, requests: int, prompt: int, completion: int, read: int, created: int) -> float | None:
        return price(Usage(model, requests, prompt, completion, None, read, created), at)

    raw.create_function("call_cost", 7, cost)


def _cost_condition(raw: sqlite3.Connection, test: CostTest) -> str:
    """The SQL of a test on the dollars of the current call `c`; the prices become a function of the connection."""
    set_price(raw, test.price)
    return f"""ifnull((SELECT sum(call_cost({PRICED})) FROM usage u JOIN names n ON n.k = u.model
        WHERE u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid), 0)
        {_COST_OPERATORS[test.op]} {float(test.dollars)!r}"""


_HEADS = [column for column in COLUMNS if not column.is_body]
_HEAD = ", ".join(("c.spilled", "c.rid", "c.size_in + c.size_out", *(f"c.{stored_name(column)}" for column in _HEADS)))
_NUMBERED_HEADS = [place for place, column in enumerate(_HEADS, 2) if column.is_repeated]
_SELECTED = {"otel_dump": WHOLE_DUMP}
ReadFile = Callable[[str], str]


def fetch(
    raw: sqlite3.Connection, names: NameReader, rids: Sequence[int], columns: frozenset[str], read_file: ReadFile | None
) -> list[CallRow]:
    """The calls of the row numbers, in that order; a row that was removed meanwhile is left out.

    Without `read_file` large texts stay as the row has them.
    """
    wanted, source = [_HEAD], "calls c"
    read = columns | {"output"} if "otel_dump" in columns else columns
    for table, alias, bodies in (("body_in", "bi", BODY_IN), ("body_out", "bo", BODY_OUT)):
        wanted += (_SELECTED.get(name, _COLUMNS[name]) if name in columns else "NULL" for name in bodies)
        source += "" if read.isdisjoint(bodies) else f" LEFT JOIN {table} {alias} ON {alias}.rid = c.rid"
    sql = f"SELECT {', '.join(wanted)} FROM {source} WHERE c.rid IN (SELECT value FROM json_each(?))"
    found: dict[int, CallRow] = {}
    for spilled, *values in raw.execute(sql, (json.dumps(list(rids)),)):
        for place in _NUMBERED_HEADS:
            values[place] = names.text(raw, values[place])
        row = found[values[0]] = CallRow(*values)
        if spilled and read_file is not None:
            # The whole texts of large fields in the place of their shortened ones.
            for name, blob in raw.execute("SELECT field, blob FROM call_files WHERE rid = ?", (row.rid,)):
                if name in columns:
                    setattr(row, name, read_file(blob))
    return [found[rid] for rid in rids if rid in found]


def trace_sizes(raw: sqlite3.Connection, project: int, rows: Sequence[CallRow]) -> None:
    """Fill `trace_size` of root calls: the stored bytes of all live calls of their trace."""
    for row in rows:
        if row.parent_id is None:
            query = """SELECT sum(size_in + size_out) FROM calls
                WHERE trace_id = ? AND project = ? AND deleted_at IS NULL AND started_at IS NOT NULL"""
            row.trace_size = int(raw.execute(query, (row.trace_id, project)).fetchone()[0] or 0)


def read_usage(
    raw: sqlite3.Connection, names: NameReader, project: int | None, calls: Sequence[tuple[int, int]]
) -> dict[int, list[Usage]]:
    """The usage of some calls, (row number, start), by row number."""
    found: dict[int, list[Usage]] = {}
    if not calls:
        return found
    listed, starts = json.dumps([rid for rid, _ in calls]), [started_at for _, started_at in calls]
    sql = """SELECT rid, model, requests, prompt, completion, total, cache_read, cache_creation FROM usage
        WHERE project = ? AND started_at BETWEEN ? AND ? AND rid IN (SELECT value FROM json_each(?))"""
    for rid, model, *numbers in raw.execute(sql, (project, min(starts), max(starts), listed)):
        found.setdefault(rid, []).append(Usage(names.text(raw, model) or "", *numbers))
    return found


logger = logging.getLogger("heddle.store")

SLOW_SECONDS = 0.05
USES_BEFORE_BUILD = 3
MAX_INDEXES = 16
UNUSED_DAYS = 30

Expression = tuple[str, str]


class PathIndexes:
    """Which expressions have an index, and which should get one; `note` and `built` may be called from any thread."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._built: frozenset[Expression] = frozenset()
        self._lock = threading.Lock()
        self._slow: dict[Expression, int] = {}
        self._used: set[Expression] = set()
        self.follow(raw)

    def built(self, expressions: list[Expression]) -> Expression | None:
        """The first of the expressions that an index answers."""
        for expression in expressions:
            if expression in self._built:
                self._used.add(expression)
                return expression
        return None

    def note(self, expressions: list[Expression]) -> None:
        """A query that reads these expressions took longer than `SLOW_SECONDS`."""
        with self._lock:
            for expression in expressions:
                if expression not in self._built and (expression in self._slow or len(self._slow) < 1000):
                    self._slow[expression] = self._slow.get(expression, 0) + 1

    def wish(self, expression: Expression) -> None:
        """Let an expression have an index as soon as there is time: it was slow often enough elsewhere."""
        with self._lock:
            if expression not in self._built:
                self._slow[expression] = USES_BEFORE_BUILD

    def follow(self, raw: sqlite3.Connection) -> None:
        """Read again which expressions have an index, as another process builds them."""
        rows = raw.execute("SELECT body, expression FROM path_indexes WHERE built_at IS NOT NULL")
        built = frozenset((body, expression) for body, expression in rows)
        with self._lock:
            self._built = built
            self._slow = {expression: uses for expression, uses in self._slow.items() if expression not in built}

    def wanted(self) -> Expression | None:
        """An expression that was slow often enough, while there is room for one more index."""
        if len(self._built) >= MAX_INDEXES:
            return None
        with self._lock:
            return next((expression for expression, uses in self._slow.items() if uses >= USES_BEFORE_BUILD), None)

    def build(self, raw: sqlite3.Connection, wanted: Expression) -> None:
        """Create the index of an expression (in the writer thread)."""
        body, expression = wanted
        name = "path_" + hashlib.sha256(f"{body} {expression}".encode()).hexdigest()[:16]
        raw.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {body} ({expression})")
        raw.execute(
            """INSERT OR REPLACE INTO path_indexes (name, body, expression, slow_uses, last_used, built_at)
                VALUES (?, ?, ?, ?, ?, ?)""",
            (name, body, expression, USES_BEFORE_BUILD, times.now(), times.now()),
        )
        logger.info("built index %s on %s", name, body)

    def now_built(self, wanted: Expression) -> None:
        """The index is committed: queries may use it."""
        with self._lock:
            self._slow.pop(wanted, None)
        self._built |= {wanted}

    def tidy(self, raw: sqlite3.Connection) -> set[Expression]:
        """Note what was used and drop indexes unused for 30 days (in the writer thread); returns the dropped ones."""
        used, self._used = self._used, set()
        raw.executemany(
            "UPDATE path_indexes SET last_used = ? WHERE body = ? AND expression = ?",
            [(times.now(), *item) for item in used],
        )
        oldest = times.now() - UNUSED_DAYS * times.DAY
        rows = raw.execute("SELECT name, body, expression FROM path_indexes WHERE last_used < ?", (oldest,)).fetchall()
        for name, _, _ in rows:
            raw.execute(f"DROP INDEX IF EXISTS {name}")
            raw.execute("DELETE FROM path_indexes WHERE name = ?", (name,))
        return {(body, expression) for _, body, expression in rows}

    def now_dropped(self, dropped: set[Expression]) -> None:
        """The drop is committed."""
        self._built -= dropped
