"""Series of metrics: what tells them apart, the figures of a point, and the arithmetic of cumulative ones.

Sums, histograms and gauges all come to one kind of figures, so that any number of points can be put together.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.means import between, bounded

RESOLUTION = 60 * times.SECOND
"""Points of a series within one minute are put together."""
MAX_BINS = 1000
MAX_COUNT = 2**43
"""What a point may count; sums of any number of points that are read together stay within 64 bits."""
_ID_BYTES = 16


class MetricKind(StrEnum):
    """What is added up over time (sums, histograms) and what is only looked at (gauges)."""

    SUM = "sum"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Bin(NamedTuple):
    """How many values of a histogram lie in `(low, high]`; None is infinite."""

    low: float | None
    high: float | None
    number: int

    @property
    def middle(self) -> float:
        """A value inside: the geometric middle where both ends have one sign, as widths grow by factors there."""
        low, high = self.low, self.high
        if low is None or high is None:
            return high if low is None and high is not None else low if low is not None else 0.0
        if low > 0:
            return math.sqrt(low) * math.sqrt(high)
        if high < 0:
            return -math.sqrt(-low) * math.sqrt(-high)
        return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some values: how many, their sum, the least, the greatest, and how they are distributed.

    Of a sum only `total` is known; of a gauge `count` says how often it was looked at.
    """

    count: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None
    bins: tuple[Bin, ...] = ()

    def with_more(self, other: "Figures") -> "Figures":
        """These and others."""
        return Figures(
            min(self.count + other.count, MAX_COUNT),
            bounded(self.total + other.total),
            min((value for value in (self.low, other.low) if value is not None), default=None),
            max((value for value in (self.high, other.high) if value is not None), default=None),
            add_bins(self.bins, other.bins),
        )

    def since(self, before: "Figures") -> "Figures":
        """What came after an earlier state of the same cumulative point; its extremes are not known."""
        return Figures(
            self.count - before.count,
            bounded(self.total - before.total),
            None,
            None,
            subtract_bins(self.bins, before.bins),
        )

    @property
    def is_nothing(self) -> bool:
        """True where nothing was counted."""
        return not self.count and not self.total

    def dump(self) -> str:
        """JSON text."""
        return orjson.dumps((self.count, self.total, self.low, self.high, self.bins), default=tuple).decode()

    @classmethod
    def load(cls, text: str) -> "Figures":
        """The figures of a JSON text."""
        count, total, low, high, bins = orjson.loads(text)
        return cls(count, total, low, high, load_bins(bins))


def dump_bins(bins: Sequence[Bin]) -> str | None:
    """JSON text of bins; None without any."""
    return orjson.dumps(bins, default=tuple).decode() if bins else None


def load_bins(found: Any) -> tuple[Bin, ...]:
    """Bins out of parsed JSON; what is none is left out."""
    return tuple(Bin(*one) for one in found if _is_bin(one)) if isinstance(found, list) else ()


def _is_bin(found: Any) -> bool:
    if not isinstance(found, list) or len(found) != 3:
        return False
    return type(found[2]) is int and all(end is None or type(end) in (int, float) for end in found[:2])


def add_bins(first: tuple[Bin, ...], second: tuple[Bin, ...]) -> tuple[Bin, ...]:
    """The bins of two histograms together; those with the same ends are one."""
    if not first or not second:
        return first or second
    counts: dict[tuple[float | None, float | None], int] = {}
    for low, high, number in (*first, *second):
        counts[low, high] = counts.get((low, high), 0) + number
    return tuple(sorted((Bin(low, high, number) for (low, high), number in counts.items()), key=_by_place))


def subtract_bins(now: tuple[Bin, ...], before: tuple[Bin, ...]) -> tuple[Bin, ...]:
    """The bins without what was in them before, also where they have become wider meanwhile."""
    if not before:
        return now
    ordered = sorted(now, key=_by_place)
    lows = [-math.inf if one.low is None else one.low for one in ordered]
    left = [one.number for one in ordered]
    for one in before:
        if one.number and ordered:
            place = max(0, bisect_right(lows, one.middle) - 1)
            left[place] = max(0, left[place] - one.number)
    return tuple(one._replace(number=number) for one, number in zip(ordered, left, strict=True) if number)


def _by_place(one: Bin) -> tuple[float, float]:
    return (-math.inf if one.low is None else one.low, math.inf if one.high is None else one.high)


def percentile_of_bins(figures: Figures, percentile: float) -> float | None:
    """The percentile of the values in the bins, interpolated within one; None without any."""
    ordered = sorted((one for one in figures.bins if one.number), key=_by_place)
    if not ordered:
        return None
    wanted = percentile / 100 * sum(one.number for one in ordered)
    below = 0
    for one in ordered:
        if below + one.number >= wanted:
            low, high = _ends(one, figures)
            return between(low, high, max(0.0, (wanted - below) / one.number))
        below += one.number
    return _ends(ordered[-1], figures)[1]


def _ends(one: Bin, figures: Figures) -> tuple[float, float]:
    """The ends of a bin, infinite ones as far as the values are known to go; values below one above 0 are above 0."""
    low = one.low if one.low is not None else figures.low if figures.low is not None else min(0.0, one.high or 0.0)
    high = one.high if one.high is not None else figures.high if figures.high is not None else one.low
    low, high = (0.0 if low is None else low), (0.0 if high is None else high)
    if figures.low is not None:
        low = max(low, min(figures.low, high))
    if figures.high is not None:
        high = min(high, max(figures.high, low))
    return low, high


@dataclass(frozen=True)
class Series:
    """A series of a project: `attributes` are those of its points and the name of the service, as sorted JSON text."""

    project: str
    name: str
    kind: MetricKind
    unit: str
    attributes: str
    description: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """What tells the series apart within its project."""
        return digest(self.name, self.kind, self.unit, self.attributes)


def digest(*parts: str) -> str:
    """A short name for some texts together."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=_ID_BYTES).hexdigest()


def attributes_text(attributes: Json) -> str:
    """Attributes as text: the same for the same ones in any order."""
    return orjson.dumps(attributes, option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, slots=True)
class Sample:
    """One point as it was reported. `at` and `start` are nanoseconds; a `start` of 0 is not known.

    `stream` names who reports: the states of one cumulative stream follow each other.
    """

    series: Series
    stream: str
    start: int
    at: int
    is_cumulative: bool
    figures: Figures
