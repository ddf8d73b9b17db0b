"""Time buckets and the figures computed over them (contract: trace-core, `/calls/stats` and `/feedback/stats`)."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from zoneinfo import ZoneInfo

from heddle.errors import InvalidRequest
from heddle.text_cache import cache_texts
from heddle.wire import times
from heddle.wire.means import between

MAX_BUCKETS = 10_000
MAX_RANGE_DAYS = 31
MAX_METRICS = MAX_PERCENTILES = 100
"""How many metrics a request may name, and how many percentiles of each."""
MAX_FIGURES = 1_000_000
_FIGURE_BYTES = 25
HOUR = 3600
DAY = 86_400

_AUTOMATIC = ((2 * HOUR, 300), (12 * HOUR, HOUR), (3 * DAY, 6 * HOUR), (14 * DAY, 12 * HOUR))


class AggregationType(StrEnum):
    """What can be computed over the values of a bucket."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    COUNT_TRUE = "count_true"
    COUNT_FALSE = "count_false"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Consecutive buckets; `starts` in microseconds, `granularity` in seconds (one differs where clocks change)."""

    granularity: int
    timezone: str
    starts: tuple[int, ...]

    def index(self, instant: int) -> int:
        """The number of the bucket that an instant of the range falls into."""
        return bisect_right(self.starts, instant) - 1


def make_buckets(start: int, end: int, granularity: int | None, timezone: str) -> Buckets:
    """The buckets that cover `[start, end)` without gaps, beginning at the interval boundary that contains `start`.

    Where that lies outside the calendar, the first one begins with the year 1.
    Times in microseconds, granularity in seconds (None or 0: by the length of the range). Raises InvalidRequest for a
    negative granularity and an unknown zone.
    """
    if granularity is not None and granularity < 0:
        raise InvalidRequest(f"granularity must be positive, got {granularity}")
    zone = zone_of(timezone)
    seconds = (end - start) / times.SECOND
    chosen = raised(granularity or automatic_granularity(seconds), seconds)
    starts = _starts(start, end, chosen, zone)
    if len(starts) > MAX_BUCKETS:
        chosen = int(seconds / MAX_BUCKETS) + 1
        starts = _starts(start, end, chosen, zone)
    return Buckets(chosen, timezone, tuple(starts))


def check_figures(rows: int, columns: int) -> int:
    """About how many bytes an answer of so many figures has; raises InvalidRequest above `MAX_FIGURES`."""
    figures = rows * columns
    if figures > MAX_FIGURES:
        raise InvalidRequest(
            f"The response would have {rows} rows of {columns} values each; at most {MAX_FIGURES} values are allowed. "
            "Use a larger granularity, a shorter range, fewer metrics or fewer percentiles"
        )
    return figures * _FIGURE_BYTES


def automatic_granularity(seconds: float) -> int:
    """The bucket size in seconds for a range of that length."""
    return next((size for limit, size in _AUTOMATIC if seconds <= limit), DAY)


_WIDTHS = (60, 300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 7 * DAY, 28 * DAY)
_MOST_READABLE = 72


def readable_width(seconds: float) -> int:
    """The bucket size in seconds that people count in, for a chart of a range of that length."""
    found = next((width for width in _WIDTHS if seconds / width <= _MOST_READABLE), 0)
    return found or int(seconds / _MOST_READABLE / DAY + 1) * DAY


def raised(granularity: int, seconds: float) -> int:
    """The granularity, raised where it would make more than `MAX_BUCKETS` buckets of the range."""
    if seconds / granularity <= MAX_BUCKETS:
        return granularity
    return max(granularity, int(seconds / MAX_BUCKETS) + 1)


@cache_texts()
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None


def zone_of(name: str) -> ZoneInfo:
    """The IANA zone of that name; raises InvalidRequest when there is none."""
    zone = _zone(name) if name and len(name) <= 100 else None
    if zone is None:
        raise InvalidRequest(f"Unknown timezone: {name[:100]}")
    return zone


def floor(instant: int, granularity: int, zone: ZoneInfo) -> int:
    """The latest instant, not after `instant`, at which the clocks of the zone show a multiple of the granularity."""
    step = granularity * times.SECOND
    offset = _offset(instant, zone)
    wall = (instant + offset) // step * step
    candidate = wall - offset
    before = _offset(candidate, zone)
    if before == offset:
        return candidate
    # The clocks were changed in between: the boundary was read on the earlier offset, or was skipped with the change.
    earlier = wall - before
    if earlier <= instant and _offset(earlier, zone) == before:
        return earlier
    return _change(min(candidate, earlier), instant, zone)


def _change(low: int, high: int, zone: ZoneInfo) -> int:
    """The first instant in `(low, high]` with the offset of `high`."""
    offset = _offset(high, zone)
    while high - low > times.SECOND:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(middle, zone) == offset else (middle, high)
    return high // times.SECOND * times.SECOND


def _offset(instant: int, zone: ZoneInfo) -> int:
    """What the zone's clocks are ahead of UTC, in microseconds."""
    # The clocks of a zone may show a year outside the calendar during its first and last day.
    inside = min(max(instant, times.FIRST + times.DAY), times.LAST - times.DAY)
    offset = times.to_datetime(inside // times.SECOND * times.SECOND).astimezone(zone).utcoffset()
    return (offset or timedelta(0)) // timedelta(microseconds=1)


def _starts(start: int, end: int, granularity: int, zone: ZoneInfo) -> list[int]:
    step = granularity * times.SECOND
    starts = [max(floor(start, granularity, zone), times.FIRST)]
    while len(starts) <= MAX_BUCKETS:
        following, ahead = starts[-1], step
        while following <= starts[-1]:
            # A boundary can be further away than one step where the clocks are set back.
            following = floor(starts[-1] + ahead, granularity, zone)
            ahead += min(step, HOUR * times.SECOND)
        if following >= end:
            break
        starts.append(following)
    return starts


def pieces(lower: int, upper: int, cuts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The range `[lower, upper)` in pieces that begin at its lower end and at each of the cuts inside."""
    edges = [lower, *sorted({cut for cut in cuts if lower < cut < upper}), upper]
    return pairwise(edges)


def percentile_name(percentile: float) -> str:
    """`p50`, `p99.5`; raises InvalidRequest outside 0..100."""
    if not 0 <= percentile <= 100:
        raise InvalidRequest(f"Percentile must be between 0 and 100, got {percentile}")
    return f"p{int(percentile)}" if percentile == int(percentile) else f"p{percentile}"


def percentile_of(ordered: Sequence[float], percentile: float) -> float | None:
    """The percentile of sorted values, interpolated linearly; None without values."""
    if not ordered:
        return None
    position = percentile / 100 * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return between(ordered[lower], ordered[upper], position - lower)


def summarise(
    values: Sequence[float], aggregations: Iterable[AggregationType], percentiles: Iterable[float] = ()
) -> dict[str, float | None]:
    """`{"avg": 0.5, "p50": 0.4}` over the values; what needs at least one value is None without any."""
    figures = {kind.value: _figure(values, kind) for kind in aggregations}
    named = [(percentile_name(percentile), percentile) for percentile in percentiles]
    ordered = sorted(values) if named else []
    return figures | {name: percentile_of(ordered, percentile) for name, percentile in named}


def filled(figures: dict[str, float | None]) -> dict[str, float | None]:
    """The figures as a bucket shows them: sums, counts and averages of nothing are 0, the others null."""
    return {
        name: 0 if figure is None and name.startswith(("sum", "avg", "count")) else figure
        for name, figure in figures.items()
    }


def _figure(values: Sequence[float], kind: AggregationType) -> float | None:
    match kind:
        case AggregationType.COUNT_TRUE:
            return sum(value == 1 for value in values)
        case AggregationType.COUNT_FALSE:
            return sum(value == 0 for value in values)
    if not values:
        return None
    match kind:
        case AggregationType.MIN:
            return min(values)
        case AggregationType.MAX:
            return max(values)
        case AggregationType.COUNT:
            return len(values)
        case AggregationType.SUM:
            return _total(values)
        case _:
            return _total(values) / len(values)


def _total(values: Sequence[float]) -> float:
    try:
        return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)
    except OverflowError:
        return math.inf
