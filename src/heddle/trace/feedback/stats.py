"""Statistics of feedback: payload values and scores over time, and which values payloads hold."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.store.control.feedback import Window
from heddle.trace.feedback.models import FeedbackAggregateReq, FeedbackMetricSpec, FeedbackStatsReq
from heddle.wire import jsontext, times
from heddle.wire.buckets import (
    HOUR,
    AggregationType,
    Buckets,
    check_figures,
    filled,
    make_buckets,
    percentile_name,
    summarise,
)

JSON_PATH = re.compile(r"[A-Za-z0-9_. ]+")

_COUNT_ONLY = "Only the aggregation 'count' applies to categorical values"


class PayloadMetric:
    """One asked value: where it lies in a payload, and what was found so far."""

    def __init__(self, spec: FeedbackMetricSpec, buckets: int) -> None:
        if not JSON_PATH.fullmatch(spec.json_path) or not spec.json_path.strip():
            raise InvalidRequest(f"json_path may only contain [a-zA-Z0-9_. ], got: {spec.json_path[:200]!r}")
        if spec.value_type == "categorical" and set(spec.aggregations) != {AggregationType.COUNT}:
            raise InvalidRequest(_COUNT_ONLY)
        for percentile in spec.percentiles:
            percentile_name(percentile)
        self.slug = spec.json_path.replace(".", "_").replace(" ", "_")
        self.aggregations = spec.aggregations
        # Quantiles of truth values or of words mean nothing; they are ignored.
        self.percentiles = spec.percentiles if spec.value_type == "numeric" else []
        self.values: list[list[float]] = [[] for _ in range(buckets)]
        self._parts = spec.json_path.split(".")
        self._type = spec.value_type

    def take(self, bucket: int, payload: Any) -> None:
        """Note the value of one payload, when it has the asked type."""
        number = self._number(jsontext.follow(payload, self._parts))
        if number is not None:
            self.values[bucket].append(number)

    def _number(self, value: Any) -> float | None:
        if self._type == "categorical":
            return 1 if isinstance(value, str) else None
        if self._type == "boolean":
            return int(value) if isinstance(value, bool) else None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def summarise(self, bucket: int | None) -> dict[str, float | None]:
        """The statistics of one bucket, or of the whole range."""
        values = self.values[bucket] if bucket is not None else [value for found in self.values for value in found]
        return summarise(values, self.aggregations, self.percentiles)


class PayloadStats:
    """Collects the rows of a range for `/feedback/stats`; raises InvalidRequest for metrics that cannot be computed."""

    def __init__(self, request: FeedbackStatsReq, window: Window) -> None:
        self._window = window
        self._timezone = request.timezone or "UTC"
        empty = Buckets(HOUR, self._timezone, ())
        asked = bool(request.metrics)
        self._buckets = make_buckets(window.start, window.end, request.granularity, self._timezone) if asked else empty
        self._counts = [0] * len(self._buckets.starts)
        width = sum(len(spec.aggregations) + len(spec.percentiles) for spec in request.metrics) + 1
        self.size = check_figures(len(self._counts), width)
        """About how many bytes the answer has."""
        self._metrics = [PayloadMetric(spec, len(self._counts)) for spec in request.metrics]

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
            "window_stats": {metric.slug: metric.summarise(None) for metric in self._metrics} or None,
        }

    def _bucket(self, index: int, start: int) -> dict[str, Any]:
        bucket: dict[str, Any] = {"timestamp": times.to_iso(start)}
        for metric in self._metrics:
            bucket |= {f"{name}_{metric.slug}": figure for name, figure in filled(metric.summarise(index)).items()}
        return {**bucket, "count": self._counts[index]}


RATING = "_rating_"
"""The rating that `rating_min` and `rating_max` look at."""

_GroupKey = tuple[int | None, tuple[str, ...]]


@dataclass(slots=True)
class ScoreTally:
    """The counts and sums of one bucket and group."""

    total: int = 0
    scored: int = 0
    tag_counts: dict[str, int] = field(default_factory=dict)
    rating_counts: dict[str, int] = field(default_factory=dict)
    rating_sums: dict[str, float] = field(default_factory=dict)

    def add(self, tags: Sequence[str], ratings: dict[str, float]) -> None:
        """Count one row."""
        self.total += 1
        self.scored += bool(tags or ratings)
        for tag in tags:
            self.tag_counts[tag] = self.tag_counts.get(tag, 0) + 1
        for name, rating in ratings.items():
            self.rating_counts[name] = self.rating_counts.get(name, 0) + 1
            self.rating_sums[name] = self.rating_sums.get(name, 0.0) + rating


class ScoreAggregate:
    """Collects the rows of a range for `/feedback/aggregate`."""

    columns = (
        *("created_at", "feedback_type", "weave_ref", "runnable_ref", "trigger_ref", "scorer_tags", "scorer_ratings"),
        *("span_agent_name", "span_agent_version", "span_status_code"),
    )

    def __init__(self, request: FeedbackAggregateReq) -> None:
        self._request = request
        self.window = Window(_micros(request.after_ms), _micros(request.before_ms))
        # Without any dimension there is one row, also over no feedback at all.
        whole = request.time_bucket_seconds is None and not request.group_by
        self._tallies: dict[_GroupKey, ScoreTally] = {(None, ()): ScoreTally()} if whole else {}

    def take(self, row: Sequence[Any]) -> None:
        """Note one row, given as the values of `columns`."""
        named = dict(zip(self.columns, row, strict=True))
        tags, ratings = orjson.loads(named["scorer_tags"]), orjson.loads(named["scorer_ratings"])
        if self._matches(named, tags, ratings):
            self._tallies.setdefault(self._key(named), ScoreTally()).add(tags, ratings)

    def _key(self, row: dict[str, Any]) -> _GroupKey:
        seconds = self._request.time_bucket_seconds
        bucket = None if seconds is None else row["created_at"] // (seconds * 1_000_000) * seconds * 1000
        groups = (
            object_id(row["runnable_ref"]) if name == "scorer_id" else row[name] for name in self._request.group_by
        )
        return bucket, tuple(groups)

    def _matches(self, row: dict[str, Any], tags: list[str], ratings: dict[str, float]) -> bool:
        wanted = self._request
        if wanted.feedback_types:
            prefixes = tuple(name.rstrip("*") for name in wanted.feedback_types)
            if not row["feedback_type"].startswith(prefixes):
                return False
        if wanted.monitor_ids and not _matches_any(object_id(row["trigger_ref"]), wanted.monitor_ids):
            return False
        if wanted.scorer_ids and not _matches_any(object_id(row["runnable_ref"]), wanted.scorer_ids):
            return False
        if wanted.span_agent_names and row["span_agent_name"] not in wanted.span_agent_names:
            return False
        if wanted.span_types and span_type(row["weave_ref"]) not in wanted.span_types:
            return False
        if wanted.tags and not set(wanted.tags) & set(tags):
            return False
        return self._rated(ratings)

    def _rated(self, ratings: dict[str, float]) -> bool:
        low, high = self._request.rating_min, self._request.rating_max
        if low is None and high is None:
            return True
        rating = ratings.get(RATING)
        return rating is not None and (low is None or rating >= low) and (high is None or rating <= high)

    def answer(self) -> dict[str, Any]:
        """The body of the answer."""
        request = self._request
        ordered = sorted(self._tallies.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
        return {
            "time_bucket_seconds": request.time_bucket_seconds,
            "after_ms": request.after_ms,
            "before_ms": request.before_ms,
            "buckets": [
                {
                    "time_bucket_start_ms": bucket,
                    "group": dict(zip(request.group_by, groups, strict=True)),
                    "total_count": tally.total,
                    "scored_count": tally.scored,
                    "tag_counts": tally.tag_counts,
                    "rating_counts": tally.rating_counts,
                    "rating_sums": tally.rating_sums,
                }
                for (bucket, groups), tally in ordered
            ],
        }


def _micros(milliseconds: int) -> int:
    return min(milliseconds * 1000, 2**62)


def object_id(ref: str | None) -> str:
    """The object name at the end of a ref; empty without one."""
    return (ref or "").rpartition("/")[2].partition(":")[0]


def span_type(ref: str) -> str:
    """The kind of what a ref targets: its last segment but one."""
    segments = ref.split("/")
    return segments[-2] if len(segments) > 1 else ""


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(item.rstrip("*")) if item.endswith("*") else name == item for item in patterns)


_NUMBERS = (int, float, type(None))


def find_payload_paths(payloads: Iterable[str]) -> list[dict[str, str]]:
    """`{json_path, value_type}` of every leaf in payloads (JSON texts), sorted by path."""
    kinds: dict[str, set[type]] = {}
    for text in payloads:
        for path, value in leaves(orjson.loads(text), ""):
            if JSON_PATH.fullmatch(path):
                kinds.setdefault(path, set()).add(type(value))
    return [{"json_path": path, "value_type": _value_type(kinds[path])} for path in sorted(kinds)]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every scalar with its dotted path; scalars of a list have the list's path, containers in a list are skipped.

    Keys with a dot and blank keys are skipped: no path can name them.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if "." not in key and key.strip():
                yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield from ((path, item) for item in value if not isinstance(item, (dict, list)))
    else:
        yield path, value


def _value_type(kinds: set[type]) -> str:
    if kinds <= {bool, type(None)}:
        return "boolean"
    return "numeric" if kinds <= set(_NUMBERS) else "categorical"
