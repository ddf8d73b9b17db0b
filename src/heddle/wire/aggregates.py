"""One description of counts and sums, over calls or spans of agents: groups of rows, and what is computed of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heddle.errors import InvalidRequest
from heddle.wire import times
from heddle.wire.buckets import Buckets, pieces
from heddle.wire.call_fields import resolve_field
from heddle.wire.calls import CallsQuery, UniformRun
from heddle.wire.query import Operation


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a row: a field, a value that is computed (`derived`), or a custom attribute (`source` is its map).

    Of calls a `path` is any field of the query language, read as a number: true is 1, what is no number is nothing.
    """

    key: str
    source: str = "field"


@dataclass(frozen=True, slots=True)
class Key:
    """What rows are grouped by, and its name in the answer."""

    key: str
    source: str = "field"
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """What is computed of a group: a function of a value over the rows that match `filter`, and its name in the answer.

    Functions are count, count_distinct, sum, avg, min, max, count_true, count_false; of spans also total (a sum that is
    0 of nothing), list (the different texts) and percentile (`rank` from 0 to 100); of calls `values`, all in order,
    and `newest`, the id of the last that started.
    """

    alias: str
    function: str = "count"
    value: Value | None = None
    value_type: str | None = None
    filter: Operation | None = None
    rank: float = 0.0


_REACH = 10**8 * times.DAY
ALL_TIME = UniformRun(0, 0, _REACH, -_REACH, _REACH)
CALLS_AND_ERRORS = (Measure("calls"), Measure("errors", "sum", Value("error_count")))
"""How many calls there are, and how many of them failed."""


class AggregateRow(NamedTuple):
    """One group: the number of its bucket (0 without buckets), the values of its keys, and its measures by name."""

    bucket: int
    keys: tuple[Any, ...]
    values: dict[str, Any]


TOKENS = ("input_tokens", "output_tokens", "total_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_NUMBERS = ("sum", "avg", "min", "max", "count", "count_true", "count_false")
_PERCENTILE = re.compile(r"p(\d{1,2}(\.\d{1,3})?|100)")
FIGURES: Mapping[str, tuple[str, ...]] = {
    "calls": ("sum",),
    "errors": ("sum",),
    "error_share": ("avg",),
    "cost": ("sum",),
    "latency_ms": ("avg", *_NUMBERS),
    **dict.fromkeys(TOKENS, _NUMBERS),
}
"""What charts show of calls beside their fields, and the aggregations of each, the usual one first."""


def check_measure(field: str, aggregation: str | None) -> str:
    """The aggregation of a figure or of any field of calls, the usual one for None.

    Raises InvalidField for what is neither, InvalidRequest for an aggregation that it lacks.
    """
    if field not in FIGURES:
        resolve_field(field)
    known = FIGURES.get(field, ("avg", *_NUMBERS))
    if aggregation is None:
        return known[0]
    if aggregation in known or (len(known) > 1 and _PERCENTILE.fullmatch(aggregation)):
        return aggregation
    allowed = ", ".join(dict.fromkeys(known)) + (", p0 to p100" if len(known) > 1 else "")
    raise InvalidRequest(
        f"{field[:100]} does not support the aggregation {aggregation[:100]!r}; expected one of {allowed}"
    )


MODEL = "model"
OTHERS = "\x1fothers"
"""The key of all calls outside the groups that a split keeps."""


@dataclass(frozen=True, slots=True)
class Split:
    """Groups by the text of any field of calls, empty where a call has none; "model" is the model of usage.

    With `kept` there are those and the OTHERS.
    """

    path: str
    kept: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CallAggregate:
    """What is computed of which calls; of "usage" or "totals": of the tokens that they used, per model.

    Usage is what each call reports, totals leave out what calls only repeat of those below them. Groups are by op, name
    (of an op, all versions), user, thread_id, error_group and (of tokens) model; the key of a `split` comes before
    those. Runs of time buckets follow each other without gaps; rows of two runs are never put together, and without
    runs all time is one bucket. `sample` bounds of how many calls `values` are read. `most` leaves the groups with the
    highest values of the measure `order`, of a run.
    """

    query: CallsQuery
    measures: Sequence[Measure]
    group_by: Sequence[str] = ()
    runs: Sequence[UniformRun] = ()
    of: str = "calls"
    sample: int = 0
    order: str = ""
    most: int = 0
    split: Split | None = None


def cut_run(run: UniformRun, changes: Sequence[int]) -> list[UniformRun]:
    """A run in pieces that begin where prices change, so that one price holds for each sum."""
    return [run._replace(lower=lower, upper=upper) for lower, upper in pieces(run.lower, run.upper, changes)]


def uniform_runs(buckets: Buckets, start: int, end: int) -> list[UniformRun]:
    """The buckets as runs of equal width, so that the store computes a bucket's number by one division."""
    starts = [*buckets.starts]
    widths = [following - first for first, following in zip(starts, [*starts[1:], end], strict=True)]
    if len(widths) > 1:
        widths[-1] = max(widths[-1], widths[-2])
    runs: list[UniformRun] = []
    for index, (first, width) in enumerate(zip(starts, widths, strict=True)):
        upper = min(first + width, end)
        if runs and runs[-1].width == width:
            runs[-1] = runs[-1]._replace(upper=upper)
        else:
            runs.append(UniformRun(index, first, max(width, 1), max(first, start), upper))
    return runs
