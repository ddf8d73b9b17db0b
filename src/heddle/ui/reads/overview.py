"""One project over a stretch of time, with the stretch before it: what the overview shows, in one answer."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Response

from heddle.http import PricesDep, Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.feedback import Window
from heddle.wire import times
from heddle.wire.calls import UsageSum
from heddle.wire.inference import CostOf, PricesOf, cost_of_tokens, sum_of_costs
from heddle.wire.overview import ProjectOverview, TimeSpan

router = group("Pages")

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_WIDTHS = (_MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR)
_DAYS = (_DAY, 7 * _DAY, 28 * _DAY)
_MOST_BUCKETS = 72
_KINDS = {"wandb.reaction.1": "reactions", "wandb.note.1": "notes"}
Seconds = Annotated[float | None, Query(ge=0, le=1e11)]


@router.get("/_ui/api/overview", include_in_schema=False)
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
    first = await store.overviews.first_started_at(internal)
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
            "buckets": [
                {"bucket": row.bucket, "calls": row.calls, "errors": row.errors, "p50": row.median, "p95": row.high}
                for row in found.counts
            ],
            "totals": _totals(found, usage, cost_of),
            "before": earlier,
            "models": _models(usage, cost_of),
            "feedback": await _feedback(store, internal, span),
        }
    )


async def _read(store: Store, prices: PricesOf, project: str, span: TimeSpan) -> tuple[ProjectOverview, list[UsageSum]]:
    cuts = await prices.changes(project)
    place = (span.start, span.end, span.start, span.width)
    usage = await store.breakdowns.usage(project, "", *place, cuts)
    return await store.overviews.read(project, span), usage


def span_of(start: int, end: int, zone: int) -> TimeSpan:
    """The span with a bucket width that people count in; buckets of days begin at midnight of the reader's clock."""
    seconds = (end - start) / times.SECOND
    width = next((one for one in (*_WIDTHS, *_DAYS) if seconds / one <= _MOST_BUCKETS), 0)
    width = (width or int(seconds / _MOST_BUCKETS / _DAY + 1) * _DAY) * times.SECOND
    shift = zone * _MINUTE * times.SECOND
    return TimeSpan((start - shift) // width * width + shift, end, width)


def _totals(found: ProjectOverview, usage: Sequence[UsageSum], cost_of: CostOf) -> dict[str, Any]:
    whole = found.whole
    return {
        "calls": whole.calls,
        "errors": whole.errors,
        "p50": whole.median,
        "p95": whole.high,
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
    return sum_of_costs(cost_of_tokens(cost_of, row, row.priced_at) for row in usage)


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
