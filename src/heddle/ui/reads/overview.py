"""The projects, and what one did over time, what it spent, by model, op, user or day, its prices, and its ops."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Query, Response
from pydantic import Field

from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import PricesDep, Reader, RequestModel, StoreDep, Writer, answer, group
from heddle.store.base import Store
from heddle.store.control.feedback import Window
from heddle.wire import refs, times
from heddle.wire.aggregates import CALLS_AND_ERRORS, CallAggregate, Measure, Value, cut_run
from heddle.wire.buckets import percentile_of, readable_width
from heddle.wire.calls import CallsQuery, CostOf, Filter, OpActivity, ProjectActivity, UniformRun, Usage, UsageSum
from heddle.wire.inference import PricesOf, sum_of_costs
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel

router = group("Pages")

_SAMPLE = 20_000
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_KINDS = {"wandb.reaction.1": "reactions", "wandb.note.1": "notes"}
Seconds = Annotated[float | None, Query(ge=0, le=1e11)]


class TimeSpan(NamedTuple):
    """A stretch of time cut into equal buckets; instants in microseconds, `end` is exclusive."""

    start: int
    end: int
    width: int

    @property
    def run(self) -> UniformRun:
        """Its buckets."""
        return UniformRun(0, self.start, self.width, self.start, self.end)


class _Counts(NamedTuple):
    """Calls, failed ones, and the latencies (seconds, in order) of root calls that ended; beyond 20,000 of a sample."""

    calls: int
    errors: int
    seconds: list[float]

    def shown(self) -> dict[str, float | None]:
        p50, p95 = percentile_of(self.seconds, 50), percentile_of(self.seconds, 95)
        return {"calls": self.calls, "errors": self.errors, "p50": p50, "p95": p95}


@router.get("/_ui/api/overview", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def overview(
    project: str,
    caller: Reader,
    store: StoreDep,
    prices: PricesDep,
    start: Seconds = None,
    end: Seconds = None,
    zone: Annotated[int, Query(ge=-1440, le=1440)] = 0,
) -> Response:
    """Counts, latencies, usage and feedback in buckets; `zone` is how many minutes the reader's clock is behind UTC."""
    internal, now = caller.open(project), times.now()
    bounds = await store.call_aggregates.bounds(internal)
    first = None if bounds is None else bounds[0]
    until = now if end is None else int(end * times.SECOND)
    since = (first or now - _DAY * times.SECOND) if start is None else int(start * times.SECOND)
    span = span_of(min(since, until - 1), until, zone)
    before = TimeSpan(2 * since - until, since, until - since)
    cost_of = await prices(internal)
    found, usage = await _read(store, prices, internal, span)
    earlier = None
    if start is not None and first is not None and first < since:
        earlier = _totals(*await _read(store, prices, internal, before), cost_of)
    return answer(
        {
            "has_calls": first is not None,
            "start": span.start / times.SECOND,
            "end": span.end / times.SECOND,
            "step": span.width // times.SECOND,
            "buckets": [{"bucket": bucket, **counts.shown()} for bucket, counts in found.items()],
            "totals": _totals(found, usage, cost_of),
            "before": earlier,
            "models": _models(usage, cost_of),
            "feedback": await _feedback(store, internal, span),
            "rejected": await describe_rejections(store, internal, 0 if start is None else since),
        }
    )


async def _read(
    store: Store, prices: PricesOf, project: str, span: TimeSpan
) -> tuple[dict[int, _Counts], list[UsageSum]]:
    """What happened in the buckets that have any call, and what was used."""
    calls = CallAggregate(CallsQuery(project), CALLS_AND_ERRORS, runs=[span.run])
    roots = CallsQuery(project, Filter(roots_only=True))
    latencies = CallAggregate(roots, [Measure("seconds", "values", Value("seconds"))], runs=[span.run], sample=_SAMPLE)
    seconds = {row.bucket: row.values["seconds"] for row in await store.call_aggregates.aggregate(latencies)}
    counts = {
        row.bucket: _Counts(row.values["calls"], row.values["errors"], seconds.get(row.bucket, []))
        for row in await store.call_aggregates.aggregate(calls)
    }
    runs = cut_run(span.run, await prices.changes(project))
    return dict(sorted(counts.items())), await store.call_aggregates.usage(CallsQuery(project), runs)


def span_of(start: int, end: int, zone: int) -> TimeSpan:
    """The span with a bucket width that people count in; buckets of days begin at midnight of the reader's clock."""
    width = readable_width((end - start) / times.SECOND) * times.SECOND
    shift = zone * _MINUTE * times.SECOND
    return TimeSpan((start - shift) // width * width + shift, end, width)


def _totals(found: dict[int, _Counts], usage: Sequence[UsageSum], cost_of: CostOf) -> dict[str, Any]:
    seconds = sorted(took for counts in found.values() for took in counts.seconds)
    calls, errors = sum(row.calls for row in found.values()), sum(row.errors for row in found.values())
    return {
        **_Counts(calls, errors, seconds).shown(),
        "prompt_tokens": sum(row.prompt for row in usage),
        "completion_tokens": sum(row.completion for row in usage),
        "cost": _cost(usage, cost_of),
    }


def _models(usage: Sequence[UsageSum], cost_of: CostOf) -> list[dict[str, Any]]:
    """The models by what they cost, then by tokens, each with its buckets as `[bucket, cost, tokens]`."""
    by_model: dict[str, dict[int, list[UsageSum]]] = {}
    for row in usage:
        by_model.setdefault(row.model, {}).setdefault(row.bucket, []).append(row)
    shown = []
    for model, by_bucket in by_model.items():
        buckets = [(bucket, _cost(rows, cost_of), _tokens(rows)) for bucket, rows in by_bucket.items()]
        shown.append(
            {
                "model": model,
                "requests": sum(row.requests for rows in by_bucket.values() for row in rows),
                "tokens": sum(tokens for _, _, tokens in buckets),
                "cost": sum_of_costs(cost for _, cost, _ in buckets),
                "buckets": buckets,
            }
        )
    return sorted(shown, key=lambda row: (-(row["cost"] or 0), -row["tokens"], row["model"]))


def _cost(usage: Sequence[UsageSum], cost_of: CostOf) -> float | None:
    return sum_of_costs(cost_of(row, row.priced_at) for row in usage)


def _tokens(usage: Sequence[UsageSum]) -> int:
    return sum(row.prompt + row.completion for row in usage)


async def _feedback(store: Store, project: str, span: TimeSpan) -> list[dict[str, Any]]:
    """How much feedback of which kind came in each bucket that has any."""
    counts: dict[int, dict[str, int]] = {}

    def take(row: Sequence[Any]) -> None:
        created_at, name = row
        kind = _KINDS.get(name) or ("scores" if name.startswith("wandb.runnable") else "annotations")
        bucket = counts.setdefault((created_at - span.start) // span.width, {})
        bucket[kind] = bucket.get(kind, 0) + 1

    await store.feedback.scan(project, Window(span.start, span.end), ("created_at", "feedback_type"), take)
    return [{"bucket": bucket, **kinds} for bucket, kinds in sorted(counts.items())]


_STEPS = ((2 * _DAY, _HOUR), (120 * _DAY, _DAY), (math.inf, 7 * _DAY))
_COUNTS = ("requests", "prompt", "completion", "cache_read", "cache_creation")
_MILLION = 1_000_000
By = Literal["model", "op", "user", "day"]
Instant = Annotated[float, Query(ge=0, le=100_000_000_000, allow_inf_nan=False)]


class Group(LazyModel):
    """One row of the table, with what it cost in each bucket; `cost` is None where no model has a price."""

    name: str
    cost: float | None = None
    calls: int = 0
    requests: int = 0
    prompt: int = 0
    completion: int = 0
    cache_read: int = 0
    cache_creation: int = 0
    unpriced: list[str] = Field(default=[])
    cells: dict[int, float] = Field(default={})


@router.get("/_ui/api/costs", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def costs(
    project: str,
    caller: Reader,
    store: StoreDep,
    prices: PricesDep,
    by: By = "model",
    start: Instant = 0,
    end: Instant = 0,
    zone: Annotated[int, Query(ge=-86_400, le=86_400)] = 0,
) -> Response:
    """Costs per group and bucket; instants are seconds since 1970, 0 is the first call and now; `zone` is seconds."""
    opened = caller.open(project)
    upper = end or times.now() / 1e6 + 1
    first = await store.call_aggregates.first_usage(opened)
    lower = max(start, first / 1e6 if start == 0 and first is not None else start)
    if first is None or lower >= upper:
        known = None if first is None else first / 1e6
        return answer({"by": by, "start": lower, "end": upper, "step": 86_400, "groups": [], "first": known})
    step = next(width for reach, width in _STEPS if upper - lower <= reach)
    aligned = (lower + zone) // step * step - zone
    # Buckets begin on a full hour or day; what lies before the range is left out of the first.
    dimension = by if by in ("op", "user") else ""
    shift, width = int(aligned * 1e6), step * 1_000_000
    runs = cut_run(UniformRun(0, shift, width, int(lower * 1e6), int(upper * 1e6)), await prices.changes(opened))
    found = await store.call_aggregates.usage(CallsQuery(opened), runs, dimension)
    groups = _groups(found, by, await prices(opened), shift, width)
    inside = runs[0]._replace(upper=runs[-1].upper)
    counted = await _count_users_of_tokens(store, opened, by, inside)
    for entry in groups if by != "model" else ():
        entry.calls = counted[entry.name]
    shown = [entry.model_dump() for entry in groups]
    told = {"by": by, "start": aligned, "end": upper, "step": step, "groups": shown, "first": first / 1e6}
    return answer({**told, "from": int(lower), "calls": counted.total()})


async def _count_users_of_tokens(store: Store, project: str, by: By, run: UniformRun) -> Counter[str]:
    """The calls whose tokens count, by group (of models: all in one); a call of several models is one call."""
    keys = (by,) if by in ("op", "user") else ()
    whole = run if by == "day" else UniformRun(0, run.lower, max(1, run.upper - run.lower), run.lower, run.upper)
    distinct = Measure("calls", "count_distinct", Value("call"))
    counted: Counter[str] = Counter()
    for row in await store.call_aggregates.aggregate(
        CallAggregate(CallsQuery(project), [distinct], keys, [whole], "totals")
    ):
        name = row.keys[0] if row.keys else ""
        day = str((run.start + row.bucket * run.width) // 1_000_000)
        counted[refs.operation_name(name) if by == "op" else day if by == "day" else name] += row.values["calls"]
    return counted


def _groups(found: Sequence[UsageSum], by: By, cost_of: CostOf, shift: int, width: int) -> list[Group]:
    groups: dict[str, Group] = {}
    for row in found:
        name = _name(row, by, shift, width)
        entry = groups.setdefault(name, Group(name=name, unpriced=[], cells={}))
        for count in _COUNTS:
            setattr(entry, count, getattr(entry, count) + getattr(row, count))
        entry.calls += row.calls
        cost = cost_of(row, row.priced_at)
        if cost is None:
            if row.model not in entry.unpriced:
                entry.unpriced.append(row.model)
        else:
            entry.cost = (entry.cost or 0) + cost
            entry.cells[row.bucket] = entry.cells.get(row.bucket, 0) + cost
    return sorted(groups.values(), key=lambda entry: (-(entry.cost or 0), -entry.prompt - entry.completion, entry.name))


def _name(row: UsageSum, by: By, shift: int, width: int) -> str:
    """What a sum counts to; days are named by when they begin, in seconds since 1970."""
    if by == "day":
        return str((shift + row.bucket * width) // 1_000_000)
    return row.model if by == "model" else refs.operation_name(row.name) if by == "op" else row.name


@router.get("/_ui/api/prices", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def prices(
    project: str, caller: Reader, store: StoreDep, prices: PricesDep, model: Annotated[list[str] | None, Query()] = None
) -> Response:
    """The models that a project used (and further ones), each with the price that holds now and heddle's own."""
    opened = caller.open(project)
    now = times.now()
    used: Counter[str] = Counter()
    for row in await store.call_aggregates.usage(CallsQuery(opened), [UniformRun(0, 0, now + 1, 0, now + 1)]):
        used[row.model] += row.calls
    used.update(dict.fromkeys(model or (), 0))
    own, default = await prices(opened), await prices("")
    models = [
        {"model": name, "calls": calls, "price": rates(own, name, now), "default": rates(default, name, now)}
        for name, calls in used.most_common()
    ]
    return answer({"models": models})


def rates(cost_of: CostOf, model: str, at: int) -> dict[str, float] | None:
    """Dollars for a million tokens of each kind, as calls are charged; None without a price."""

    counts = {
        "prompt": (_MILLION, 0, 0, 0),
        "completion": (0, _MILLION, 0, 0),
        "cache_read": (_MILLION, 0, _MILLION, 0),
        "cache_creation": (_MILLION, 0, 0, _MILLION),
    }
    found: dict[str, Any] = {
        name: cost_of(Usage(model, 1, prompt, completion, None, *caches), at)
        for name, (prompt, completion, *caches) in counts.items()
    }
    return None if found["prompt"] is None else found


@router.get("/_ui/api/ops", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def ops(project: str, caller: Reader, store: StoreDep) -> Response:
    """Per name: calls, how many failed, the last one, and of the newest ones the median time."""
    by_name: dict[str, list[OpActivity]] = {}
    opened, errors = caller.open(project), Counter[str]()
    for activity in await store.call_aggregates.ops(opened):
        by_name.setdefault(refs.operation_name(activity.op), []).append(activity)
    for row in await store.call_aggregates.aggregate(CallAggregate(CallsQuery(opened), CALLS_AND_ERRORS, ("op",))):
        errors[refs.operation_name(row.keys[0])] += row.values["errors"]
    return answer({"ops": [_op(name, found, errors[name]) for name, found in by_name.items()]})


def _op(name: str, found: list[OpActivity], errors: int) -> dict[str, Any]:
    seconds = [took for activity in found for took in activity.seconds]
    calls = sum(activity.calls for activity in found)
    return {
        "name": name,
        "calls": calls,
        "last": times.to_iso(max(activity.last_started_at for activity in found)),
        "kind": found[0].kind,
        "p50": median(seconds) if seconds else None,
        "errors": errors,
        "error_share": errors / calls if calls else None,
        "versions": {activity.op: activity.calls for activity in found},
    }


async def describe_rejections(store: Store, project: str, since: int) -> list[Json]:
    """Counts by signal and cause, of a project (internal id; empty: of none) since an instant, the newest first."""
    rows = await store.rejections.of_project(project, since)
    return [
        {
            "signal": row.signal,
            "cause": row.cause,
            "count": row.count,
            "last_at": times.to_iso(row.last_at),
            "message": row.message,
        }
        for row in rows
    ]


_LATELY = 30 * times.DAY
_TOLD = 7 * times.DAY
"""How long it is told what named no project."""


@router.get("/_ui/api/projects", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def projects(caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """Every project that the caller reaches, the one with the newest call first; cost and errors of 30 days."""
    found = await store.call_aggregates.projects(times.now() - _LATELY, prices.changes)
    named = [(activity, refs.external_project(activity.project)) for activity in found]
    reached = [(activity, name) for activity, name in named if name is not None and caller.reaches(name)]
    reached.sort(key=lambda pair: (-(pair[0].last_started_at or 0), pair[1]))
    costs = await asyncio.gather(*(prices(activity.project) for activity, _ in reached))
    shown = [_describe(*pair, cost_of) for pair, cost_of in zip(reached, costs, strict=True)]
    # What named no project is nobody's: callers that are bound to one do not see it.
    rejected = [] if caller.reach else await describe_rejections(store, "", times.now() - _TOLD)
    return answer({"projects": shown, "rejected": rejected})


class NewProject(RequestModel):
    """The project to make: `entity/project`."""

    id: str


@router.post("/_ui/api/projects", include_in_schema=False)
async def make_project(body: NewProject, caller: Writer, store: StoreDep) -> Response:
    """Make a project known; nothing happens to one that is."""
    await store.projects.make(caller.open(body.id), None)
    store.call_aggregates.forget_projects()
    return answer({"id": body.id})


def _describe(activity: ProjectActivity, name: str, cost_of: CostOf) -> dict[str, Any]:
    return {
        "id": name,
        "calls": activity.calls,
        "last_activity": times.optional_iso(activity.last_started_at),
        "lately": activity.lately,
        "errors": activity.errors,
        "error_share": activity.errors / activity.lately if activity.lately else None,
        "cost": sum_of_costs(cost_of(used, used.priced_at) for used in activity.usage),
    }
