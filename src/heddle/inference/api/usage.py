"""GET /v1/usage: what projects used, per day and model, with costs."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import BearerReader, ResponseModel, StoreDep, answer, group
from heddle.inference.service import InferenceDep
from heddle.inference.tracing import COUNTED
from heddle.store.base import Store
from heddle.store.control.inference import BOUNDS, FIRST, MOST_GROUPS, SUMMED, TOOK, Row
from heddle.wire import refs, times
from heddle.wire.calls import CostOf, Usage

router: APIRouter = group("Inference")

_DEFAULT_DAYS = 30
_EPOCH = date(1970, 1, 1)
_SHOWN = ("day", "project", "model", "user", "key")
_SUMS = ("requests", "errors", "seconds", "cost", *COUNTED)
_PRICED_BY = ("project", "day", "model")
Dimension = Literal["day", "project", "model", "user", "key"]


class Latency(ResponseModel):
    """Seconds; percentiles are upper bounds of the bucket in which they lie, null beyond the last one."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class UsageRow(ResponseModel):
    """The sums of one group; the dimensions that were not asked for are missing."""

    object: str = "usage"
    day: str | None = None
    project: str | None = None
    model: str | None = None
    user: str | None = None
    key: str | None = None
    requests: int
    errors: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    seconds: float
    latency: Latency
    first_token: Latency
    cost: float | None
    """US dollars of the models that have a price; null when none has."""


class UsageList(ResponseModel):
    """Rows sorted by their dimensions, the sum of all, and the models that nobody set a price for."""

    object: str = "list"
    data: list[UsageRow]
    totals: UsageRow
    x_unpriced_models: list[str]


@router.get("/v1/usage", response_model=UsageList, dependencies=KNOWN_PARAMETERS)
async def usage(
    caller: BearerReader,
    store: StoreDep,
    inference: InferenceDep,
    project: Annotated[str | None, Query(description="team/project; empty: requests that named none")] = None,
    model: str | None = None,
    start: Annotated[date | None, Query(description="The first day (UTC); 30 days ago by default")] = None,
    end: Annotated[date | None, Query(description="The last day (UTC); today by default")] = None,
    group_by: Annotated[list[Dimension] | None, Query(description="[day, project, model]; repeat for several")] = None,
) -> Response:
    """Usage of the projects that the key reaches; of requests without a project those of its own."""
    by = [name for name in _SHOWN if name in (group_by or ("day", "project", "model"))]
    last = end or times.to_datetime(times.now()).date()
    first = start or date.fromordinal(max(1, last.toordinal() - _DEFAULT_DAYS))
    if first > last:
        raise InvalidRequest(f"start ({first}) must not be after end ({last})", param="start")
    days = (first - _EPOCH).days, (last - _EPOCH).days
    equal = {} if model is None else {"model": model}
    fine = [*_PRICED_BY, *(name for name in by if name not in _PRICED_BY)]
    rows: list[Row] = []
    for projects, only in await _select_projects(store, caller, project, days):
        rows += await store.inference.usage(days, fine, projects, equal | only)
    if len(rows) > MOST_GROUPS:
        raise InvalidRequest(f"More than {MOST_GROUPS} rows; ask for fewer days or one project", param="start")
    prices: dict[str, CostOf] = {
        name: await inference.accounts.prices(name) for name in {row["project"] for row in rows}
    }
    groups: dict[tuple[Any, ...], Row] = {}
    total = _empty_sums()
    unpriced: set[str] = set()
    for row in rows:
        at = min(times.now(), (row["day"] + 1) * times.DAY - 1)
        counts = row["requests"], row["prompt_tokens"], row["completion_tokens"]
        cost = prices[row["project"]](Usage(row["model"], *counts, None, row["cached_tokens"], 0), at)
        if cost is None:
            unpriced.add(row["model"])
        _add(groups.setdefault(tuple(row[name] for name in by), _empty_sums()), row, cost)
        _add(total, row, cost)
    data = [{**_name_dimensions(by, key), **_row(sums)} for key, sums in sorted(groups.items())]
    return answer({"object": "list", "data": data, "totals": _row(total), "x_unpriced_models": sorted(unpriced)})


async def _select_projects(
    store: Store, caller: Caller, project: str | None, days: tuple[int, int]
) -> list[tuple[list[str] | None, dict[str, str]]]:
    """What to select: projects (None: all) and further conditions."""
    own = {"key": caller.key_id or ""} if caller.is_bound else {}
    if project is not None:
        return [([caller.open(project)], {})] if project else [([""], own)]
    if not caller.is_bound:
        return [(None, {})]
    known = {name: refs.external_project(name) for name in await store.inference.projects(*days)}
    return [([name for name, external in known.items() if external and caller.reaches(external)], {}), ([""], own)]


def _empty_sums() -> Row:
    return {**dict.fromkeys(SUMMED, 0), "cost": None}


def _add(sums: Row, row: Row, cost: float | None) -> None:
    for name in SUMMED:
        sums[name] += row[name]
    if cost is not None:
        sums["cost"] = (sums["cost"] or 0.0) + cost


def _name_dimensions(by: Sequence[str], key: Sequence[Any]) -> Row:
    named: Row = dict(zip(by, key, strict=True))
    if "day" in named:
        named["day"] = (_EPOCH + timedelta(days=named["day"])).isoformat()
    if "project" in named:
        named["project"] = refs.external_project(named["project"]) if named["project"] else None
    return {name: value or None for name, value in named.items()}


def _row(sums: Row) -> Row:
    return {
        "object": "usage",
        **{name: sums[name] for name in _SUMS},
        "total_tokens": sums["prompt_tokens"] + sums["completion_tokens"],
        "latency": _latency([sums[name] for name in TOOK], sums["seconds"]),
        "first_token": _latency([sums[name] for name in FIRST], sums["first_token_seconds"]),
    }


def _latency(buckets: Sequence[int], seconds: float) -> Row:
    count = sum(buckets)
    mean = seconds / count if count else None
    return {"count": count, "mean": mean, "p50": _percentile(buckets, 0.5), "p95": _percentile(buckets, 0.95)}


def _percentile(buckets: Sequence[int], share: float) -> float | None:
    wanted, seen = share * sum(buckets), 0
    for number, count in zip(BOUNDS, buckets, strict=False):
        seen += count
        if seen and seen >= wanted:
            return number
    return None
