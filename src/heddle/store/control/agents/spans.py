"""The index of agent spans: one row per span, for filters, groups and sums; messages stay in the calls' dumps.

A span that names no agent or conversation shows those of its trace: the earliest that a span of the trace declares.
The columns hold what is shown; `own` remembers what the span said itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import orjson
import sqlalchemy as sa

from heddle.store.control.agents.aggregates import AgentAggregates
from heddle.store.control.agents.reads import AgentReads
from heddle.store.control.agents.table import (
    AGENT,
    CHECKED,
    CUSTOM,
    MORE,
    OWN,
    OWN_AGENT,
    OWN_CONVERSATION,
    TEXTS,
    TOKENS,
    agent_spans,
    agent_traces,
)
from heddle.store.control.repository import Prepared, Upsert
from heddle.store.control.row_queries import Listed
from heddle.wire.batched import group_pairs
from heddle.wire.spans import MODEL_OPERATIONS, AgentSpan

_ROW_BYTES = 600
_Trace = tuple[str, str]
_Place = tuple[str, str, str]
_NOBODY = ("", "", "")

_ROW = ("project", *TEXTS, "started_at", "ended_at", *TOKENS, "more", "custom", "own", "is_counted", "crc")
_TRACE_ROW = (
    *("project", "trace_id", *AGENT, "agent_at", "conversation_id", "conversation_at"),
    *("conversation_name", "has_model"),
    "seen_at",
)
_write_spans = Upsert(agent_spans, _ROW, ("project", "trace_id", "span_id"))
_write_traces = Upsert(agent_traces, _TRACE_ROW, ("project", "trace_id"))
_read_traces = Prepared(
    sa.select(agent_traces.c.trace_id, *(agent_traces.c[name] for name in _TRACE_ROW[2:-1])).where(
        agent_traces.c.project == sa.bindparam("of_project"), Listed(agent_traces.c.trace_id, "traces")
    )
)
_within = sa.and_(
    agent_spans.c.project == sa.bindparam("of_project"), agent_spans.c.trace_id == sa.bindparam("of_trace")
)
_uses_any = sa.and_(
    sa.or_(*(agent_spans.c.operation_name == name for name in MODEL_OPERATIONS)),
    sa.or_(agent_spans.c.input_tokens > 0, agent_spans.c.output_tokens > 0),
)
_read_users = Prepared(
    sa.select(agent_spans.c.span_id).where(_within, Listed(agent_spans.c.span_id, "spans"), _uses_any)
)
_write_repeats = Prepared(
    sa.update(agent_spans)
    .where(_within, Listed(agent_spans.c.parent_span_id, "parents"), agent_spans.c.is_counted == 1)
    .values({"is_counted": 0})
)
_texts = attrgetter(*TEXTS)
_tokens = attrgetter(*TOKENS)
_more = attrgetter(*MORE)
_custom = attrgetter(*CUSTOM)
_AGENT_AT = TEXTS.index("agent_name")
_CONVERSATION_AT = TEXTS.index("conversation_id")
_NAME_AT = TEXTS.index("conversation_name")


class _Identity(NamedTuple):
    """Who acts in a trace, and since when (microseconds) the span that says so runs."""

    agent: tuple[str, str, str] = _NOBODY
    agent_at: int | None = None
    conversation: str = ""
    conversation_at: int | None = None
    conversation_name: str = ""
    has_model: int = 0

    def with_span(self, span: AgentSpan) -> "_Identity":
        """The identity after one more span."""
        found, at = self, span.started_at
        if span.agent_name and (found.agent_at is None or at < found.agent_at):
            agent = (span.agent_name, span.agent_version or "", span.agent_id or "")
            found = found._replace(agent=agent, agent_at=at)
        if span.conversation_id and (found.conversation_at is None or at < found.conversation_at):
            found = found._replace(conversation=span.conversation_id, conversation_at=at)
        if span.conversation_name and not found.conversation_name:
            found = found._replace(conversation_name=span.conversation_name)
        if not found.has_model and _uses_tokens(span):
            found = found._replace(has_model=1)
        return found

    def may_be_taken_back(self, span: AgentSpan) -> bool:
        """True for a span that runs since one declared this, and declares something else."""
        agent = (span.agent_name, span.agent_version or "", span.agent_id or "") if span.agent_name else _NOBODY
        is_other = span.started_at == self.agent_at and agent != self.agent
        return is_other or (
            span.started_at == self.conversation_at and (span.conversation_id or "") != self.conversation
        )


class AgentSpans(AgentReads, AgentAggregates):
    """What can be done with agent spans; projects are internal ids, instants microseconds."""

    async def write(self, spans: Sequence[AgentSpan]) -> None:
        """Store the index rows; a span that is known already takes the new values. Returns after the commit."""
        if spans:
            size = _ROW_BYTES * len(spans)
            await self._executor.write(lambda connection: write(connection, spans), size)


def checksum(row: Mapping[str, Any]) -> int:
    """The `crc` of a row that has all other columns."""
    inherited = {name for name, bit in OWN.items() if not row["own"] & bit}
    said = [str(row[name]) for name in CHECKED if name not in inherited and row[name] is not None]
    return crc32("".join(said).encode())


def hide(connection: sa.Connection, project: str, trace_ids: Iterable[str], span_ids: Sequence[str]) -> None:
    """Take the spans of deleted calls out of every read; writing them again does not bring them back."""
    c = agent_spans.c
    if span_ids:
        # As an expression: an index would be searched for every pair of a trace and a span.
        span_id = sa.func.coalesce(c.span_id, "")
        mine = sa.and_(c.project == project, Listed(c.trace_id, list(trace_ids)), Listed(span_id, span_ids))
        connection.execute(sa.update(agent_spans).where(mine).values({"hidden": 1}))


def purge_older(connection: sa.Connection, project: str, before: int, limit: int) -> int:
    """Remove at most `limit` spans that started before an instant for good; returns how many."""
    c, t = agent_spans.c, agent_traces.c
    oldest = sa.select(c.seq).where(c.project == project, c.started_at < before).limit(limit)
    removed = connection.execute(sa.delete(agent_spans).where(c.seq.in_(oldest))).rowcount
    if removed < limit:
        connection.execute(sa.delete(agent_traces).where(t.project == project, t.seen_at < before))
    return removed


def renew_traces(connection: sa.Connection, project: str, traces: Sequence[str], *, keeps_names: bool = False) -> None:
    """Behind the removal of spans: say of their traces, and of the spans that stay, only what these say themselves.

    Which of them said the name of the conversation is not known; it goes too unless `keeps_names`.
    """
    c, t = agent_spans.c, agent_traces.c
    gone = sa.and_(t.project == project, Listed(t.trace_id, list(traces)))
    said = {row.trace_id: row for row in connection.execute(sa.select(agent_traces).where(gone))}
    connection.execute(sa.delete(agent_traces).where(gone))
    left = sa.select(agent_spans).where(c.project == project, Listed(c.trace_id, list(said)))
    spans: dict[str, list[Any]] = {}
    for row in connection.execute(left.order_by(c.started_at)):
        spans.setdefault(row.trace_id, []).append(row)
    for trace, rows in spans.items():
        before = said[trace]
        name = before.conversation_name if keeps_names else ""
        answered = (row for row in rows if row.operation_name in MODEL_OPERATIONS)
        has_model = int(any(row.input_tokens or row.output_tokens for row in answered))
        found = _Identity(conversation_name=name, has_model=has_model)
        for row in reversed(rows):
            if row.own & OWN_AGENT:
                found = found._replace(agent=tuple(getattr(row, name) for name in AGENT), agent_at=row.started_at)
            if row.own & OWN_CONVERSATION:
                found = found._replace(conversation=row.conversation_id, conversation_at=row.started_at)
        old = _Identity(
            tuple(getattr(before, name) for name in AGENT),
            before.agent_at,
            before.conversation_id,
            before.conversation_at,
            before.conversation_name,
            before.has_model,
        )
        mine = sa.and_(c.project == project, c.trace_id == trace)
        if not keeps_names:
            named = sa.and_(mine, c.conversation_name == before.conversation_name)
            connection.execute(sa.update(agent_spans).where(named).values({"conversation_name": ""}))
        _spread(connection, (project, trace), old._replace(has_model=has_model, conversation_name=name), found)
        newest = max(row.started_at for row in rows)
        _write_traces(connection, [(project, trace, *found.agent, *found[1:], newest)])


def write(connection: sa.Connection, spans: Sequence[AgentSpan]) -> None:
    """`AgentSpans.write` for work that runs on a connection already."""
    newest: dict[_Trace, int] = {}
    for span in spans:
        trace = (span.project, span.trace_id)
        newest[trace] = max(span.started_at, newest.get(trace, span.started_at))
    stored = _stored(connection, newest)
    if taken_back := _take_back(connection, spans, stored):
        others = {trace: identity for trace, identity in stored.items() if trace not in taken_back}
        stored = others | _stored(connection, taken_back)
    known = {trace: stored.get(trace, _Identity()) for trace in newest}
    for span in spans:
        said = span.agent_name or span.conversation_id or span.conversation_name
        if said or span.input_tokens or span.output_tokens:
            trace = (span.project, span.trace_id)
            known[trace] = known[trace].with_span(span)
    users = {(span.project, span.trace_id, span.span_id) for span in spans if _uses_tokens(span)}
    _write_spans(connection, [_row(span, known[span.project, span.trace_id], users) for span in spans])
    for trace in (trace for trace, identity in stored.items() if identity.has_model):
        _recount(connection, trace, [span for span in spans if (span.project, span.trace_id) == trace])
    changed = [trace for trace, identity in known.items() if stored.get(trace) != identity]
    for trace in changed:
        if trace in stored:
            _spread(connection, trace, stored[trace], known[trace])
    _write_traces(connection, [(*trace, *known[trace].agent, *known[trace][1:], newest[trace]) for trace in changed])


def _take_back(
    connection: sa.Connection, spans: Iterable[AgentSpan], stored: Mapping[_Trace, _Identity]
) -> list[_Trace]:
    """Let go of what spans declared for their traces before and declare no more; returns these traces."""
    c, none = agent_spans.c, _Identity()
    doubtful = [span for span in spans if stored.get((span.project, span.trace_id), none).may_be_taken_back(span)]
    found: list[_Trace] = []
    for trace, ids in group_pairs(((span.project, span.trace_id), span.span_id) for span in doubtful).items():
        declared = sa.and_(c.project == trace[0], c.trace_id == trace[1], Listed(c.span_id, ids))
        declared = sa.and_(declared, c.own > 0, c.hidden == 0)
        if connection.execute(sa.delete(agent_spans).where(declared)).rowcount:
            renew_traces(connection, trace[0], [trace[1]], keeps_names=True)
            found.append(trace)
    return found


def _stored(connection: sa.Connection, traces: Iterable[_Trace]) -> dict[_Trace, _Identity]:
    """What is known of the traces already; a trace without any row is left out."""
    found: dict[_Trace, _Identity] = {}
    for project, trace_ids in group_pairs(traces).items():
        for row in _read_traces(connection, of_project=project, traces=trace_ids):
            found[project, row[0]] = _Identity((row[1], row[2], row[3]), *row[4:])
    return found


def _spread(connection: sa.Connection, trace: _Trace, before: _Identity, now: _Identity) -> None:
    """Give the earlier spans of a trace the identity that a later written one declares."""
    c = agent_spans.c
    mine = sa.and_(c.project == trace[0], c.trace_id == trace[1])
    if before.agent != now.agent:
        values = dict(zip(AGENT, now.agent, strict=True))
        connection.execute(sa.update(agent_spans).where(mine, c.own.in_((0, OWN_CONVERSATION))).values(values))
    if before.conversation != now.conversation:
        values = {"conversation_id": now.conversation}
        connection.execute(sa.update(agent_spans).where(mine, c.own.in_((0, OWN_AGENT))).values(values))
    if before.conversation_name != now.conversation_name:
        values = {"conversation_name": now.conversation_name}
        connection.execute(sa.update(agent_spans).where(mine, c.conversation_name == "").values(values))
    if before.has_model != now.has_model:
        others = c.operation_name.not_in(MODEL_OPERATIONS)
        connection.execute(sa.update(agent_spans).where(mine, others).values({"is_counted": 0}))


def _uses_tokens(span: AgentSpan) -> bool:
    """True for a span of a model that reports tokens."""
    return span.operation_name in MODEL_OPERATIONS and bool(span.input_tokens or span.output_tokens)


def _recount(connection: sa.Connection, trace: _Trace, spans: Sequence[AgentSpan]) -> None:
    """Of spans of models within each other only the outermost counts, also where some were written earlier."""
    trace_id = {"of_project": trace[0], "of_trace": trace[1]}
    outer = [span.span_id for span in spans if _uses_tokens(span)]
    above = {span.parent_span_id for span in spans if span.parent_span_id} - {span.span_id for span in spans}
    if above:
        outer += _read_users(connection, **trace_id, spans=sorted(above)).scalars()
    if outer:
        _write_repeats(connection, **trace_id, parents=outer)


def _row(span: AgentSpan, identity: _Identity, users: set[_Place]) -> tuple[Any, ...]:
    texts = [text or "" for text in _texts(span)]
    name = texts.pop(_NAME_AT) or identity.conversation_name
    if not span.agent_name:
        texts[_AGENT_AT : _AGENT_AT + len(AGENT)] = _NOBODY
    said = "".join(texts)
    own = 0
    if span.agent_name:
        own |= OWN_AGENT
    else:
        texts[_AGENT_AT : _AGENT_AT + len(AGENT)] = identity.agent
    if span.conversation_id:
        own |= OWN_CONVERSATION
    else:
        texts[_CONVERSATION_AT] = identity.conversation
    texts.insert(_NAME_AT, name)
    more, custom = _more(span), _custom(span)
    values = (
        span.started_at,
        span.ended_at,
        *_tokens(span),
        _json(MORE, more) if any(more) or 0 in more else None,
        _json(CUSTOM, custom) if any(custom) else None,
        own,
    )
    counted = "".join([str(value) for value in values if value is not None])
    return (
        span.project,
        *texts,
        *values,
        0 if identity.has_model and _repeats(span, users) else 1,
        crc32(f"{span.project}{said}{counted}".encode()),
    )


def _repeats(span: AgentSpan, users: set[_Place]) -> bool:
    """True for a span whose tokens are those of spans of models below or above it."""
    if span.operation_name not in MODEL_OPERATIONS:
        return True
    return bool(span.parent_span_id) and (span.project, span.trace_id, span.parent_span_id or "") in users


def _json(names: Iterable[str], values: Sequence[Any]) -> str:
    """The values that are said, by name: neither null nor an empty text, list or object."""
    if 0 in values:
        said = {name: value for name, value in zip(names, values, strict=True) if value or value == 0}
    else:
        said = dict(compress(zip(names, values, strict=True), values))
    return orjson.dumps(said).decode()
