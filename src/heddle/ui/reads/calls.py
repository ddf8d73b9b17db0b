"""The list of calls: a page of rows with previews, counts over time, and what there is to filter and to show."""

import asyncio
import gzip
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple
from typing import Literal as OneOf

import orjson
from fastapi import Request, Response
from pydantic import Field as Checked

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.routing import PricesDep, Reader, RequestModel, StoreDep, answer, group
from heddle.store.base import Store
from heddle.trace.refs import fill_bodies
from heddle.ui.reads import calls_row
from heddle.ui.reads.calls_row import MOST_SCORED, NEWEST_FIRST, Hit, find_hits, search_in
from heddle.wire import refs, times
from heddle.wire.aggregates import ALL_TIME, CALLS_AND_ERRORS, CallAggregate, cut_run
from heddle.wire.calls import CallConditions, CallRow, CallsQuery, CostOf, CostTest, Filter, SortTerm, UniformRun
from heddle.wire.inference import PricesOf, sum_of_costs
from heddle.wire.query import (
    And,
    Compare,
    Comparison,
    Field,
    In,
    Literal,
    Not,
    Operation,
    Or,
    QueryBody,
    Search,
    split_path,
)

router = group("Pages")

_COLUMNS = ("inputs", "output", "summary", "attributes")
_BODIES = frozenset({"inputs", "attributes", "output", "summary", "exception"})
_SPAN = ["attributes", "otel_span"]
_MOST_BARS = 80
_SHORTEST = 3600 * times.SECOND
_WIDTHS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 364 * 86400),
)
_MOST_OPS = 300
_SAMPLE = 200
_PATH_LEVELS = 3
_MOST_PATHS = 400

WithFeedback = tuple[CallRow, Sequence[Mapping[str, Any]]]
LATENCY = "summary.weave.latency_ms"
MAX_LIMIT = 500
_MAX_ENTRIES = 1000
_PLACE = re.compile(r"(-?[0-9]{1,18})_(.+)", re.DOTALL)
Instant = Annotated[float, Checked(ge=-1e11, le=1e11, allow_inf_nan=False)]


Source = OneOf["user", "evaluation", "training"]
_SOURCES: dict[Source, re.Pattern[str]] = {
    "evaluation": re.compile(r"Evaluation\..+|.+\.(predict_and_score|predictAndScore|score)|heddle\.replay"),
    "training": re.compile(r"heddle\.training_job"),
}
"""The ops of traces that no user of the program made."""


class CostCondition(RequestModel):
    """A test on the dollars of a call."""

    op: OneOf["gt", "gte", "lt", "lte"]
    dollars: float


class Chosen(RequestModel):
    """Which calls; `from` and `to` are seconds since 1970, the end is left out.

    `used` are those whose tokens of a model (empty: of any) count in sums.
    """

    project_id: str
    filter: CallConditions | None = None
    query: QueryBody | None = None
    cost: CostCondition | None = None
    used: str | None = None
    start: Instant | None = Checked(default=None, alias="from")
    end: Instant | None = Checked(default=None, alias="to")
    source: Source | None = None
    """Of roots of traces: what made them; None for all."""


class Listed(Chosen):
    """A page of them; `after` and `before` are keys of rows, `columns` the paths of dynamic columns."""

    sort: OneOf["started_at", "-started_at", "-latency", "relevance"] = "-started_at"
    limit: int = Checked(default=50, ge=1, le=MAX_LIMIT)
    after: str | None = None
    before: str | None = None
    columns: list[str] = Checked(default_factory=list, max_length=40)


@router.post("/_ui/api/calls", include_in_schema=False)
async def calls(body: Listed, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """A page: rows in order, and whether there are more before and after it.

    Of a text search each row has its `hit`, and `unindexed` calls are not found yet.
    """
    chosen = await query_of(store, prices, caller, body)
    search = search_in(chosen.query)
    if body.sort == "relevance":
        return compress(request, answer(await _most_relevant(store, prices, chosen, body, search)))
    query = page_of(chosen, body)
    cost = await prices(query.project)
    paths = [split_path(column) for column in body.columns]
    rows: list[dict[str, Any]] = []
    async for slice_ in _read(store, query, spans=any(path[:2] == _SPAN for path in paths)):
        hits = {} if search is None else await find_hits(store, query.project, search, slice_)
        filled = await fill_bodies(store, query.project, [call for call, _ in slice_])
        # Payloads of a megabyte each take their time.
        rows += await asyncio.to_thread(_rows, slice_, cost, paths, hits, filled)
    more, rows = len(rows) > body.limit, rows[: body.limit]
    if body.before:
        rows.reverse()
    newer = more if body.before else bool(body.after)
    shown: dict[str, Any] = {"rows": calls_row.by_columns(rows), "newer": newer, "older": more or bool(body.before)}
    if search is not None:
        shown["unindexed"] = (await store.calls.search_progress(query.project)).left
    return compress(request, answer(shown))


def _rows(
    calls: Sequence[WithFeedback],
    cost: CostOf,
    paths: Sequence[list[str]],
    hits: Mapping[str, Hit],
    filled: Mapping[str, Any],
) -> list[dict[str, Any]]:
    made = [(call, calls_row.row(call, cost, paths, given, filled.get(call.id))) for call, given in calls]
    return [row | {"hit": hits[call.id].shown(call)} if call.id in hits else row for call, row in made]


async def _most_relevant(
    store: Store, prices: PricesOf, chosen: CallsQuery, body: Listed, search: Search | None
) -> dict[str, Any]:
    """A page of the newest hits in the order of how much they are about the text; a place is a rank."""
    if search is None:
        raise InvalidRequest("Sorting by relevance requires a text search")
    read = _read(store, replace(chosen, sort=NEWEST_FIRST, limit=MOST_SCORED), spans=False)
    calls: list[WithFeedback] = []
    hits: dict[str, Hit] = {}
    async for slice_ in read:
        calls += slice_
        hits |= await find_hits(store, chosen.project, search, slice_)
    calls.sort(key=lambda pair: -hits[pair[0].id].score if pair[0].id in hits else 0.0)
    place = int(_parse_place(LATENCY, body.before or body.after)[0].value or 0) if body.before or body.after else 0  # type: ignore[arg-type]
    first = max(0, place - body.limit if body.before else place)
    paths = [split_path(column) for column in body.columns]
    part = calls[first : first + body.limit]
    filled = await fill_bodies(store, chosen.project, [call for call, _ in part])
    rows = await asyncio.to_thread(_rows, part, await prices(chosen.project), paths, hits, filled)
    ranked = [row | {"rank": rank} for rank, row in enumerate(rows, first)]
    shown = {"rows": calls_row.by_columns(ranked), "newer": first > 0, "older": first + body.limit < len(calls)}
    return shown | {"unindexed": (await store.calls.search_progress(chosen.project)).left}


@router.post("/_ui/api/calls/summary", include_in_schema=False)
async def summary(body: Chosen, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """How many calls are selected, how many of them failed, how they lie in time; with `used` their tokens and cost."""
    query = await query_of(store, prices, caller, body, timed=False)
    shown = await count_by_time(store, query, body.start, body.end)
    if body.used is not None:
        lower = ALL_TIME.lower if body.start is None else round(body.start * times.SECOND)
        upper = ALL_TIME.upper if body.end is None else round(body.end * times.SECOND)
        runs = cut_run(ALL_TIME._replace(lower=lower, upper=upper), await prices.changes(query.project))
        price, found = await prices(query.project), await store.call_aggregates.usage(query, runs)
        counted = [row for row in found if body.used in ("", row.model)]
        tokens = {"prompt": sum(row.prompt for row in counted), "completion": sum(row.completion for row in counted)}
        shown["spent"] = {**tokens, "cost": sum_of_costs(price(row, row.priced_at) for row in counted)}
    return compress(request, answer({**shown, "source_ops": await _ops_of_source(store, query.project, body.source)}))


@router.post("/_ui/api/calls/facets", include_in_schema=False)
async def facets(body: Chosen, request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """The ops of the project, and what the newest selected calls hold: users, threads, models, paths of values."""
    chosen = await query_of(store, prices, caller, body)
    project = chosen.project
    ops: Counter[str] = Counter()
    rows = await store.call_aggregates.aggregate(CallAggregate(CallsQuery(project), CALLS_AND_ERRORS, ("op",)))
    for row in sorted(rows, key=lambda row: -row.values["calls"])[:_MOST_OPS]:
        ops[refs.operation_name(row.keys[0])] += row.values["calls"]
    query = replace(chosen, sort=NEWEST_FIRST, limit=_SAMPLE)
    sample = Sample()
    async for slice_ in _read(store, query, spans=True):
        await asyncio.to_thread(sample.take, slice_)
    return compress(request, answer({"ops": ops.most_common(), **sample.shown()}))


async def count_by_time(store: Store, query: CallsQuery, start: float | None, end: float | None) -> dict[str, Any]:
    """Bars of a round width, counted exactly between two instants; None is the first of the calls, and now."""
    bounds = await store.call_aggregates.bounds(query.project)
    if bounds is None:
        return {"count": 0, "errors": 0, "bars": None, "any": False}
    latest = max(bounds[1] + 1, times.now() if start is not None else 0)
    upper = latest if end is None else round(end * times.SECOND)
    lower = _start_before(bounds[0], upper) if start is None else round(start * times.SECOND)
    wanted = _bars_of(lower, max(lower + 1, upper))
    bars = await _count_bars(store, query, wanted, start is None, end is None)
    # What is selected may be much shorter than its project: its time is seen in the bars that have any of it.
    while start is None and (filled := [at for at, count in enumerate(bars["total"]) if count]):
        first = wanted.lower // wanted.step * wanted.step
        upper = first + (filled[-1] + 1) * wanted.step if end is None else upper
        narrower = _bars_of(_start_before(first + filled[0] * wanted.step, upper), upper)
        if narrower.step >= wanted.step:
            break
        wanted, bars = narrower, await _count_bars(store, query, narrower, True, end is None)
    return {"count": sum(bars["total"]), "errors": sum(bars["errors"]), "bars": bars, "any": True}


def _start_before(first: int, upper: int) -> int:
    """A few calls of one moment are a thin bar in an hour, not a block as wide as the page."""
    return min(first, upper - _SHORTEST)


class _Bars(NamedTuple):
    """Edges of bars, in microseconds, and the range that they are asked for."""

    lower: int
    upper: int
    step: int


def _bars_of(lower: int, upper: int) -> _Bars:
    width = next((int(one * times.SECOND) for one in _WIDTHS if upper - lower <= one * _MOST_BARS * times.SECOND), 0)
    return _Bars(lower, upper, width or -(-(upper - lower) // _MOST_BARS))


async def _count_bars(store: Store, query: CallsQuery, bars: _Bars, is_open: bool, is_endless: bool) -> dict[str, Any]:
    lower, upper, width = bars
    first = lower // width * width
    edges = range(first, upper, width)
    # Outside an open range there is nothing to leave out.
    least, most = first if is_open else lower, edges[-1] + width if is_endless else upper
    runs = [
        UniformRun(index, edge, width, max(edge, least), min(edge + width, most)) for index, edge in enumerate(edges)
    ]
    rows = await store.call_aggregates.aggregate(CallAggregate(query, CALLS_AND_ERRORS, runs=runs))
    total, errors = [0] * len(runs), [0] * len(runs)
    for row in rows:
        total[row.bucket], errors[row.bucket] = row.values["calls"], row.values["errors"]
    return {"start": first / times.SECOND, "step": width / times.SECOND, "total": total, "errors": errors}


async def _read(store: Store, query: CallsQuery, spans: bool) -> AsyncIterator[list[WithFeedback]]:
    """Calls (with their `spans` of OpenTelemetry) and their feedback, so that only one slice of payloads is held."""
    wanted = replace(query, columns=_BODIES | {"otel_dump"} if spans else _BODIES, shortened=True)
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
            if call.otel_dump is not None:
                self._paths.update(_paths_of_span(orjson.loads(call.otel_dump)))

    def shown(self) -> dict[str, list[str]]:
        """What the page offers, the most frequent first."""
        names = {"users": self._users, "threads": self._threads, "models": self._models}
        paths = sorted(
            (path for path, _ in self._paths.most_common(_MOST_PATHS)),
            key=lambda path: _COLUMNS.index(path.split(".")[0]),
        )
        found = {name: [value for value, _ in counts.most_common(50)] for name, counts in names.items()}
        return found | {"paths": paths + [f"scores.{escape_name(name)}" for name in sorted(self._scores)]}


def _paths_in(value: Any, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, dict) and levels:
        for name, item in list(value.items())[:50]:
            yield from _paths_in(item, f"{path}.{escape_name(name)}", levels - 1)
    elif value is not None:
        yield path


def _paths_of_span(span: Any) -> Iterator[str]:
    """The attributes of a span and of its resource."""
    for holder, path in ((span, ".".join(_SPAN)), (span.get("resource"), f"{'.'.join(_SPAN)}.resource")):
        if isinstance(holder, dict):
            yield from _paths_in(holder.get("attributes"), f"{path}.attributes", _PATH_LEVELS)


def escape_name(name: str) -> str:
    """A key as a part of a path."""
    return name.replace(".", r"\.")


def compress(request: Request, response: Response) -> Response:
    """The same, compressed where the browser takes it."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        response.body = gzip.compress(bytes(response.body), 6)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    response.headers["Cache-Control"] = "no-store"
    return response


async def query_of(store: Store, prices: PricesOf, caller: Caller, body: Chosen, timed: bool = True) -> CallsQuery:
    """The selection in the store's terms; `timed` puts the range of time into it."""
    project = caller.open(body.project_id)
    days = await store.projects.retention(project)
    cost = None
    if body.cost is not None:
        cost = CostTest(body.cost.op, body.cost.dollars, await prices(project))
    return CallsQuery(
        project,
        _filter(body.filter),
        join_conditions(
            [body.query, await _source_condition(store, project, body.source), *(_range(body) if timed else [])]
        ),
        retention=None if days is None else days * times.DAY,
        cost=cost,
        used=body.used,
    )


async def _ops_of_source(store: Store, project: str, source: Source | None) -> list[str]:
    """The ops of the roots that a source has; of user traffic those that it does not have."""
    if source is None:
        return []
    every = CallAggregate(CallsQuery(project, Filter(roots_only=True)), CALLS_AND_ERRORS, ("op",))
    ops = [row.keys[0] for row in await store.call_aggregates.aggregate(every)]
    patterns = [_SOURCES[source]] if source in _SOURCES else [*_SOURCES.values()]
    return [op for op in ops if any(pattern.fullmatch(refs.operation_name(op)) for pattern in patterns)]


async def _source_condition(store: Store, project: str, source: Source | None) -> Operation | None:
    """The condition on the op of a root; None where it chooses every root."""
    ops = await _ops_of_source(store, project, source)
    if source is None or (source == "user" and not ops):
        return None
    chosen = In(Field("op_name"), tuple(map(Literal, ops or [""])))
    return Not(chosen) if source == "user" else chosen


def page_of(query: CallsQuery, body: Listed) -> CallsQuery:
    """One page of the selection, with one call more than asked for, to know whether there is another page."""
    field = LATENCY if body.sort == "-latency" else "started_at"
    descending = body.sort != "started_at"
    conditions = [query.query]
    if body.sort == "-latency":
        conditions.append(Compare("gt", Field("ended_at"), Literal(0)))
    place = body.before or body.after
    if body.before:
        descending = not descending
    if place:
        conditions += _conditions_beyond(field, descending, place)
    order = (SortTerm(field, descending), SortTerm("id", descending))
    return replace(query, query=join_conditions(conditions), sort=order, limit=body.limit + 1)


def _conditions_beyond(field: str, descending: bool, place: str) -> list[Operation]:
    literal, call_id = _parse_place(field, place)
    strict: Comparison = "lt" if descending else "gt"
    weak: Comparison = "lte" if descending else "gte"
    tie = Or((Compare(strict, Field(field), literal), Compare(strict, Field("id"), Literal(call_id))))
    return [Compare(weak, Field(field), literal), tie]


def _parse_place(field: str, place: str) -> tuple[Literal, str]:
    """The value and the id that a key of a row is made of."""
    if found := _PLACE.fullmatch(place):
        value = int(found[1])
        try:
            return Literal(times.to_iso(value) if field == "started_at" else value), found[2]
        except (ValueError, OverflowError):
            pass
    raise InvalidRequest(f"Invalid place in the list: {place[:100]!r}")


def _range(body: Chosen) -> list[Operation]:
    found: list[Operation] = []
    if body.start is not None:
        found.append(Compare("gte", Field("started_at"), Literal(body.start)))
    if body.end is not None:
        found.append(Compare("lt", Field("started_at"), Literal(body.end)))
    return found


def join_conditions(conditions: list[Operation | None]) -> Operation | None:
    known: list[Operation] = []
    for condition in conditions:
        known += condition.operands if isinstance(condition, And) else [condition] if condition is not None else []  # type: ignore[arg-type]
    return And(tuple(known)) if len(known) > 1 else known[0] if known else None


def _filter(chosen: CallConditions | None) -> Filter:
    if chosen is None:
        return Filter()
    lists = {name: value for name in CallConditions.model_fields if isinstance(value := getattr(chosen, name), list)}
    for name, value in lists.items():
        if len(value) > _MAX_ENTRIES:
            raise InvalidRequest(f"filter.{name} has {len(value)} entries; at most {_MAX_ENTRIES} are allowed")
    parts = {name: tuple(value) for name, value in lists.items()}
    users, runs = parts.pop("wb_user_ids", None), parts.pop("wb_run_ids", None)
    return Filter(**parts, user_ids=users, run_ids=runs, roots_only=bool(chosen.trace_roots_only))
