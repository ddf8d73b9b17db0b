"""All calls of one trace as heads: which there are first, then slice by slice what a view of the trace shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heddle.store.clickhouse.call_table import IS_SPAN, RID, USAGE, usage_of
from heddle.store.clickhouse.client import Clickhouse, Row, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.sums import member
from heddle.store.clickhouse.usage_repeats import outer_spans
from heddle.wire import refs
from heddle.wire.outline import Outline, Span

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_LIVE = f"""FROM {CALLS} AS c FINAL
    WHERE c.project = {{project:String}} AND c.trace_id = {{trace:String}} AND c.deleted_at = 0"""
_COUNT = f"SELECT count(), count(c.ended_at) {_LIVE}"
_HEADS = f"""SELECT {RID}, c.id, c.parent_id, {RID.replace("c.id", "c.parent_id")}, c.started_at {_LIVE}
    ORDER BY c.started_at, c.parent_id IS NOT NULL, c.inserted_at, c.id LIMIT {{limit:Int64}}"""
_SLICE = f"{_LIVE} AND c.started_at >= {{first:Int64}} AND c.started_at <= {{last:Int64}} AND {RID} IN "
_SPANS = f"""SELECT {RID}, c.id, c.op_name, c.display_name, c.started_at, c.ended_at, c.status, {IS_SPAN},
    {USAGE} {_SLICE}"""
_SAID = f"SELECT c.op_name, c.attributes {_SLICE}"


class TraceSpans:
    """Reads traces for views that show every call of them."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def outline(self, project: str, trace_id: str, limit: int, selected: str | None = None) -> Outline:
        """The first `limit` calls of a trace by start; empty for a trace without live calls."""
        parameters = {"project": project, "trace": trace_id, "limit": limit}

        def work(client: "Client") -> Outline:
            outline = Outline(project, trace_id)
            outline.total, outline.ended = rows_of(client, _COUNT, parameters)[0]
            outline.fill(rows_of(client, _HEADS, parameters), selected)
            return outline

        return await self._clickhouse.read(work)

    async def spans(self, outline: Outline, start: int, stop: int) -> list[Span | None]:
        """What a slice of the outline shows; None stands for a call that was removed meanwhile."""
        rids = outline.rids[start:stop]
        return await self._clickhouse.read(lambda client: _spans(client, outline, rids, start)) if rids else []


def _spans(client: "Client", outline: Outline, rids: Sequence[int], start: int) -> list[Span | None]:
    parameters = _place(outline, start, start + len(rids) - 1)
    rows = {row[0]: row[1:] for row in rows_of(client, _SPANS + listed(rids), parameters)}
    _learn_kinds(client, outline, rows, rids, start)
    has_spans = any(row[6] and row[7] for row in rows.values())
    outer = outer_spans(client, outline.project, [outline.trace_id]) if has_spans else set()
    return [_span(outline, rows[rid], outer) if rid in rows else None for rid in rids]


def _span(outline: Outline, row: Row, outer: set[str]) -> Span:
    call_id, op, display_name, started_at, ended_at, status, is_span, *usage = row
    used = [] if is_span and call_id in outer else usage_of(usage)
    return Span(call_id, refs.operation_name(op), outline.kinds[op], display_name, started_at, ended_at, status, used)


def _learn_kinds(client: "Client", outline: Outline, rows: dict[int, Row], rids: Sequence[int], start: int) -> None:
    """What calls of an op say they are; one of them is asked, as reading every call's attributes takes long."""
    asked: dict[str, int] = {}
    for position, rid in enumerate(rids, start):
        if rid in rows and rows[rid][1] not in outline.kinds:
            asked.setdefault(rows[rid][1], position)
    if asked:
        sql = _SAID + listed(outline.rids[position] for position in asked.values())
        found = rows_of(client, sql, _place(outline, min(asked.values()), max(asked.values())))
        outline.kinds.update(dict.fromkeys(asked) | {op: _kind(attributes) for op, attributes in found})


def _place(outline: Outline, first: int, last: int) -> dict[str, Any]:
    """What is bound to read the calls between two positions."""
    instants = {"first": outline.starts[first], "last": outline.starts[last]}
    return {"project": outline.project, "trace": outline.trace_id, **instants}


def _kind(attributes: str) -> str | None:
    said = member(attributes, "weave", "kind")
    said = member(attributes, "kind") if said is None else said
    return said if isinstance(said, str) else None
