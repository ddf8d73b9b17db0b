"""How calls lie in time: bars of a round width, counted exactly between two instants."""

import time
from typing import Any

from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.calls import CallsQuery, CallSums

_MOST_BARS = 80
_SHORTEST = 3600 * times.SECOND
_WIDTHS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 364 * 86400),
)


async def bars(store: Store, query: CallsQuery, start: float | None, end: float | None) -> dict[str, Any]:
    """Counts of the selected calls between two instants (seconds; None is the first call, and now)."""
    bounds = await store.call_counts.bounds(query.project)
    if bounds is None:
        return {"count": 0, "errors": 0, "bars": None, "any": False}
    latest = max(bounds[1] + 1, _now() if start is not None else 0)
    upper = latest if end is None else round(end * times.SECOND)
    # A few calls of one moment are a thin bar in an hour, not a block as wide as the page.
    lower = min(bounds[0], upper - _SHORTEST) if start is None else round(start * times.SECOND)
    upper = max(lower + 1, upper)
    width = _width(upper - lower)
    first, buckets = lower // width * width, -(-(upper - lower // width * width) // width)
    # Outside an open range there is nothing to leave out.
    clipped = (first if start is None else lower, first + width * buckets if end is None else upper)
    sums = await _sums(store, query, first, width, buckets, *clipped)
    total, errors = [item.calls for item in sums], [item.errors for item in sums]
    shown = {"start": first / times.SECOND, "step": width / times.SECOND, "total": total, "errors": errors}
    return {"count": sum(total), "errors": sum(errors), "bars": shown, "any": True}


async def _sums(
    store: Store, query: CallsQuery, first: int, width: int, buckets: int, lower: int, upper: int
) -> list[CallSums]:
    """The sums of all buckets; what the first and the last hold outside the range is left out."""
    counts = store.call_counts
    sums = await counts.sums(query, first, width, buckets)
    for index, start, end in ((0, lower, first + width), (buckets - 1, first + width * (buckets - 1), upper)):
        start, end = max(start, lower), min(end, upper)
        if end - start < width:
            sums[index] = (await counts.sums(query, start, end - start, 1))[0]
    return sums


def _width(span: int) -> int:
    for width in _WIDTHS:
        if span <= width * _MOST_BARS * times.SECOND:
            return int(width * times.SECOND)
    return -(-span // _MOST_BARS)


def _now() -> int:
    return int(time.time() * times.SECOND)
