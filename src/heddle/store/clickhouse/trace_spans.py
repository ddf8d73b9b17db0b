"""All calls of one trace as heads: which there are first, then slice by slice what a view of the trace shows."""

from collections.abc import Sequence
from typing import Any

from heddle.store.clickhouse.call_table import IS_SPAN, RID, USAGE, usage_of
from heddle.store.clickhouse.client import Clickhouse, Client, Row, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import outer_spans
from heddle.wire import refs
from heddle.wire.outline import Outline, Span

_LIVE = f"""FROM {CALLS} AS c FINAL
    WHERE c.project = {{project:String}} AND c.trace_id = {{trace:String}} AND c.deleted_at = 0"""
_COUNT = f"SELECT count(), count(c.ended_at) {_LIVE}"
_HEADS = f"""SELECT {RID}, c.id, c.parent_id, {RID.replace("c.id", "c.parent_id")}, c.started_at {_LIVE}
    ORDER BY c.started_at, c.parent_id IS NOT NULL, c.inserted_at, c.id LIMIT {{limit:Int64}}"""
_SLICE = f"{_LIVE} AND c.started_at >= {{first:Int64}} AND c.started_at <= {{last:Int64}} AND {RID} IN "
_SPANS = f"""SELECT {RID}, c.id, c.op_name, c.kind, c.display_name, c.started_at, c.ended_at, c.status, {IS_SPAN},
    {USAGE} {_SLICE}"""


class TraceSpans:
    """Reads traces for views that show every call of them."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def outline(self, project: str, trace_id: str, limit: int, selected: str | None = None) -> Outline:
        """The first `limit` calls of a trace by start; empty for a trace without live calls."""
        parameters = {"project": project, "trace": trace_id, "limit": limit}

        def work(client: Client) -> Outline:
            outline = Outline(project, trace_id)
            outline.total, outline.ended = rows_of(client, _COUNT, parameters)[0]
            outline.fill(rows_of(client, _HEADS, parameters), selected)
            return outline

        return await self._clickhouse.read(work)

    async def spans(self, outline: Outline, start: int, stop: int) -> list[Span | None]:
        """What a slice of the outline shows; None stands for a call that was removed meanwhile."""
        rids = outline.rids[start:stop]
        return await self._clickhouse.read(lambda client: _spans(client, outline, rids, start)) if rids else []


def _spans(client: Client, outline: Outline, rids: Sequence[int], start: int) -> list[Span | None]:
    parameters = _place(outline, start, start + len(rids) - 1)
    rows = {row[0]: row[1:] for row in rows_of(client, _SPANS + listed(rids), parameters)}
    has_spans = any(row[7] and row[8] for row in rows.values())
    outer = outer_spans(client, outline.project, [outline.trace_id]) if has_spans else set()
    return [_span(rows[rid], outer) if rid in rows else None for rid in rids]


def _span(row: Row, outer: set[str]) -> Span:
    call_id, op, kind, display_name, started_at, ended_at, status, is_span, *usage = row
    used = [] if is_span and call_id in outer else usage_of(usage)
    return Span(call_id, refs.operation_name(op), kind, display_name, started_at, ended_at, status, used)


def _place(outline: Outline, first: int, last: int) -> dict[str, Any]:
    """What is bound to read the calls between two positions."""
    instants = {"first": outline.starts[first], "last": outline.starts[last]}
    return {"project": outline.project, "trace": outline.trace_id, **instants}
