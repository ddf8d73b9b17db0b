"""Reads of the index of agent spans: pages of spans, custom attributes, conversations, traces."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidField
from heddle.store.control.agents.aggregates import STREAMED
from heddle.store.control.agents.fields import COSTS, MODEL, Fields, Prices, SpanFilter
from heddle.store.control.agents.table import CUSTOM, EVALUATED, OWN_AGENT, SHOWN, TEXTS, TOKENS, agent_spans
from heddle.store.control.repository import Repository, reads
from heddle.store.control.row_queries import CodePoints, Expression, Listed, Sort
from heddle.store.query.compiler import Kind
from heddle.wire.batched import group_pairs

Row = dict[str, Any]
_c = agent_spans.c
_COLUMNS = ("seq", *TEXTS, "started_at", "ended_at", *TOKENS, "more", "custom", "own")

_OF_MORE = ("status_message", "tool_call_id", "wb_user_id")


@dataclass(frozen=True, slots=True)
class SpansRequest:
    """A page of spans; `prices` None leaves costs out. The newest spans come first unless `sort` says otherwise."""

    filter: SpanFilter
    sort: Sequence[Sort] = ()
    limit: int = 100
    offset: int = 0
    prices: Prices | None = None


class Node(NamedTuple):
    """What the order of a trace needs of a span: its place in the tree, what it did, what it used."""

    span_id: str
    trace_id: str
    parent_span_id: str
    operation_name: str
    span_name: str
    started_at: int
    ended_at: int
    model: str
    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    agent_name: str
    agent_version: str
    agent_id: str
    provider_name: str
    status_code: str
    error_type: str
    tool_name: str
    own: int
    is_counted: int
    status_message: str
    tool_call_id: str
    wb_user_id: str

    @property
    def own_agent(self) -> str:
        """The agent that the span itself names, empty when it names none."""
        return (self.agent_name or self.agent_id) if self.own & OWN_AGENT else ""


class AgentReads(Repository):
    """What can be asked about agent spans; projects are internal ids, instants microseconds."""

    @reads
    def models(self, connection: sa.Connection, selected: SpanFilter) -> list[str]:
        """The different models whose tokens the spans of a filter used."""
        statement = sa.select(MODEL).where(selected.compile(Fields()), MODEL != "").distinct()
        return list(connection.execute(statement).scalars())

    @reads
    def page(self, connection: sa.Connection, request: SpansRequest) -> tuple[list[Row], int]:
        """The spans of a page as rows of columns, and how many match before limit and offset."""
        fields = Fields(request.prices or ())
        condition = request.filter.compile(fields)
        columns: list[Any] = [_c[name] for name in _COLUMNS]
        if request.prices is not None:
            columns += [fields.derived(name).expression.label(name) for name in COSTS]
        statement = sa.select(*columns).where(condition).order_by(*_ordering(fields, request.sort))
        statement = statement.limit(request.limit).offset(request.offset)
        rows = [dict(row._mapping) for row in connection.execute(statement)] if request.limit else []
        if len(rows) < request.limit and (rows or not request.offset):
            return rows, request.offset + len(rows)
        count = sa.select(sa.func.count()).select_from(agent_spans).where(condition)
        return rows, int(connection.execute(count).scalar_one())

    @reads
    def attributes(self, connection: sa.Connection, selected: SpanFilter) -> Counter[tuple[str, str]]:
        """How many spans have each custom attribute, by (map, key)."""
        statement = sa.select(_c.custom).where(selected.compile(Fields()), _c.custom.is_not(None))
        found: Counter[tuple[str, str]] = Counter()
        for (text,) in connection.execute(statement, execution_options={"yield_per": STREAMED}):
            found.update((source, key) for source, values in orjson.loads(text).items() for key in values)
        return found

    @reads
    def turns(
        self, connection: sa.Connection, project: str, conversation_id: str, after: int | None, limit: int, offset: int
    ) -> tuple[list[str], int]:
        """The traces of a conversation, oldest first within the page, `offset` of the newest left out; and how many."""
        mine = SpanFilter(project, after=after, conditions=(_c.conversation_id == conversation_id,)).compile(Fields())
        started = sa.func.min(_c.started_at)
        by_trace = sa.select(_c.trace_id).where(mine).group_by(_c.trace_id)
        page = by_trace.order_by(started.desc(), _c.trace_id.desc()).limit(limit).offset(offset)
        count = sa.select(sa.func.count(sa.distinct(_c.trace_id))).where(mine)
        traces = list(connection.execute(page).scalars())
        return traces[::-1], int(connection.execute(count).scalar_one())

    @reads
    def nodes(
        self, connection: sa.Connection, project: str, trace_ids: Sequence[str], after: int | None
    ) -> dict[str, list[Node]]:
        """All spans of some traces; in each the first started first, of equals the last ended."""
        mine = SpanFilter(project, after=after, conditions=(_c.trace_id.in_(trace_ids),)).compile(Fields())
        columns = [
            MODEL.label("model") if name == "model" else _c[name] for name in Node._fields if name not in _OF_MORE
        ]
        statement = sa.select(_c.more, *columns).where(mine).order_by(_c.started_at, _c.ended_at.desc(), _c.span_id)
        found: dict[str, list[Node]] = {trace_id: [] for trace_id in trace_ids}
        for text, *values in connection.execute(statement):
            more = orjson.loads(text) if text else {}
            node = Node(*values, *(more.get(name, "") for name in _OF_MORE))
            found[node.trace_id].append(node)
        return found

    @reads
    def conversations(
        self, connection: sa.Connection, selected: SpanFilter, conversation_ids: Sequence[str], most: int
    ) -> dict[str, list[Row]]:
        """The newest `most` spans of each conversation, oldest first; conversations without any are left out."""
        names = ("conversation_id", "operation_name", "trace_id", "span_id", "status_code", "started_at", "ended_at")
        newest = (_c.started_at.desc(), _c.span_id.desc())
        ranked = _ranked(selected, conversation_ids, names, newest)
        statement = sa.select(*[ranked.c[name] for name in names]).where(ranked.c.rank <= most)
        rows = connection.execute(statement.order_by(ranked.c.started_at, ranked.c.span_id))
        return group_pairs((row.conversation_id, dict(row._mapping)) for row in rows)

    @reads
    def ranked(
        self, connection: sa.Connection, selected: SpanFilter, conversation_ids: Sequence[str], rank: int, last: bool
    ) -> list[tuple[str, str]]:
        """The span at a rank of each conversation, counted from its first start or its last end: (conversation, id)."""
        order = (_c.ended_at.desc(), _c.seq.desc()) if last else (_c.started_at, _c.seq)
        ranked = _ranked(selected, conversation_ids, ("conversation_id", "span_id"), order)
        statement = sa.select(ranked.c.conversation_id, ranked.c.span_id).where(ranked.c.rank == rank)
        return [(row[0], row[1]) for row in connection.execute(statement)]

    @reads
    def of_evaluated(
        self, connection: sa.Connection, project: str, call_ids: Sequence[str]
    ) -> dict[str, list[tuple[str, str]]]:
        """The spans (trace id, span id) that say they belong to predict_and_score calls, by call id, oldest first."""
        mine = sa.and_(_c.project == project, SHOWN, EVALUATED, Listed(_c.eval_predict_and_score_call_id, call_ids))
        statement = sa.select(_c.eval_predict_and_score_call_id, _c.trace_id, _c.span_id).where(mine)
        rows = connection.execute(statement.order_by(_c.started_at, _c.seq))
        return group_pairs((call_id, (trace_id, span_id)) for call_id, trace_id, span_id in rows)

    @reads
    def newest(
        self, connection: sa.Connection, selected: SpanFilter, before: tuple[int, int] | None, limit: int
    ) -> list[Row]:
        """Spans from the newest on, behind a position (started_at, seq); what search needs to know of each."""
        names = ("seq", "started_at", "span_id", "trace_id", "conversation_id", "conversation_name", "agent_name")
        tests = [selected.compile(Fields())]
        if before is not None:
            started_at, seq = before
            behind = sa.or_(_c.started_at < started_at, sa.and_(_c.started_at == started_at, _c.seq < seq))
            tests.append(sa.and_(_c.started_at <= started_at, behind))
        statement = sa.select(*[_c[name] for name in names]).where(*tests)
        statement = statement.order_by(_c.started_at.desc(), _c.seq.desc()).limit(limit)
        return [dict(row._mapping) for row in connection.execute(statement)]


def _ranked(
    selected: SpanFilter, conversation_ids: Sequence[str], names: Sequence[str], order: Sequence[Expression]
) -> sa.Subquery:
    """Spans of conversations with their rank in each."""
    rank = sa.func.row_number().over(partition_by=_c.conversation_id, order_by=order).label("rank")
    mine = sa.and_(selected.compile(Fields()), Listed(_c.conversation_id, conversation_ids))
    return sa.select(*[_c[name] for name in names], rank).where(mine).subquery()


def _ordering(fields: Fields, sort: Sequence[Sort]) -> list[Expression]:
    terms: list[Expression] = []
    for term in sort:
        if term.field.partition(".")[0] in CUSTOM and "." not in term.field:
            raise InvalidField(f"{term.field} requires a key: {term.field}.<key>")
        value = fields.operand(term.field)
        expression = CodePoints(value.expression) if value.kind is Kind.TEXT else value.expression
        terms.append((sa.desc(expression) if term.descending else sa.asc(expression)).nulls_last())
    newest_first = not sort or sort[-1].descending
    return [*terms, *((_c.started_at.desc(), _c.seq.desc()) if newest_first else (_c.started_at, _c.seq))]
