"""Failed calls in groups: those of one op whose exception has the same type, message template and innermost frame."""

from dataclasses import replace
from typing import Any, Literal

from fastapi import Request, Response
from pydantic import Field as Checked

from heddle.http.routing import PricesDep, Reader, StoreDep, answer, group
from heddle.ui.reads.calls import Chosen, compress, join_conditions, query_of
from heddle.wire import times
from heddle.wire.aggregates import CallAggregate, Measure, Value
from heddle.wire.call_summary import CallError, read_error
from heddle.wire.calls import CallsQuery, Filter, UniformRun
from heddle.wire.query import Compare, Field, In
from heddle.wire.query import Literal as Constant

router = group("Pages")
ERROR_GROUP = "error_group"
_FAILED = Compare("gt", Field(ERROR_GROUP), Constant(""))
_KEYS = ("name", ERROR_GROUP)
_BUCKETS = 24
_MEASURES = (
    Measure("calls"),
    Measure("traces", "count_distinct", Value("trace_id")),
    Measure("users", "count_distinct", Value("user")),
    Measure("first", "min", Value("started_at")),
    Measure("last", "max", Value("started_at")),
    Measure("newest", "newest"),
)


class ErrorsReq(Chosen):
    """Which calls, and which groups come first: those with most calls, the last seen, or those first seen last."""

    sort: Literal["calls", "last", "first"] = "calls"
    limit: int = Checked(default=50, ge=1, le=500)


@router.post("/_ui/api/errors", include_in_schema=False)
async def errors(body: ErrorsReq, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """The groups with their counts, trend (calls in equal parts of the time), instants, and the newest call of each."""
    chosen = await query_of(store, prices, caller, body)
    query = replace(chosen, query=join_conditions([chosen.query, _FAILED]))
    found = await store.call_aggregates.aggregate(
        CallAggregate(query, _MEASURES, _KEYS, order=body.sort, most=body.limit + 1)
    )
    more, found = len(found) > body.limit, found[: body.limit]
    if not found:
        return compress(request, answer({"groups": [], "more": False, "start": None, "step": None}))
    start = min(row.values["first"] for row in found) if body.start is None else round(body.start * times.SECOND)
    end = times.now() if body.end is None else round(body.end * times.SECOND)
    width = max(1, -(-(max(end, max(row.values["last"] for row in found) + 1) - start) // _BUCKETS))
    run = UniformRun(0, start, width, start, start + _BUCKETS * width)
    groups = In(Field(ERROR_GROUP), tuple(Constant(row.keys[1]) for row in found))
    shown = replace(query, query=join_conditions([query.query, groups]))
    trend: dict[tuple[Any, ...], list[int]] = {row.keys: [0] * _BUCKETS for row in found}
    for row in await store.call_aggregates.aggregate(CallAggregate(shown, _MEASURES[:1], _KEYS, [run])):
        if row.keys in trend:
            trend[row.keys][row.bucket] = row.values["calls"]
    newest = {row.values["newest"]: row for row in found}
    ids = Filter(call_ids=tuple(newest))
    told: dict[str, tuple[str, CallError]] = {}
    async for calls in store.calls.stream(CallsQuery(query.project, ids, columns=frozenset({"exception"}))):
        told |= {call.id: (call.trace_id, read_error(call.exception or "")) for call in calls}
    rows = [
        {
            "op": row.keys[0],
            "group": row.keys[1],
            "calls": row.values["calls"],
            "traces": row.values["traces"],
            "users": row.values["users"],
            "first": row.values["first"] / times.SECOND,
            "last": row.values["last"] / times.SECOND,
            "trend": trend[row.keys],
            "newest": {"id": call_id, "trace": told[call_id][0]},
            "type": told[call_id][1].type,
            "message": told[call_id][1].template,
            "frame": told[call_id][1].frame,
        }
        for call_id, row in newest.items()
        if call_id in told
    ]
    step = width / times.SECOND
    return compress(request, answer({"groups": rows, "more": more, "start": start / times.SECOND, "step": step}))
