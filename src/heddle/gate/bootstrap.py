"""How sure a mean difference is: the percentile bootstrap over rows.

Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13: rows are drawn with replacement, and the
interval lies between two percentiles of the means of the draws. Both runs answered the same rows, so it is their
differences that are drawn (a paired design), and what makes a row easy or hard cancels out.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

RESAMPLES = 10_000
FEWEST_RESAMPLES = 1_000
_MOST_DRAWS = 20_000_000
CONFIDENCE = 0.95
SEED = 20_240_607


class Interval(NamedTuple):
    """Where the mean lies with the confidence asked for."""

    low: float
    high: float


def resamples_for(rows: int) -> int:
    """10,000, and fewer where rows are so many that they are hardly needed: at least 1,000."""
    return max(FEWEST_RESAMPLES, min(RESAMPLES, _MOST_DRAWS // max(1, rows)))


def interval(differences: Sequence[float], confidence: float = CONFIDENCE, seed: int = SEED) -> Interval | None:
    """The interval of the mean; the same for the same differences and seed. None for no differences."""
    if not differences:
        return None
    if all(value == differences[0] for value in differences):
        return Interval(differences[0], differences[0])
    generator = random.Random(seed)
    count = len(differences)
    draws = range(resamples_for(count))
    means = sorted(math.fsum(generator.choices(differences, k=count)) / count for _ in draws)
    tail = (1 - confidence) / 2
    return Interval(_quantile(means, tail), _quantile(means, 1 - tail))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
