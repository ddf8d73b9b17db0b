"""Tags and ratings that scorers gave, rolled up by time and dimension (`/feedback/aggregate`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.store.control.feedback import Window
from heddle.trace.feedback.models import FeedbackAggregateReq

RATING = "_rating_"
"""The rating that `rating_min` and `rating_max` look at."""

Key = tuple[int | None, tuple[str, ...]]


@dataclass(slots=True)
class Tally:
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


class Aggregate:
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
        self._tallies: dict[Key, Tally] = {(None, ()): Tally()} if whole else {}

    def take(self, row: Sequence[Any]) -> None:
        """Note one row, given as the values of `columns`."""
        named = dict(zip(self.columns, row, strict=True))
        tags, ratings = orjson.loads(named["scorer_tags"]), orjson.loads(named["scorer_ratings"])
        if self._matches(named, tags, ratings):
            self._tallies.setdefault(self._key(named), Tally()).add(tags, ratings)

    def _key(self, row: dict[str, Any]) -> Key:
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
        if wanted.monitor_ids and not _names(object_id(row["trigger_ref"]), wanted.monitor_ids):
            return False
        if wanted.scorer_ids and not _names(object_id(row["runnable_ref"]), wanted.scorer_ids):
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


def _names(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(item.rstrip("*")) if item.endswith("*") else name == item for item in patterns)
