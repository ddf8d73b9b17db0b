"""Figures over payload values of feedback, per time bucket and over a whole range."""

import re
from collections.abc import Sequence
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.store.control.feedback import Window
from heddle.trace.feedback.models import FeedbackMetricSpec, FeedbackStatsReq
from heddle.wire import times
from heddle.wire.buckets import HOUR, AggregationType, Buckets, filled, make_buckets, percentile_name, summarise

JSON_PATH = re.compile(r"[A-Za-z0-9_. ]+")

_COUNT_ONLY = "Only the aggregation 'count' applies to categorical values"


def slug_of(json_path: str) -> str:
    """The name of a path inside the keys of an answer."""
    return json_path.replace(".", "_").replace(" ", "_")


class Metric:
    """One asked value: where it lies in a payload, and what was found so far."""

    def __init__(self, spec: FeedbackMetricSpec, buckets: int) -> None:
        if not JSON_PATH.fullmatch(spec.json_path) or not spec.json_path.strip():
            raise InvalidRequest(f"json_path may only contain [a-zA-Z0-9_. ], got: {spec.json_path[:200]!r}")
        if spec.value_type == "categorical" and set(spec.aggregations) != {AggregationType.COUNT}:
            raise InvalidRequest(_COUNT_ONLY)
        for percentile in spec.percentiles:
            percentile_name(percentile)
        self.slug = slug_of(spec.json_path)
        self.aggregations = spec.aggregations
        # Quantiles of truth values or of words mean nothing; they are ignored.
        self.percentiles = spec.percentiles if spec.value_type == "numeric" else []
        self.values: list[list[float]] = [[] for _ in range(buckets)]
        self._parts = spec.json_path.split(".")
        self._type = spec.value_type

    def take(self, bucket: int, payload: Any) -> None:
        """Note the value of one payload, when it has the asked type."""
        value = payload
        for part in self._parts:
            value = value.get(part) if isinstance(value, dict) else None
        number = self._number(value)
        if number is not None:
            self.values[bucket].append(number)

    def _number(self, value: Any) -> float | None:
        if self._type == "categorical":
            return 1 if isinstance(value, str) else None
        if self._type == "boolean":
            return int(value) if isinstance(value, bool) else None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def figures(self, bucket: int | None) -> dict[str, float | None]:
        """The figures of one bucket, or of the whole range."""
        values = self.values[bucket] if bucket is not None else [value for found in self.values for value in found]
        return summarise(values, self.aggregations, self.percentiles)


class Stats:
    """Collects the rows of a range for `/feedback/stats`; raises InvalidRequest for metrics that cannot be computed."""

    def __init__(self, request: FeedbackStatsReq, window: Window) -> None:
        self._window = window
        self._timezone = request.timezone or "UTC"
        empty = Buckets(HOUR, self._timezone, ())
        asked = bool(request.metrics)
        self._buckets = make_buckets(window.start, window.end, request.granularity, self._timezone) if asked else empty
        self._counts = [0] * len(self._buckets.starts)
        self._metrics = [Metric(spec, len(self._counts)) for spec in request.metrics]

    def take(self, row: Sequence[Any]) -> None:
        """Note one row: when it was created (microseconds), and its payload (JSON text)."""
        created_at, text = row
        bucket = self._buckets.index(created_at)
        self._counts[bucket] += 1
        payload = orjson.loads(text)
        for metric in self._metrics:
            metric.take(bucket, payload)

    def answer(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "start": times.to_iso(self._window.start),
            "end": times.to_iso(self._window.end),
            "granularity": self._buckets.granularity,
            "timezone": self._timezone,
            "buckets": [self._bucket(index, start) for index, start in enumerate(self._buckets.starts)],
            "window_stats": {metric.slug: metric.figures(None) for metric in self._metrics} or None,
        }

    def _bucket(self, index: int, start: int) -> dict[str, Any]:
        bucket: dict[str, Any] = {"timestamp": times.to_iso(start)}
        for metric in self._metrics:
            bucket |= {f"{name}_{metric.slug}": figure for name, figure in filled(metric.figures(index)).items()}
        return {**bucket, "count": self._counts[index]}
