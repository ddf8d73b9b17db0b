"""One export of metrics: decoded, routed to projects, and counted as series."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heddle.http.routing import off_loop
from heddle.trace.otel.export import MISSING, SERVICE_NAME, Cause, SignalExport
from heddle.trace.otel.signals import (
    CUMULATIVE,
    DELTA,
    NO_RECORDED_VALUE,
    ExponentialBuckets,
    ExponentialHistogram,
    ExponentialPoint,
    Gauge,
    Histogram,
    HistogramPoint,
    Metric,
    NumberPoint,
    Sum,
    Summary,
    SummaryPoint,
    decode_metrics,
)
from heddle.wire.jsontypes import Json
from heddle.wire.metric_series import (
    MAX_BINS,
    MAX_COUNT,
    Bin,
    Figures,
    MetricKind,
    Sample,
    Series,
    attributes_text,
    digest,
)

MAX_NAME, MAX_ATTRIBUTES = 255, 8192
"""The longest name of a metric, and the most bytes of the attributes of a point, as JSON."""
_MAX_TIME = 2**63 - 1
_MAX_DESCRIPTION = 1000
Point = NumberPoint | HistogramPoint | ExponentialPoint | SummaryPoint


class _Unfit(ValueError):
    """A point that cannot be counted."""


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Who reports to which project."""

    project: str
    service: str
    resource: str


class MetricsExport(SignalExport):
    """The metrics of one request."""

    async def store(self, body: bytes, is_json: bool) -> int:
        """Count the points; how many. Raises HeddleError, and then nothing is counted."""
        samples = await off_loop(len(body), lambda: self._read(body, is_json))
        for project in {sample.series.project for sample in samples}:
            if not await self._store.projects.exists(project):
                await self._store.projects.make(project, None)
        most = self._settings.max_metric_series
        rejected = await self._store.metric_series.write(samples, most)
        for sample in rejected:
            series = sample.series
            self.rejected.add(
                Cause.TOO_MANY_SERIES,
                f"Rejected point (metric={series.name!r}): the project has {most} series (max_metric_series) already; "
                "report fewer different attributes, or raise the limit",
                series.project,
            )
        return len(samples) - len(rejected)

    def _read(self, body: bytes, is_json: bool) -> list[Sample]:
        found: list[Sample] = []
        for group, project in self._projects.route(decode_metrics(body, is_json)):
            if not project:
                for metric in group.items:
                    self._reject_all(Cause.NO_PROJECT, metric, MISSING, None)
                continue
            resource = group.resource.attributes
            reporter = _Reporter(project, str(resource.get(SERVICE_NAME, "")), attributes_text(resource))
            for metric in group.items:
                found += self._samples(metric, reporter)
        return found

    def _samples(self, metric: Metric, reporter: _Reporter) -> Iterator[Sample]:
        data = metric.data
        why = _problem(metric)
        if why or data is None:
            self._reject_all(Cause.INVALID_METRIC, metric, why, reporter.project)
            return
        kind, is_cumulative = _kind(metric)
        for point in data.points:
            if point.flags & NO_RECORDED_VALUE:
                continue
            try:
                yield _sample(metric, kind, is_cumulative, point, reporter)
            except _Unfit as unfit:
                self.rejected.add(Cause.INVALID_METRIC, _told(metric, str(unfit)), reporter.project)

    def _reject_all(self, cause: Cause, metric: Metric, why: str, project: str | None) -> None:
        for _ in metric.data.points if metric.data is not None else (None,):
            self.rejected.add(cause, _told(metric, why), project)


def _told(metric: Metric, why: str) -> str:
    return f"Rejected point (metric={metric.name[:200]!r}): {why}"


def _problem(metric: Metric) -> str:
    """Why no point of a metric can be counted."""
    data = metric.data
    if not metric.name or len(metric.name) > MAX_NAME or "\0" in metric.name:
        return f"the name must have 1 to {MAX_NAME} characters"
    if len(metric.unit) > MAX_NAME:
        return f"the unit can have at most {MAX_NAME} characters"
    if data is None:
        return "its kind is unknown"
    if isinstance(data, Summary):
        return "summaries are not supported; export a histogram"
    if not isinstance(data, Gauge) and data.temporality not in (DELTA, CUMULATIVE):
        return "its aggregation_temporality must be delta or cumulative"
    return ""


def _kind(metric: Metric) -> tuple[MetricKind, bool]:
    """What the series of a metric is, and whether its points tell everything since their start."""
    data = metric.data
    if isinstance(data, (Histogram, ExponentialHistogram)):
        return MetricKind.HISTOGRAM, data.temporality == CUMULATIVE
    if isinstance(data, Sum) and (data.is_monotonic or data.temporality == DELTA):
        return MetricKind.SUM, data.temporality == CUMULATIVE
    # What rises and falls is a level, whatever it was added up from.
    return MetricKind.GAUGE, False


def _sample(metric: Metric, kind: MetricKind, is_cumulative: bool, point: Point, reporter: _Reporter) -> Sample:
    named: Json = {**point.attributes}
    if reporter.service:
        named.setdefault(SERVICE_NAME, reporter.service)
    attributes = attributes_text(named)
    if len(attributes) > MAX_ATTRIBUTES:
        raise _Unfit(f"its attributes have {len(attributes)} bytes, more than {MAX_ATTRIBUTES}")
    if not 0 < point.time <= _MAX_TIME or not 0 <= point.start <= _MAX_TIME:
        raise _Unfit("its time_unix_nano is missing or does not fit in 63 bits")
    series = Series(reporter.project, metric.name, kind, metric.unit, attributes, metric.description[:_MAX_DESCRIPTION])
    stream = digest(reporter.resource, str(point.start) if is_cumulative else "")
    return Sample(series, stream, point.start, point.time, is_cumulative, _figures(kind, point))


def _figures(kind: MetricKind, point: Point) -> Figures:
    if isinstance(point, NumberPoint):
        value = _finite(point.value, "value")
        if value is None:
            raise _Unfit("it has no value")
        return Figures(0, value) if kind is MetricKind.SUM else Figures(1, value, value, value)
    if isinstance(point, SummaryPoint):
        raise _Unfit("it is a summary")
    if not 0 <= point.count <= MAX_COUNT:
        raise _Unfit("its count does not fit in 43 bits")
    bins = explicit_bins(point) if isinstance(point, HistogramPoint) else exponential_bins(point)
    return Figures(
        point.count,
        _finite(point.sum, "sum") or 0.0,
        _finite(point.min, "min"),
        _finite(point.max, "max"),
        tuple(bins),
    )


def _finite(value: float | None, name: str) -> float | None:
    """The number as a float; raises _Unfit for one that is infinite or none (which decoders give as text)."""
    if value is None:
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise _Unfit(f"its {name} is not finite")
    return found


def explicit_bins(point: HistogramPoint) -> list[Bin]:
    """The bins of a histogram with bounds that were chosen; raises _Unfit where bounds and counts do not fit."""
    counts, bounds = point.counts, [_finite(bound, "bounds") or 0.0 for bound in point.bounds]
    if not counts and not bounds:
        return []
    if len(counts) != len(bounds) + 1 or any(one >= other for one, other in pairwise(bounds)):
        raise _Unfit("its explicit_bounds must be increasing, with one more bucket_counts than bounds")
    ends: Sequence[float | None] = [None, *bounds, None]
    return _bins((low, high, count) for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True))


def exponential_bins(point: ExponentialPoint) -> list[Bin]:
    """The bins of a histogram whose buckets grow by a factor; raises _Unfit for buckets beyond every number."""
    if not -11 <= point.scale <= 20:
        raise _Unfit("its scale must be between -11 and 20")
    zero = abs(_finite(point.zero_threshold, "zero_threshold") or 0.0)
    middle = [(-zero, zero, point.zero_count)]
    above = [*_growing(point.positive, point.scale)]
    below = [(-high, -low, count) for low, high, count in _growing(point.negative, point.scale)]
    return _bins([*reversed(below), *middle, *above])


def _growing(buckets: ExponentialBuckets, scale: int) -> Iterator[tuple[float, float, int]]:
    exponent = 2.0**-scale
    for place, count in enumerate(buckets.counts, buckets.offset):
        if count:
            try:
                low, high = 2.0 ** (place * exponent), 2.0 ** ((place + 1) * exponent)
            except OverflowError:
                raise _Unfit("the bounds of a bucket are too large") from None
            yield low, high, count


def _bins(found: Iterable[tuple[float | None, float | None, int]]) -> list[Bin]:
    bins = [Bin(low, high, count) for low, high, count in found if count]
    if len(bins) > MAX_BINS:
        raise _Unfit(f"it has more than {MAX_BINS} buckets")
    if any(not 0 <= one.number <= MAX_COUNT for one in bins):
        raise _Unfit("the count of a bucket does not fit in 43 bits")
    return bins
