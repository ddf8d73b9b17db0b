"""The list of calls: a page of rows with previews, counts over time, and what there is to filter and to show."""

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request, Response

from heddle.http import PricesDep, Reader, RequestModel, StoreDep, answer, group
from heddle.store.base import Store
from heddle.ui.reads import calls_row
from heddle.ui.reads.calls_bars import bars
from heddle.ui.reads.calls_query import Chosen, Listed, page_of, query_of
from heddle.wire import refs
from heddle.wire.calls import CallRow, CallsQuery, SortTerm
from heddle.wire.query import split_path

router = group("Pages")

_COLUMNS = ("inputs", "output", "summary", "attributes")
_BODIES = frozenset({"inputs", "attributes", "output", "summary", "exception"})
_MOST_OPS = 300
_SAMPLE = 200
_PATH_LEVELS = 3
_MOST_PATHS = 400

WithFeedback = tuple[CallRow, Sequence[Mapping[str, Any]]]


class FacetsReq(RequestModel):
    """The project whose facets are asked for."""

    project_id: str


@router.post("/_ui/api/calls", include_in_schema=False)
async def calls(body: Listed, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """A page: rows in order, and whether there are more before and after it."""
    query = page_of(await query_of(store, prices, caller, body), body)
    cost = await prices(query.project)
    paths = [split_path(column) for column in body.columns]
    rows: list[dict[str, Any]] = []
    async for slice_ in _read(store, query):
        # Payloads of a megabyte each take their time.
        rows += await asyncio.to_thread(
            lambda part: [calls_row.row(call, cost, paths, given) for call, given in part], slice_
        )
    more, rows = len(rows) > body.limit, rows[: body.limit]
    if body.before:
        rows.reverse()
    newer = more if body.before else bool(body.after)
    shown = {"rows": calls_row.by_columns(rows), "newer": newer, "older": more or bool(body.before)}
    return _packed(request, answer(shown))


@router.post("/_ui/api/calls/summary", include_in_schema=False)
async def summary(body: Chosen, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """How many calls are selected, how many of them failed, and how they lie in time."""
    query = await query_of(store, prices, caller, body, timed=False)
    return _packed(request, answer(await bars(store, query, body.start, body.end)))


@router.post("/_ui/api/calls/facets", include_in_schema=False)
async def facets(body: FacetsReq, request: Request, caller: Reader, store: StoreDep) -> Response:
    """The ops of the project, and what its newest calls hold: users, threads, models, kinds, paths of their values."""
    project = caller.open(body.project_id)
    ops: Counter[str] = Counter()
    for op in await store.call_counts.ops(project, _MOST_OPS):
        ops[refs.operation_name(op.op_name)] += op.calls
    query = CallsQuery(project, sort=(SortTerm("started_at", True), SortTerm("id", True)), limit=_SAMPLE)
    sample = Sample()
    async for slice_ in _read(store, query):
        await asyncio.to_thread(sample.take, slice_)
    return _packed(request, answer({"ops": ops.most_common(), **sample.shown()}))


async def _read(store: Store, query: CallsQuery) -> AsyncIterator[list[WithFeedback]]:
    """Calls with their feedback, so that only one slice of payloads is held."""
    wanted = replace(query, columns=_BODIES, shortened=True)
    async for slice_ in store.calls.stream(wanted):
        targets = [refs.call_ref(query.project, call.id) for call in slice_]
        feedback = await store.feedback.for_refs(query.project, targets)
        yield [(call, feedback.get(target, [])) for call, target in zip(slice_, targets, strict=True)]


class Sample:
    """What some calls hold."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._threads: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._paths: Counter[str] = Counter()
        self._scores: set[str] = set()

    def take(self, calls: Sequence[WithFeedback]) -> None:
        """Count more calls."""
        for call, feedback in calls:
            self._users.update([call.user] if call.user else [])
            self._threads.update([call.thread_id] if call.thread_id else [])
            self._models.update(model for model in calls_row.models_of(call) if model)
            self._scores.update(calls_row.scores_of(feedback))
            for column in _COLUMNS:
                text = getattr(call, column)
                if text is not None:
                    self._paths.update(_paths_in(orjson.loads(text), column, _PATH_LEVELS))

    def shown(self) -> dict[str, list[str]]:
        """What the page offers, the most frequent first."""
        names = {"users": self._users, "threads": self._threads, "models": self._models}
        paths = sorted(
            (path for path, _ in self._paths.most_common(_MOST_PATHS)),
            key=lambda path: _COLUMNS.index(path.split(".")[0]),
        )
        found = {name: [value for value, _ in counts.most_common(50)] for name, counts in names.items()}
        return found | {"paths": paths + [f"scores.{_escaped(name)}" for name in sorted(self._scores)]}


def _paths_in(value: Any, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, dict) and levels:
        for name, item in list(value.items())[:50]:
            yield from _paths_in(item, f"{path}.{_escaped(name)}", levels - 1)
    elif value is not None:
        yield path


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")


def _packed(request: Request, response: Response) -> Response:
    """The same, compressed where the browser takes it."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        response.body = gzip.compress(bytes(response.body), 6)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    response.headers["Cache-Control"] = "no-store"
    return response
