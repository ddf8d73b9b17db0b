"""Means of any numbers: where their sum is beyond the range of floats, the mean is not."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_SCALE = 2.0**-64
"""So many numbers of any size sum up within the range once each is scaled by this, which is exact."""
_LARGEST = sys.float_info.max


def mean(values: Iterable[float]) -> float:
    """The mean of at least one finite number."""
    listed = list(values)
    try:
        return math.fsum(listed) / len(listed)
    except OverflowError:
        return bounded(math.fsum(value * _SCALE for value in listed) / len(listed) / _SCALE)


def with_one_more(mean: float, count: int, value: float) -> float:
    """The mean of `count` finite numbers and one more; an integer beyond every float counts as the largest of these."""
    number = bounded(value)
    total = mean * count + number
    return total / (count + 1) if math.isfinite(total) else mean * (count / (count + 1)) + number / (count + 1)


def between(low: float, high: float, share: float) -> float:
    """The number at a share (0 to 1) of the way from one finite number to another, however far apart they are."""
    found = low + share * (high - low)
    return found if math.isfinite(found) else low * (1 - share) + high * share


def bounded(value: float) -> float:
    """The number, or the largest float of its sign where it is beyond that."""
    return float(max(-_LARGEST, min(value, _LARGEST)))


@dataclass(slots=True)
class Mean:
    """The mean of finite numbers that come one by one."""

    count: int = 0
    _total: float = 0.0
    _scaled: float = 0.0

    def add(self, value: float) -> None:
        """Take one number in; an integer beyond every float counts as the largest of these."""
        number = bounded(value)
        self.count += 1
        self._total += number
        self._scaled += number * _SCALE

    @property
    def value(self) -> float:
        """The mean of at least one number."""
        if math.isfinite(self._total):
            return self._total / self.count
        return bounded(self._scaled / self.count / _SCALE)
