"""What the overview of a project asks the store for, and what it gets."""

from typing import NamedTuple


class TimeSpan(NamedTuple):
    """A stretch of time cut into equal buckets; instants in microseconds, `end` is exclusive."""

    start: int
    end: int
    width: int


class CallCounts(NamedTuple):
    """The calls that started in one bucket; latencies in seconds are those of root calls that ended, None without."""

    bucket: int
    calls: int
    errors: int
    median: float | None
    high: float | None


class ProjectOverview(NamedTuple):
    """The buckets that hold anything, and the whole of the span."""

    counts: list[CallCounts]
    whole: CallCounts
