"""Feedback about whole traces: it belongs to the outermost call, which may come later than what is said of it."""

from collections.abc import Mapping, Sequence

from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallsQuery, Filter, Start

CREATOR = "langfuse"
"""The creator of feedback that moves to the outermost call of its trace once that is there."""


def waiting_ref(project: str, trace_id: str) -> str:
    """Where feedback about a trace stands until its outermost call comes."""
    return f"{refs.INTERNAL}{project}/agent_turn/{refs.quote_part(trace_id)}"


async def find_roots(store: Store, project: str, trace_ids: Sequence[str]) -> dict[str, str]:
    """The refs of the outermost calls of traces, the earliest of each; traces without one are left out."""
    chosen = Filter(trace_ids=tuple(dict.fromkeys(trace_ids)), roots_only=True)
    found: dict[str, str] = {}
    async for rows in store.calls.stream(CallsQuery(project, chosen, columns=frozenset())):
        for row in rows:
            found.setdefault(row.trace_id, refs.call_ref(project, row.id))
    return found


async def move_to_roots(store: Store, roots: Sequence[Start]) -> None:
    """Move the feedback that waits for any of these outermost calls."""
    moves: dict[str, dict[str, str]] = {}
    for start in roots:
        of_project = moves.setdefault(start.project, {})
        of_project.setdefault(waiting_ref(start.project, start.trace_id), refs.call_ref(start.project, start.id))
    for project, targets in moves.items():
        await move(store, project, targets)


async def move(store: Store, project: str, targets: Mapping[str, str]) -> None:
    """Move waiting feedback to other refs; mostly there is none, and nothing is written."""
    waiting = await store.feedback.targets_of(project, targets, CREATOR)
    if waiting:
        await store.feedback.move(project, {ref: targets[ref] for ref in waiting}, CREATOR)
