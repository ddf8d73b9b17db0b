"""Tools that find calls, sum what they used, and open one trace or one call."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from heddle.errors import HeddleError
from heddle.mcp.text import cut, cut_part, follow_path, headline, join_lines
from heddle.remote import Project
from heddle.wire.call_summary import Call, cost_of
from heddle.wire.jsontypes import Json

Condition = Json
"""A part of a query as the API takes it."""
_SCANNED = 2_000
"""Calls looked at for a cost, which the API cannot filter by."""
_MOST_DAYS = 31
_AGO = re.compile(r"(\d{1,5})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
Since = Annotated[
    str | None, Field(description="Only calls that started since: '30m', '24h', '7d' ago, or an ISO 8601 time (UTC).")
]
Until = Annotated[str | None, Field(description="Only calls that started before: the same forms as `since`.")]
Status = Literal["success", "error", "descendant_error", "running"]


def parse_time(text: str) -> datetime:
    """The instant that `24h` (ago) or an ISO time means; raises HeddleError."""
    if found := _AGO.fullmatch(text.strip()):
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError:
        raise HeddleError(f"expected a time such as '30m', '24h', '7d' or an ISO 8601 time, got {text!r}") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def find_calls(
    project: Project,
    op: Annotated[str | None, Field(description="Name of the op (function, model call), exactly as shown.")] = None,
    status: Annotated[Status | None, Field(description="How the call ended.")] = None,
    text: Annotated[str | None, Field(description="Text that inputs, output or error contain, any case.")] = None,
    since: Since = None,
    until: Until = None,
    min_latency_ms: Annotated[int | None, Field(description="Only calls that took at least so long.", ge=0)] = None,
    min_cost: Annotated[
        float | None,
        Field(description=f"Only calls of at least so many US dollars, among the {_SCANNED} newest.", ge=0),
    ] = None,
    roots_only: Annotated[bool, Field(description="Only the first call of each trace.")] = False,
    trace_id: Annotated[str | None, Field(description="Only calls of this trace.")] = None,
    thread_id: Annotated[str | None, Field(description="Only calls of this thread (conversation).")] = None,
    limit: Annotated[int, Field(description="How many calls to show.", ge=1, le=100)] = 20,
    offset: Annotated[int, Field(description="How many newer calls to skip.", ge=0)] = 0,
) -> str:
    """Find calls (spans), newest first: one line each with name, status, latency, tokens, cost, id, trace and a glance
    at inputs and output. Then open_trace shows the tree around one, read_call the whole of one."""
    conditions: list[Condition] = [_compared("$gte", "started_at", parse_time(since).timestamp())] if since else []
    if until:
        conditions.append(_compared("$lt", "started_at", parse_time(until).timestamp()))
    if text:
        conditions.append({"$or": [_contains(place, text) for place in ("inputs", "output", "exception")]})
    if status:
        conditions.append(_compared("$eq", "summary.weave.status", status))
    if min_latency_ms is not None:
        conditions.append(_compared("$gte", "summary.weave.latency_ms", min_latency_ms))
    chosen: Json = {
        "filter": {
            "op_names": [op, f"weave:///{project.id}/op/{op}:*"] if op else None,
            "trace_ids": [trace_id] if trace_id else None,
            "thread_ids": [thread_id] if thread_id else None,
            "trace_roots_only": roots_only,
        }
    }
    if conditions:
        chosen["query"] = {"$expr": {"$and": conditions}}
    if min_cost is None:
        total = project.post("/calls/query_stats", **chosen)["count"]
        lines = [_call_line(call) for call in _page(project, chosen, limit, offset)]
    else:
        newest = _page(project, chosen, _SCANNED, 0, columns=["summary"])
        costly = [one["id"] for one in newest if (cost_of(one["summary"]["weave"].get("costs")) or 0.0) >= min_cost]
        total, ids = len(costly), costly[offset : offset + limit]
        lines = [_call_line(call) for call in (_page(project, {"filter": {"call_ids": ids}}, limit, 0) if ids else ())]
    shown = f"calls {offset + 1} to {offset + len(lines)} of {total}" if lines else f"no calls here; {total} in all"
    more = f"; offset={offset + limit} shows more" if offset + len(lines) < total else ""
    return join_lines([f"{shown}, newest first{more}", *lines])


_SHOWN = ["summary", "exception", "display_name", "inputs", "output", "ended_at", "parent_id"]


def _page(project: Project, chosen: Json, limit: int, offset: int, columns: Sequence[str] = _SHOWN) -> Iterator[Call]:
    """Calls, the newest first, one at a time: inputs and outputs may be large."""
    page = {"limit": limit, "offset": offset, "sort_by": [{"field": "started_at", "direction": "desc"}]}
    asked = {"project_id": project.id, **chosen, **page, "columns": columns, "include_costs": True}
    yield from project.remote.lines("/calls/stream_query", asked)


def _call_line(call: Call) -> str:
    trace = "" if call["trace_id"] == call["id"] else f" trace={call['trace_id']}"
    answered = f"\n    output: {cut(call['output'])}" if call.get("output") is not None else ""
    return f"- {call['started_at']} {headline(call)}{trace}\n    inputs: {cut(call['inputs'])}{answered}"


def _compared(operator: str, field: str, value: Any) -> Condition:
    return {operator: [{"$getField": field}, {"$literal": value}]}


def _contains(field: str, text: str) -> Condition:
    return {"$contains": {"input": {"$getField": field}, "substr": {"$literal": text}, "case_insensitive": True}}


def summarize_usage(
    project: Project,
    since: Since = "24h",
    until: Until = None,
    op: Annotated[str | None, Field(description="Only calls of this op, by name.")] = None,
    roots_only: Annotated[
        bool,
        Field(description="Count root calls, which carry the sum of their trace where an SDK wrote it; false: all."),
    ] = True,
) -> str:
    """Calls, errors, latency, tokens and cost by model over a stretch of at most 31 days."""
    start = parse_time(since or "24h")
    end = parse_time(until) if until else datetime.now(UTC)
    if not timedelta() < end - start <= timedelta(days=_MOST_DAYS):
        raise HeddleError(f"the stretch must be above 0 and at most {_MOST_DAYS} days, from {start} to {end} is not")
    names = [op, *_versions(project, op)] if op else None
    answer = project.post(
        "/calls/stats",
        start=start.isoformat(),
        end=end.isoformat(),
        filter={"trace_roots_only": roots_only, "op_names": names},
        usage_metrics=[{"metric": name} for name in ("input_tokens", "output_tokens", "total_cost")],
        call_metrics=[
            {"metric": "call_count"},
            {"metric": "error_count"},
            {"metric": "latency_ms", "aggregations": ["avg", "max"], "percentiles": [50, 95]},
        ],
    )
    what = "root calls" if roots_only else "all calls (a parent may repeat what its children used)"
    head = f"{what} from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    used = _models(answer["usage_buckets"])
    if not used:
        hint = "; roots_only=false looks at the calls below, where OpenTelemetry reports them" if roots_only else ""
        used = [f"no tokens were reported{hint}"]
    return join_lines([head, *used, *_latencies(answer["call_buckets"])])


def _versions(project: Project, op: str) -> list[str]:
    """The refs of every version of an op: this route has no wildcard."""
    found = project.post("/objs/query", filter={"object_ids": [op], "is_op": True}, metadata_only=True, limit=500)
    return [f"weave:///{project.id}/op/{op}:{item['digest']}" for item in found["objs"]]


def _models(buckets: list[Json]) -> list[str]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    names = ("sum_input_tokens", "sum_output_tokens", "sum_total_cost")
    for bucket in buckets:
        found = [bucket.get(name) or 0 for name in names]
        model = bucket.get("model") or "no model"
        sums[model] = [old + new for old, new in zip(sums[model], found, strict=True)]
    rows = [
        f"- {model}: {tokens_in:,.0f} tokens in, {out:,.0f} out, ${cost:.6g}"
        for model, (tokens_in, out, cost) in sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
        if tokens_in or out
    ]
    return ["by model (a model without a price costs $0 here):", *rows] if rows else []


def _latencies(buckets: list[Json]) -> list[str]:
    known = [bucket for bucket in buckets if bucket.get("sum_call_count")]
    calls, errors = (sum(int(bucket.get(f"sum_{name}_count") or 0) for bucket in known) for name in ("call", "error"))
    rows = [
        f"- {bucket['timestamp']}: {int(bucket['sum_call_count'])} calls, {int(bucket['sum_error_count'])} failed, "
        f"latency p50 {bucket.get('p50_latency_ms') or 0:.0f} p95 {bucket.get('p95_latency_ms') or 0:.0f} ms"
        for bucket in known
    ]
    return [f"{calls} calls, {errors} failed; over time:", *rows]


_MOST_CALLS = 5_000
_WHOLE = ("inputs", "output", "attributes", "summary")
_OVERVIEW = 1_500
"""Characters of each part of a call that its overview shows."""


def open_trace(
    project: Project,
    id: Annotated[str, Field(description="A trace id, or the id of any call: the tree below that call is shown.")],
    depth: Annotated[int, Field(description="How many levels to show.", ge=1, le=50)] = 6,
    children: Annotated[
        int, Field(description="How many children of one call to show; failed ones are shown always.", ge=1, le=200)
    ] = 20,
) -> str:
    """Open a trace by its summary: the tree of calls with status, latency, tokens, cost and errors, and a glance at
    what went into the top and came out. read_call shows a whole call."""
    top = project.post("/call/read", id=id)["call"]
    trace = top["trace_id"] if top else id
    calls = _calls(project, trace)
    if not calls:
        raise HeddleError(f"no trace or call with id {id!r} found in {project.id}")
    known = {call["id"] for call in calls}
    by_parent: dict[str | None, list[Call]] = defaultdict(list)
    for call in calls:
        by_parent[call["parent_id"] if call["parent_id"] in known else None].append(call)
    roots = [call for call in calls if call["id"] == id] if top and top["parent_id"] in known else by_parent[None]
    lines = [f"trace {trace}: {len(calls)} calls, {sum(bool(call['exception']) for call in calls)} with an error"]
    if len(calls) == _MOST_CALLS:
        lines.append(
            f"[only its first {_MOST_CALLS:,} calls are looked at; find_calls with trace_id pages through all]"
        )
    for root in roots[:children]:
        lines += [*_tree(root, by_parent, depth, children), *_glance(project, root["id"])]
    if len(roots) > children:
        lines.append(f"[{len(roots) - children} more calls at the top]")
    return join_lines(lines)


def _calls(project: Project, trace: str) -> Sequence[Call]:
    return project.lines(
        "/calls/stream_query",
        filter={"trace_ids": [trace]},
        columns=["summary", "exception", "display_name", "parent_id", "ended_at"],
        include_costs=True,
        limit=_MOST_CALLS,
    )


def _glance(project: Project, call_id: str) -> list[str]:
    call = project.post("/call/read", id=call_id)["call"]
    return [f"  {name} of the top: {cut(call[name], 600)}" for name in ("inputs", "output") if call[name] is not None]


def _tree(root: Call, by_parent: dict[str | None, list[Call]], depth: int, most: int) -> list[str]:
    lines, pending = list[str](), [(0, root)]
    while pending:
        level, call = pending.pop()
        indent = "  " * level
        if "more" in call:
            lines.append(f"{indent}[{call['more']}]")
            continue
        lines.append(f"{indent}- {headline(call)}")
        below = by_parent[call["id"]]
        if below and level + 1 == depth:
            lines.append(f"{indent}  [{len(below)} children: open_trace with id={call['id']} shows them]")
            continue
        shown = [item for place, item in enumerate(below) if place < most or item["exception"]]
        if len(shown) < len(below):
            shown.append({"more": f"{len(below) - len(shown)} more children without an error"})
        pending += [(level + 1, item) for item in reversed(shown)]
    return lines


def read_call(
    project: Project,
    id: Annotated[str, Field(description="The id of the call.")],
    path: Annotated[
        str,
        Field(
            description="What to show whole, as a dotted path: 'output', 'inputs.messages.3.content', 'exception', "
            "'attributes', 'summary.usage'. Empty: an overview of everything."
        ),
    ] = "",
    offset: Annotated[int, Field(description="Where in a long value to begin, in characters.", ge=0)] = 0,
    max_characters: Annotated[int, Field(description="How much of it to show.", ge=100, le=20_000)] = 6_000,
) -> str:
    """Read one call: an overview with inputs, output, error, attributes and feedback, long values cut; or, with `path`,
    one value as long as you like, in stretches."""
    found = project.lines(
        "/calls/stream_query", filter={"call_ids": [id]}, include_costs=True, include_feedback=True, limit=1
    )
    if not found:
        raise HeddleError(f"no call with id {id!r} found in {project.id}")
    if path:
        return f"{cut(path)} of {id}:\n{cut_part(follow_path(found[0], path), offset, max_characters)}"
    return join_lines(_overview(found[0]))


def _overview(call: Json) -> list[str]:
    feedback = call["summary"]["weave"].pop("feedback", None) or []
    ended = call["ended_at"] or "still running"
    lines = [
        headline(call),
        f"op: {call['op_name']}",
        f"started {call['started_at']}, ended {ended}, by {call['wb_user_id']}",
        f"trace={call['trace_id']} parent={call['parent_id']} thread={call['thread_id']}",
    ]
    lines += [f"{name}: {cut(call[name], _OVERVIEW)}" for name in _WHOLE if call[name] not in (None, {})]
    if call["exception"]:
        lines.append(f"exception:\n{cut_part(call['exception'], max(0, len(call['exception']) - 3000), 3000)}")
    for item in feedback[:20]:
        lines.append(f"feedback {item['feedback_type']} by {item.get('creator')}: {cut(item['payload'], 300)}")
    if len(feedback) > 20:
        lines.append(f"[{len(feedback) - 20} more feedback: path='summary.weave.feedback' shows all]")
    return lines
