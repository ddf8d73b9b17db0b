"""What is read of metrics: which there are, and their figures over time."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from heddle.errors import InvalidRequest
from heddle.http.own_bodies import OwnReq
from heddle.http.routing import Reader, ResponseModel, StoreDep, answer, group, off_loop
from heddle.store.control.metric_series import SeriesPoint, SeriesRow
from heddle.trace.rows import TimeRangeReq
from heddle.wire import times
from heddle.wire.aggregates import AggregateRow, uniform_runs
from heddle.wire.batched import group_pairs
from heddle.wire.buckets import MAX_PERCENTILES, AggregationType, check_figures, make_buckets, percentile_name
from heddle.wire.jsontypes import Json
from heddle.wire.metric_series import RESOLUTION, Figures, MetricKind, percentile_of_bins

router: APIRouter = group("Metrics")

MAX_RANGE_DAYS = 366
_POINT_BYTES = 100
MAX_VALUES = 200
"""How many values of an attribute are listed."""
_SUMMED = (AggregationType.SUM,)
_LOOKED_AT = (AggregationType.AVG, AggregationType.MIN, AggregationType.MAX, AggregationType.COUNT)
_FUNCTIONS = {
    MetricKind.SUM: _SUMMED,
    MetricKind.GAUGE: _LOOKED_AT,
    MetricKind.HISTOGRAM: (AggregationType.SUM, *_LOOKED_AT),
}
"""What can be computed of each kind; the first is what is computed where nothing is asked for."""


class MetricsQueryReq(OwnReq):
    """Body of /metrics/query."""

    name: str | None = None


class MetricInfo(ResponseModel):
    """A metric: what it counts, in how many series, and the values that their attributes have."""

    name: str
    kind: MetricKind
    unit: str
    description: str
    series: int
    attributes: dict[str, list[Any]]
    first_at: datetime
    last_at: datetime


class MetricsQueryRes(ResponseModel):
    """The metrics of a project by name."""

    metrics: list[MetricInfo]


class MetricStatsReq(TimeRangeReq, extra="forbid"):
    """Body of /metrics/stats.

    `kind` and `unit` are needed where series of one name have different ones. `attributes` are alternatives for each
    attribute; `group_by` are attributes whose values get figures of their own.
    """

    name: str
    kind: MetricKind | None = None
    unit: str | None = None
    attributes: dict[str, list[str | bool | int | float]] = Field(default_factory=dict)
    group_by: list[str] = Field(default_factory=list, max_length=8)
    aggregations: list[AggregationType] = Field(default_factory=list)
    percentiles: list[float] = Field(default_factory=list, max_length=MAX_PERCENTILES)


class MetricStatsRes(ResponseModel):
    """The figures per bucket and group; buckets in which nothing was reported are left out."""

    name: str
    kind: MetricKind
    unit: str
    description: str
    start: datetime
    end: datetime
    granularity: int
    timezone: str
    timestamps: list[datetime]
    buckets: list[dict[str, Any]]


@router.post("/metrics/query", response_model=MetricsQueryRes)
async def metrics_query(body: MetricsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """Which metrics a project has."""
    rows = await store.metric_series.all(caller.open(body.project_id), body.name)
    return answer({"metrics": list(_described(rows))})


def _described(rows: Iterable[SeriesRow]) -> Iterable[Json]:
    found = group_pairs(((row.name, row.kind, row.unit), row) for row in rows)
    for (name, kind, unit), some in sorted(found.items()):
        newest = max(some, key=lambda row: row.last_at)
        yield {
            "name": name,
            "kind": kind,
            "unit": unit,
            "description": newest.description,
            "series": len(some),
            "attributes": _values(some),
            "first_at": times.to_iso(min(row.first_at for row in some)),
            "last_at": times.to_iso(newest.last_at),
        }


def _values(rows: Sequence[SeriesRow]) -> dict[str, list[Any]]:
    """The values of each attribute, at most so many."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for key, value in row.attributes.items():
            known = found.setdefault(key, {})
            if len(known) < MAX_VALUES:
                known[str(value)] = value
    return {key: [known[text] for text in sorted(known)] for key, known in sorted(found.items())}


@router.post("/metrics/stats", response_model=MetricStatsRes)
async def metrics_stats(body: MetricStatsReq, caller: Reader, store: StoreDep) -> Response:
    """The figures of a metric per time bucket."""
    project = caller.open(body.project_id)
    start, end = body.bounds(MAX_RANGE_DAYS)
    rows = _chosen(await store.metric_series.all(project, body.name), body)
    kind = MetricKind(rows[0].kind) if rows else body.kind or MetricKind.SUM
    functions = _functions(kind, body)
    zone = body.timezone or "UTC"
    buckets = make_buckets(start // RESOLUTION * RESOLUTION, end, body.granularity, zone)
    points = await store.metric_series.points(
        project,
        [row.series for row in rows],
        uniform_runs(buckets, buckets.starts[0], end),
        with_bins=bool(body.percentiles),
    )
    newest = max(rows, key=lambda row: row.last_at, default=None)

    def shown() -> Iterator[Json]:
        grouped = group_points(rows, points, body.group_by)
        check_figures(len(grouped), len(functions) + len(body.percentiles))
        for row in grouped:
            yield {
                "timestamp": times.to_iso(buckets.starts[row.bucket]),
                "attributes": dict(zip(body.group_by, row.keys, strict=True)),
                **_figures(row.values["figures"], functions, body.percentiles),
            }

    return answer(
        {
            "name": body.name,
            "kind": kind,
            "unit": newest.unit if newest else body.unit or "",
            "description": newest.description if newest else "",
            "start": times.to_iso(start),
            "end": times.to_iso(end),
            "granularity": buckets.granularity,
            "timezone": zone,
            "timestamps": [times.to_iso(one) for one in buckets.starts],
            "buckets": await off_loop(len(points) * (1 + len(body.percentiles)) * _POINT_BYTES, lambda: list(shown())),
        }
    )


def _chosen(rows: Sequence[SeriesRow], body: MetricStatsReq) -> list[SeriesRow]:
    """The series that are asked for; raises InvalidRequest where they cannot be put together."""
    wanted = [
        row
        for row in rows
        if (body.kind is None or row.kind == body.kind)
        and (body.unit is None or row.unit == body.unit)
        and all(_is_one_of(row.attributes.get(key), values) for key, values in body.attributes.items())
    ]
    shapes = sorted({(row.kind, row.unit) for row in wanted})
    if len(shapes) > 1:
        named = "; ".join(f"kind {kind}, unit {unit!r}" for kind, unit in shapes[:20])
        raise InvalidRequest(
            f"Series of {body.name[:200]!r} have different kinds or units; set kind and unit ({named})"
        )
    return wanted


def _is_one_of(value: Any, wanted: Sequence[Any]) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)


def _functions(kind: MetricKind, body: MetricStatsReq) -> list[AggregationType]:
    known = _FUNCTIONS[kind]
    if unknown := [one for one in body.aggregations if one not in known]:
        raise InvalidRequest(f"{unknown[0]} cannot be computed for a {kind}; expected one of {', '.join(known)}")
    for percentile in body.percentiles:
        percentile_name(percentile)
    if body.percentiles and kind is not MetricKind.HISTOGRAM:
        raise InvalidRequest(f"Percentiles can only be computed for histograms, not for a {kind}")
    return body.aggregations or ([] if body.percentiles else [known[0]])


def group_points(
    rows: Sequence[SeriesRow], points: Iterable[SeriesPoint], group_by: Sequence[str]
) -> list[AggregateRow]:
    """The figures of the points by bucket and by values of attributes, in that order; None stands for no value."""
    keys = {row.series: tuple(row.attributes.get(key) for key in group_by) for row in rows}
    found: dict[tuple[int, str], tuple[tuple[Any, ...], Figures]] = {}
    for point in points:
        values = keys[point.series]
        place = point.bucket, repr(values)
        known = found.get(place)
        found[place] = (values, point.figures if known is None else known[1].with_more(point.figures))
    ordered = sorted(found.items(), key=lambda item: item[0])
    return [AggregateRow(place[0], values, {"figures": figures}) for place, (values, figures) in ordered]


def _figures(figures: Figures, functions: Iterable[AggregationType], percentiles: Iterable[float]) -> Json:
    values: Json = {
        AggregationType.SUM: figures.total,
        AggregationType.COUNT: figures.count,
        AggregationType.AVG: figures.total / figures.count if figures.count else None,
        AggregationType.MIN: figures.low,
        AggregationType.MAX: figures.high,
    }
    named: Json = {one.value: values[one] for one in functions}
    return named | {percentile_name(one): percentile_of_bins(figures, one) for one in percentiles}
