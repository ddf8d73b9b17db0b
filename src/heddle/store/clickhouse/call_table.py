"""Calls in ClickHouse as queries see them, and the statements that select them.

What a query needs of the control tables is read first and sent along with the statement.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.clickhouse.client import Bound, Clickhouse, Row
from heddle.store.clickhouse.schema import OP_LABEL
from heddle.store.clickhouse.search import condition, feedback_calls
from heddle.store.clickhouse.usage_repeats import around, counted, outer_spans
from heddle.store.control.annotation_queues import annotation_queue_items
from heddle.store.control.feedback import feedback
from heddle.store.control.objects import object_versions
from heddle.store.control.repository import Executor
from heddle.store.query.calls import CallTable, Selection, expanded, feedback_members
from heddle.store.query.clickhouse import ClickhouseDialect, once, text
from heddle.store.query.compiler import Compiler, JsonValue, Kind, Value, balanced
from heddle.wire import refs
from heddle.wire.batched import batched
from heddle.wire.call_fields import CallField, resolve_field
from heddle.wire.call_fields import FieldKind as FieldKind
from heddle.wire.calls import COLUMNS, CallsQuery, ColumnType, CostTest, Filter, Usage
from heddle.wire.query import Search, fields, searches

RID = "toInt64(bitShiftRight(cityHash64(c.project, c.id), 1))"
"""A number for a call, as `CallRow.rid` has it."""
USAGE = "c.usage_model, c.usage_requests, c.usage_prompt, c.usage_completion, c.usage_total"
USAGE += ", c.usage_cache_read, c.usage_cache_creation"
"""The columns that `usage_of` takes."""
IS_SPAN = "isNotNull(c.otel_dump)"
HAS_USAGE = "notEmpty(c.usage_model)"
_PRICED = f"c.id, c.trace_id, c.started_at, {IS_SPAN}, {USAGE}"
_PRICED_HEAD = 4
_COMPARED = {"gt": "gt", "gte": "ge", "lt": "lt", "lte": "le"}
"""The functions of `operator` that tests of costs are."""
_NO_INSTANT = "CAST(NULL, 'Nullable(Int64)')"
# Running calls have no body of their end.
_NULLABLE_JSON = {
    column.name for column in COLUMNS if column.type is ColumnType.JSON and (column.of_end or not column.is_required)
}
_FEEDBACK_COLUMNS = (("call_id", "String"), ("n", "UInt32"), ("value", "String"))
_ITEM_COLUMNS = (("call_id", "String"), ("queue_id", "String"))
_REF_COLUMNS = (("ref", "String"), ("v", "String"))
_MAX_BYTES = 24 * 1024 * 1024
_ROW_DIGEST_LENGTH = 43


def usage_of(values: Sequence[Sequence[Any]]) -> list[Usage]:
    """The usage of a call by model, from the arrays of its row."""
    return [Usage(*entry) for entry in zip(*values, strict=True)]


LABEL = OP_LABEL.replace("op_name", "c.op_name")


class ClickhouseCallTable(CallTable):
    """The fields of calls in the table `c`, and the tables with what was looked up, which are sent along."""

    status = "transform(c.status, [0, 1, 2], ['success', 'error', 'descendant_error'], 'running')"
    latency = "intDiv(c.ended_at - c.started_at - 999 * (c.ended_at < c.started_at), 1000)"
    label = LABEL
    call = "c.id"

    def __init__(self, query: CallsQuery, bound: Bound) -> None:
        super().__init__(ClickhouseDialect(bound), query)
        self.bound = bound
        self._feedback: dict[tuple[str, str], str] = {}
        self._queue_items = ""
        self._refs: dict[str, str] = {}

    def column(self, name: str) -> str:
        if name == "project_id":
            return self.bound.value(self.external)
        return _NO_INSTANT if name in ("deleted_at", "expire_at") else f"c.{name}"

    def json_column(self, name: str) -> str:
        """The SQL of the text of a JSON column; empty where the call has none yet."""
        return f"ifNull(c.{name}, '')" if name in _NULLABLE_JSON else f"c.{name}"

    def referenced(self, above: JsonValue, path: tuple[str, ...]) -> str:
        """The JSON text of what a ref at a path points to (a sent table has them); else null."""
        value = JsonValue(self.dialect, above.source, path, above.nullable).read("fragment")
        known = self.bound.define(f"(SELECT (groupArray(ref), groupArray(v)) FROM {self._refs[value]})")
        found = f"nullIf(transform(t, {known}.1, {known}.2, ''), '')"
        return once(value, "v", once(_ref_text("v"), "t", found))

    def feedback_text(self, item: CallField) -> str:
        return text("value", item.path, self.bound.value) if item.path else "value"

    def feedback(self, item: CallField) -> Value:
        found, members = self._feedback[item.feedback_type, item.column], feedback_members(self, item)
        if item.feedback_type == "*":
            found = f"(SELECT call_id, n, {self.feedback_text(item)} AS value FROM {found})"
            found = f"(SELECT * FROM {found} WHERE value != '')"
        first = self._first(f"SELECT call_id, argMin(value, n) AS first FROM {found} GROUP BY call_id")
        if item.feedback_type == "*" or item.column != "payload":
            return Value(Kind.TEXT, first, members=members)
        payload = JsonValue(self.dialect, first, item.path)
        sql = payload.read("text") if item.path else first
        return Value(Kind.JSON, sql, None if members else payload, members=members)

    def _first(self, firsts: str) -> str:
        """The text that a query of pairs (call_id, first) has for a call, else the empty text."""
        known = self.bound.define(f"(SELECT (groupArray(call_id), groupArray(first)) FROM ({firsts}))")
        return f"transform(c.id, {known}.1, {known}.2, '')"

    def any_feedback(self, item: CallField, test: str, text: str) -> str:
        rows = f"{self._feedback[item.feedback_type, item.column]} WHERE {self.feedback_test(item, test, text)}"
        return f"(c.id IN (SELECT call_id FROM {rows}))"

    def no_feedback(self, item: CallField) -> str:
        chosen = f" WHERE {self.feedback_text(item)} != ''" if item.path or item.column != "payload" else ""
        return f"(c.id NOT IN (SELECT call_id FROM {self._feedback[item.feedback_type, item.column]}{chosen}))"

    def queue(self) -> str:
        items = f"SELECT call_id, min(queue_id) AS first FROM {self._queue_items} GROUP BY call_id"
        return f"nullIf({self._first(items)}, '')"

    def in_queue(self, queues: Sequence[str]) -> str:
        chosen = f"queue_id IN {self.bound.values(queues)}"
        return f"(c.id IN (SELECT call_id FROM {self._queue_items} WHERE {chosen}))"

    def has_ref(self, name: str, ref: str | None) -> str:
        return f"notEmpty(c.{name})" if ref is None else f"has(c.{name}, {self.bound.value(ref)})"

    def among_names(self, column: str, names: Sequence[str]) -> str:
        return self._among_names(f"c.{column}", names)

    def names_refs(self, column: str, names: Sequence[str]) -> str:
        return f"arrayExists(r -> {self._among_names('r', names)}, c.{column})"

    def _among_names(self, value: str, names: Sequence[str]) -> str:
        exact = [name for name in names if not name.endswith(":*")]
        tests = [f"{value} IN {self.bound.values(exact)}"] if exact else []
        tests += [f"startsWith({value}, {self.bound.value(name[:-1])})" for name in names if name.endswith(":*")]
        return balanced(tests, "OR")

    async def look_up(
        self, clickhouse: Clickhouse, control: Executor, items: Sequence[CallField], where: Sequence[str]
    ) -> None:
        """Read the feedback, queues and what refs lead to that fields need; raises InvalidRequest where it is too much.

        `where` are the conditions of the query's filter.
        """
        for key in sorted({(item.feedback_type, item.column) for item in items if item.kind is FieldKind.FEEDBACK}):
            await self._look_up_feedback(control, *key)
        if any(item.kind is FieldKind.QUEUE for item in items):
            queued = annotation_queue_items.c
            found = sa.select(queued.call_id, queued.queue_id).where(queued.project == self.project)
            pairs = await control.read(lambda connection: [(row[0], row[1]) for row in connection.execute(found)])
            self._queue_items = self.bound.table(_ITEM_COLUMNS, pairs)
        json_items = [item for item in items if item.kind is FieldKind.JSON]
        columns = {column for item in json_items for column in expanded(item, self.query.expand)}
        for column in sorted(columns, key=len):
            await self._look_up_refs(clickhouse, control, column, where)

    async def _look_up_feedback(self, control: Executor, feedback_type: str, column: str) -> None:
        """The rows of a type in the order in which they came."""
        prefix = f"{refs.INTERNAL}{self.project}/call/"
        value = sa.func.coalesce(feedback.c[column], "")
        found = sa.select(feedback.c.weave_ref, value).where(feedback.c.project == self.project)
        found = found.where(sa.func.substr(feedback.c.weave_ref, 1, len(prefix)) == prefix).order_by(feedback.c.seq)
        if feedback_type != "*":
            found = found.where(feedback.c.feedback_type == feedback_type)
        chosen = [f"{prefix}{call_id}" for call_id in self.query.filter.call_ids or ()]

        def work(connection: sa.Connection) -> list[tuple[str, int, str]]:
            each = [found.where(feedback.c.weave_ref.in_(part)) for part in batched(chosen)] if chosen else [found]
            pairs = (row for part in each for row in connection.execute(part))
            return [(ref[len(prefix) :], n, value) for n, (ref, value) in enumerate(_measured(pairs))]

        self._feedback[feedback_type, column] = self.bound.table(_FEEDBACK_COLUMNS, await control.read(work))

    async def _look_up_refs(
        self, clickhouse: Clickhouse, control: Executor, column: tuple[str, ...], where: Sequence[str]
    ) -> None:
        """The values behind the refs that the selected calls have at a path."""
        value = self.json(CallField(FieldKind.JSON, column[0], column[1:])).read("fragment")
        ref = once(value, "v", _ref_text("v"))
        prefix = self.bound.value(f"{refs.INTERNAL}{self.project}/")
        sql = f"{self.bound.with_clause()}SELECT DISTINCT {ref} AS ref FROM calls AS c FINAL"
        sql += f" WHERE {' AND '.join(where)} AND startsWith(ref, {prefix})"
        found = [str(row[0]) for row in await clickhouse.rows(sql, self.bound.parameters)]
        texts = await self._values(clickhouse, control, found)
        self._refs[value] = self.bound.table(_REF_COLUMNS, list(texts.items()))

    async def _values(self, clickhouse: Clickhouse, control: Executor, found: Collection[str]) -> dict[str, str]:
        """The JSON texts of object versions and rows of datasets that are there, by ref."""
        objects = {ref.partition(refs.ROWS)[0] for ref in found} | set(found)
        versions = object_versions.c
        live = sa.select(versions.ref, versions.val).where(
            versions.project == self.project, versions.deleted_at.is_(None)
        )

        def work(connection: sa.Connection) -> dict[str, str]:
            each = (connection.execute(live.where(versions.ref.in_(part))) for part in batched(sorted(objects)))
            return {ref: val for part in each for ref, val in part}

        values = await control.read(work)
        digests = {
            ref: ref[-_ROW_DIGEST_LENGTH:]
            for ref in found
            if ref not in values and refs.ROWS in ref and ref.partition(refs.ROWS)[0] in values
        }
        of_digests: dict[str, str] = {}
        for part in batched(sorted(set(digests.values()))):
            sent = Bound()
            sql = f"""SELECT digest, val FROM table_rows FINAL
                WHERE project = {sent.value(self.project)} AND digest IN {sent.values(part)}"""
            of_digests |= {str(digest): str(val) for digest, val in await clickhouse.rows(sql, sent.parameters)}
        of_rows = {ref: of_digests[digest] for ref, digest in digests.items() if digest in of_digests}
        return dict(_measured(({ref: values[ref] for ref in found if ref in values} | of_rows).items()))


def _ref_text(raw: str) -> str:
    return f"if(startsWith({raw}, '\"'), JSONExtractString({raw}), '')"


def _measured(pairs: Iterable[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """The pairs; raises InvalidRequest once they hold too much to be sent with a statement."""
    size = 0
    for key, value in pairs:
        size += len(key) + len(value)
        if size > _MAX_BYTES:
            raise InvalidRequest("The query is too complex: what its feedback fields or refs lead to exceeds 24 MiB")
        yield key, value


class ClickhouseSelection(Selection):
    """WITH, WHERE and ORDER BY of a calls query."""

    def __init__(self, table: ClickhouseCallTable, where: list[str]) -> None:
        super().__init__(table, where)
        self.bound = table.bound

    @property
    def is_walked(self) -> bool:
        """Whether its first calls by time are near its begin: it asks for nothing but what many calls have."""
        query = self.table.query
        has_others = replace(query.filter, op_names=None, user_ids=None, roots_only=False) != Filter()
        is_plain = query.query is None and query.cost is None and query.used is None
        return bool(self.keyset) and is_plain and not has_others

    def head(self) -> str:
        """The tables and definitions of the statement."""
        return self.bound.with_clause()

    def source(self) -> str:
        return "calls AS c FINAL"


async def select(
    clickhouse: Clickhouse, control: Executor, query: CallsQuery, paths: Sequence[str] = ()
) -> ClickhouseSelection:
    """Compile a query, with what it (and further `paths`) needs of the control tables.

    Raises InvalidField for a field that calls lack.
    """
    asked = (
        *paths,
        *(fields(query.query) if query.query is not None else ()),
        *(term.field for term in query.sort or ()),
    )
    items = [resolve_field(path) for path in asked]
    bound = Bound()
    table = ClickhouseCallTable(query, bound)
    selection = ClickhouseSelection(table, [f"c.project = {bound.value(query.project)}", "c.deleted_at = 0"])
    selection.where.extend(table.filter(query.filter))
    if query.filter.call_ids:
        # The instants at which calls started: how the table of calls finds them quickly.
        ids = f"project = {bound.value(query.project)} AND id IN {bound.values(query.filter.call_ids)}"
        selection.where.append(f"c.started_at IN (SELECT started_at FROM call_keys WHERE {ids})")
    await table.look_up(clickhouse, control, items, selection.where)
    if query.query is not None:
        about: dict[Search, list[str]] = {}
        for node in searches(query.query):
            about[node] = await control.read(partial(feedback_calls, node=node, project=query.project))

        def search(node: Search) -> str:
            return condition(node, bound, query.project, about[node])

        selection.where.append(Compiler(table.dialect, table.resolve, search=search).condition(query.query))
    if query.used is not None:
        used = f"has(c.usage_model, {bound.value(query.used)})" if query.used else HAS_USAGE
        selection.where.append(f"{used} AND {counted(around(f'project = {bound.value(query.project)}'))}")
    if query.cost is not None:
        selection.where.append(await _cost_condition(clickhouse, selection, query.cost))
    selection.sort(query.sort)
    selection.order = selection.order or ["c.inserted_at", "c.id"]
    return selection


async def _cost_condition(clickhouse: Clickhouse, selection: ClickhouseSelection, test: CostTest) -> str:
    """The SQL of a test on the dollars of a call: its usage, priced by a function of the caller."""
    found = await clickhouse.rows(selection.sql(_PRICED, HAS_USAGE, order=False), selection.bound.parameters)
    spans = {row[1] for row in found if row[3]}
    outer = await clickhouse.read(lambda client: outer_spans(client, selection.table.project, spans))
    passing_free = passes(test, 0.0)
    unlike = [row[0] for row in found if passes(test, _dollars(test, row, outer)) is not passing_free]
    if not unlike:
        return "1" if passing_free else "0"
    return f"c.id {'NOT IN' if passing_free else 'IN'} {selection.bound.values(unlike)}"


def passes(test: CostTest, dollars: float) -> bool:
    """Whether a cost is what the test wants."""
    compare: Callable[[float, float], bool] = getattr(operator, _COMPARED[test.op])
    return compare(dollars, test.dollars)


def _dollars(test: CostTest, row: Row, outer: set[str]) -> float:
    if row[3] and row[0] in outer:
        return 0.0
    costs = (test.price(entry, row[2]) for entry in usage_of(row[_PRICED_HEAD:]))
    return sum(cost for cost in costs if cost is not None)
