"""Tools that open one trace and one call: the summary first, then as much of a value as is asked for."""

from collections import defaultdict
from typing import Annotated

from pydantic import Field

from heddle.errors import HeddleError
from heddle.mcp.text import bounded, cut, headline, inside, part
from heddle.remote import Project
from heddle.wire.jsontypes import Json

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
        raise HeddleError(f"no trace and no call has the id {id!r} in {project.id}")
    known = {call["id"] for call in calls}
    by_parent: dict[str | None, list[Json]] = defaultdict(list)
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
    return bounded(lines)


def _calls(project: Project, trace: str) -> list[Json]:
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


def _tree(root: Json, by_parent: dict[str | None, list[Json]], depth: int, most: int) -> list[str]:
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
        raise HeddleError(f"no call has the id {id!r} in {project.id}")
    if path:
        return f"{path} of {id}:\n{part(inside(found[0], path), offset, max_characters)}"
    return bounded(_overview(found[0]))


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
        lines.append(f"exception:\n{part(call['exception'], max(0, len(call['exception']) - 3000), 3000)}")
    for item in feedback[:20]:
        lines.append(f"feedback {item['feedback_type']} by {item.get('creator')}: {cut(item['payload'], 300)}")
    if len(feedback) > 20:
        lines.append(f"[{len(feedback) - 20} more feedback: path='summary.weave.feedback' shows all]")
    return lines
