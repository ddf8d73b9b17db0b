"""What a project spent, by model, op, user or day, and what holds for each of its models as a price."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query, Response
from pydantic import BaseModel

from heddle.http import PricesDep, Reader, StoreDep, answer, group
from heddle.wire import refs, times
from heddle.wire.calls import UsageSum
from heddle.wire.inference import CostOf, cost_of_tokens

router = group("Pages")

_HOUR = 3600
_STEPS = ((2 * 86_400, _HOUR), (120 * 86_400, 86_400), (math.inf, 7 * 86_400))
_COUNTS = ("calls", "requests", "prompt", "completion", "cache_read", "cache_creation")
_MILLION = 1_000_000
By = Literal["model", "op", "user", "day"]
Instant = Annotated[float, Query(ge=0, le=100_000_000_000, allow_inf_nan=False)]


class Group(BaseModel):
    """One row of the table, with what it cost in each bucket; `cost` is None where no model has a price."""

    name: str
    cost: float | None = None
    calls: int = 0
    requests: int = 0
    prompt: int = 0
    completion: int = 0
    cache_read: int = 0
    cache_creation: int = 0
    unpriced: list[str] = []
    cells: dict[int, float] = {}


@router.get("/_ui/api/costs", include_in_schema=False)
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
    first = await store.breakdowns.first_usage(opened)
    lower = max(start, first / 1e6 if start == 0 and first is not None else start)
    if first is None or lower >= upper:
        known = None if first is None else first / 1e6
        return answer({"by": by, "start": lower, "end": upper, "step": 86_400, "groups": [], "first": known})
    step = next(width for reach, width in _STEPS if upper - lower <= reach)
    aligned = (lower + zone) // step * step - zone
    # Buckets begin on a full hour or day; what lies before the range is left out of the first.
    dimension = by if by in ("op", "user") else ""
    shift, width = int(aligned * 1e6), step * 1_000_000
    limits, cuts = (int(lower * 1e6), int(upper * 1e6)), await prices.changes(opened)
    found = await store.breakdowns.usage(opened, dimension, *limits, shift, width, cuts)
    groups = _groups(found, by, await prices(opened), shift, width)
    shown = [entry.model_dump() for entry in groups]
    return answer({"by": by, "start": aligned, "end": upper, "step": step, "groups": shown, "first": first / 1e6})


def _groups(found: Sequence[UsageSum], by: By, cost_of: CostOf, shift: int, width: int) -> list[Group]:
    groups: dict[str, Group] = {}
    for row in found:
        name = _name(row, by, shift, width)
        entry = groups.setdefault(name, Group(name=name, unpriced=[], cells={}))
        for count in _COUNTS:
            setattr(entry, count, getattr(entry, count) + getattr(row, count))
        cost = cost_of_tokens(cost_of, row, row.priced_at)
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


@router.get("/_ui/api/prices", include_in_schema=False)
async def prices(
    project: str, caller: Reader, store: StoreDep, prices: PricesDep, model: Annotated[list[str] | None, Query()] = None
) -> Response:
    """The models that a project used (and further ones), each with the price that holds now and heddle's own."""
    opened = caller.open(project)
    now = times.now()
    used: Counter[str] = Counter()
    for row in await store.breakdowns.usage(opened, "", 0, now + 1, 0, now + 1):
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

    def of(prompt: int = 0, completion: int = 0, cached: int = 0, created: int = 0) -> float | None:
        return cost_of(
            model,
            at,
            requests=1,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            created_tokens=created,
        )

    found: dict[str, Any] = {
        "prompt": of(prompt=_MILLION),
        "completion": of(completion=_MILLION),
        "cache_read": of(prompt=_MILLION, cached=_MILLION),
        "cache_creation": of(prompt=_MILLION, created=_MILLION),
    }
    return None if found["prompt"] is None else found
