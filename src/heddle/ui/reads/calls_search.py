"""What a text search found, as the list of calls shows it: where the texts are, and which calls are most about them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallRow, CallsQuery, Filter, SortTerm
from heddle.wire.query import Operation, Search, searches
from heddle.wire.search import TextSearch, excerpt, parse_search, score, searched

MOST_SCORED = 500
"""Relevance orders the newest so many hits."""
_MOST_OF_TRACES = 2000
_MOST_LEAVES = 2000
_BODIES = frozenset({"inputs", "attributes", "output", "exception"})
_WEIGHTS = {"name": 3.0, "exception": 2.0, "output": 1.0, "inputs": 1.0, "attributes": 0.5, "feedback": 1.0}
NEWEST_FIRST = (SortTerm("started_at", True), SortTerm("id", True))

Feedback = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a call holds what was asked: the path of a field, and plain text and hits of it in turn."""

    call: str
    field: str
    parts: tuple[str, ...]
    score: float

    def shown(self, call: CallRow) -> dict[str, Any]:
        """As the page gets it; another call of the trace is named."""
        return {"field": self.field, "parts": self.parts, "call": None if self.call == call.id else self.call}


def search_in(query: Operation | None) -> Search | None:
    """The first text search of a query."""
    return None if query is None else next(searches(query), None)


async def find_hits(
    store: Store, project: str, node: Search, calls: Sequence[tuple[CallRow, Feedback]]
) -> dict[str, Hit]:
    """The best hit of each call, or of any call of its trace where that is what was asked, by the id of the call."""
    asked = parse_search(node.text)
    if not node.any_of_trace:
        found = await asyncio.to_thread(lambda: [_hit(asked, call, feedback) for call, feedback in calls])
        return {hit.call: hit for hit in found}
    traces = tuple({call.trace_id for call, _ in calls})
    if not traces:
        return {}
    query = CallsQuery(
        project,
        Filter(trace_ids=traces),
        Search(node.text),
        NEWEST_FIRST,
        _MOST_OF_TRACES,
        columns=_BODIES,
        shortened=True,
    )
    best: dict[str, Hit] = {}
    async for slice_ in store.calls.stream(query):
        for call in slice_:
            hit = await asyncio.to_thread(_hit, asked, call, ())
            if call.trace_id not in best or hit.score > best[call.trace_id].score:
                best[call.trace_id] = hit
    return {call.id: best[call.trace_id] for call, _ in calls if call.trace_id in best}


def _hit(asked: TextSearch, call: CallRow, feedback: Feedback) -> Hit:
    texts = {
        "name": searched((refs.operation_name(call.op_name), call.display_name), ()),
        "exception": searched((call.exception,), ()),
        **{name: searched((), (getattr(call, name),)) for name in ("output", "inputs", "attributes")},
        "feedback": searched((), [orjson.dumps(row["payload"]).decode() for row in feedback]),
    }
    total = score(asked, [(texts[name], weight) for name, weight in _WEIGHTS.items()])
    best: tuple[str, tuple[str, ...]] = ("", ())
    most = 0
    for path, text in _leaves(call, feedback):
        held = sum(1 for term in asked.terms if next(term.spans(text.lower()), None) is not None)
        if held > most or (not most and not best[1] and excerpt(asked, text) is not None):
            found = excerpt(asked, text)
            best, most = (path, found.parts if found else ()), held
        if most == len(asked.terms):
            break
    return Hit(call.id, *best, total)


def _leaves(call: CallRow, feedback: Feedback) -> Iterator[tuple[str, str]]:
    """The texts of a call with their paths, those first that tell most."""
    yield "exception", call.exception or ""
    for name in ("output", "inputs"):
        yield from _texts_in(getattr(call, name), name)
    yield "name", call.display_name or ""
    yield "op", refs.operation_name(call.op_name)
    yield from _texts_in(call.attributes, "attributes")
    for row in feedback:
        yield from _texts_in(orjson.dumps(row["payload"]).decode(), "feedback")


def _texts_in(document: str | None, name: str) -> Iterator[tuple[str, str]]:
    """The texts, numbers and keys of a JSON document, as far as they are few."""
    pending: list[tuple[str, Any]] = [(name, None if document is None else orjson.loads(document))]
    for _ in range(_MOST_LEAVES):
        if not pending:
            return
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += reversed([(f"{path}.{key}", item) for key, item in value.items()])
            if value:
                yield path, " ".join(value)
        elif isinstance(value, list):
            pending += reversed([(f"{path}.{index}", item) for index, item in enumerate(value)])
        elif value is not None:
            yield path, value if isinstance(value, str) else orjson.dumps(value).decode()
