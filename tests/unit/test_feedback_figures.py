"""Statistics and roll-ups of feedback over rows with made-up times."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from heddle.errors import InvalidRequest
from heddle.trace.feedback.models import FeedbackAggregateReq, FeedbackStatsReq
from heddle.trace.feedback.stats import PayloadStats, ScoreAggregate
from heddle.wire import refs, times

Json = Any
HOUR = 3600 * times.SECOND
START = "2024-06-01T10:30:00Z"


def at(text: str) -> int:
    """Microseconds of ISO text."""
    micros = times.parse(text)
    assert micros is not None
    return micros


def stats(metrics: list[Json], rows: list[tuple[str, Json]], **body: Json) -> Json:
    """The answer over rows `(created_at, payload)`."""
    given = {"project_id": "e/p", "start": START, "end": "2024-06-01T13:00:00Z", "granularity": 3600, **body}
    request = FeedbackStatsReq(**given, metrics=metrics)
    collected = PayloadStats(request, request.window())
    for created_at, payload in rows:
        collected.take((at(created_at), json.dumps(payload)))
    return collected.answer()


ROWS = [
    ("2024-06-01T10:30:00Z", {"score": 1, "ok": True, "label": "good", "deep": {"x y": 2}}),
    ("2024-06-01T10:59:59Z", {"score": 2.5, "ok": False, "label": "bad"}),
    ("2024-06-01T12:00:00Z", {"score": "7", "ok": "true", "label": 5}),
    ("2024-06-01T12:59:59.999999Z", {"score": True, "ok": 1, "label": "good", "deep": {"x y": 4}}),
]


def test_numbers_per_bucket_and_over_the_range() -> None:
    """Only JSON numbers count; buckets without any show 0 or null."""
    found = stats([{"json_path": "score", "aggregations": ["sum", "avg", "min", "count"], "percentiles": [50]}], ROWS)
    assert {key: found[key] for key in ("start", "end", "granularity", "timezone")} == {
        "start": "2024-06-01T10:30:00.000000Z",
        "end": "2024-06-01T13:00:00.000000Z",
        "granularity": 3600,
        "timezone": "UTC",
    }
    empty = {"sum_score": 0, "avg_score": 0, "min_score": None, "count_score": 0, "p50_score": None}
    assert found["buckets"] == [
        {
            "timestamp": "2024-06-01T10:00:00.000000Z",
            "sum_score": 3.5,
            "avg_score": 1.75,
            "min_score": 1,
            "count_score": 2,
            "p50_score": 1.75,
            "count": 2,
        },
        {"timestamp": "2024-06-01T11:00:00.000000Z", **empty, "count": 0},
        {"timestamp": "2024-06-01T12:00:00.000000Z", **empty, "count": 2},
    ]
    assert found["window_stats"] == {"score": {"sum": 3.5, "avg": 1.75, "min": 1, "count": 2, "p50": 1.75}}


def test_defaults_by_type_and_names_of_keys() -> None:
    """numeric avg/min/max, boolean count_true/count_false, categorical count; dots and blanks become underscores."""
    found = stats(
        [
            {"json_path": "deep.x y"},
            {"json_path": "ok", "value_type": "boolean", "percentiles": [50]},
            {"json_path": "label", "value_type": "categorical", "percentiles": [50]},
        ],
        ROWS,
    )
    assert found["buckets"][0] == {
        "timestamp": "2024-06-01T10:00:00.000000Z",
        "avg_deep_x_y": 2,
        "min_deep_x_y": 2,
        "max_deep_x_y": 2,
        "count_true_ok": 1,
        "count_false_ok": 1,
        "count_label": 2,
        "count": 2,
    }
    assert found["window_stats"] == {
        "deep_x_y": {"avg": 3, "min": 2, "max": 4},
        "ok": {"count_true": 1, "count_false": 1},
        "label": {"count": 3},
    }


def test_no_rows_and_no_metrics() -> None:
    """Figures of nothing are null over the range; without metrics there are no buckets at all."""
    found = stats([{"json_path": "score", "aggregations": ["sum", "count"], "percentiles": [99.5]}], [])
    assert found["window_stats"] == {"score": {"sum": None, "count": None, "p99.5": None}}
    assert [bucket["p99.5_score"] for bucket in found["buckets"]] == [None, None, None]
    nothing = stats([], [])
    assert (nothing["granularity"], nothing["buckets"], nothing["window_stats"]) == (3600, [], None)


def test_buckets_in_a_zone() -> None:
    """Days of New York."""
    body = {"start": "2024-06-01T00:00:00Z", "end": "2024-06-02T12:00:00Z", "granularity": 86400}
    found = stats([{"json_path": "score"}], ROWS, timezone="America/New_York", **body)
    assert [(bucket["timestamp"], bucket["count"]) for bucket in found["buckets"]] == [
        ("2024-05-31T04:00:00.000000Z", 0),
        ("2024-06-01T04:00:00.000000Z", 4),
        ("2024-06-02T04:00:00.000000Z", 0),
    ]
    assert found["timezone"] == "America/New_York"


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ({"json_path": "a-b"}, "json_path"),
        ({"json_path": ""}, "json_path"),
        ({"json_path": "  "}, "json_path"),
        ({"json_path": "a'); drop"}, "json_path"),
        ({"json_path": "a\n"}, "json_path"),
        ({"json_path": "a", "percentiles": [101]}, "Percentile"),
        ({"json_path": "a", "value_type": "categorical", "aggregations": ["avg"]}, "categorical"),
    ],
)
def test_metrics_that_cannot_be_computed(metric: Json, reason: str) -> None:
    """400."""
    with pytest.raises(InvalidRequest, match=reason):
        stats([metric], [])


def test_ranges_are_bounded() -> None:
    """At most 31 days, forwards."""
    for body in ({"start": "2024-07-01", "end": "2024-06-01"}, {"start": "2024-05-01", "end": "2024-06-02"}):
        with pytest.raises(ValidationError):
            stats([], [], **body)


def ref(kind: str, tail: str) -> str:
    """An internal ref."""
    return f"{refs.INTERNAL}ZS9w/{kind}/{tail}"


def row(minutes: int, **fields: Json) -> list[Json]:
    """A row of the aggregate's columns, created so many minutes after 1970."""
    given: dict[str, Json] = {
        "created_at": minutes * 60 * times.SECOND,
        "feedback_type": "wandb.runnable.judge",
        "weave_ref": ref("call", "c"),
        "runnable_ref": None,
        "trigger_ref": None,
        "scorer_tags": [],
        "scorer_ratings": {},
        "span_agent_name": "",
        "span_agent_version": "",
        "span_status_code": "UNSET",
        **fields,
    }
    return [json.dumps(given[name]) if name.startswith("scorer_") else given[name] for name in ScoreAggregate.columns]


SCORES = [
    row(1, scorer_tags=["a", "b"], runnable_ref=ref("object", "judge:1"), trigger_ref=ref("object", "mon:1")),
    row(2, scorer_ratings={"_rating_": 0.25, "x": 2}, runnable_ref=ref("op", "judge:2"), span_agent_name="bot"),
    row(61, scorer_tags=["a"], scorer_ratings={"_rating_": 0.75}, runnable_ref=ref("object", "other:1")),
    row(
        62, feedback_type="wandb.agent_monitor", trigger_ref=ref("object", "monday:1"), weave_ref=ref("agent_turn", "t")
    ),
]


def aggregate(**body: Json) -> Json:
    """The buckets over the scores of the first two hours."""
    request = FeedbackAggregateReq(**{"project_id": "e/p", "after_ms": 0, "before_ms": 7_200_000, **body})
    collected = ScoreAggregate(request)
    for score in SCORES:
        collected.take(score)
    return collected.answer()["buckets"]


def test_everything_in_one_row() -> None:
    """Without any dimension; also over nothing."""
    assert aggregate() == [
        {
            "time_bucket_start_ms": None,
            "group": {},
            "total_count": 4,
            "scored_count": 3,
            "tag_counts": {"a": 2, "b": 1},
            "rating_counts": {"_rating_": 2, "x": 1},
            "rating_sums": {"_rating_": 1.0, "x": 2.0},
        }
    ]
    nothing = aggregate(tags=["none"])
    assert [bucket["total_count"] for bucket in nothing] == [0]
    assert aggregate(tags=["none"], time_bucket_seconds=3600) == []


def test_by_time_and_dimension() -> None:
    """Ordered by time, then by group; empty buckets are left out."""
    hours = aggregate(time_bucket_seconds=3600)
    assert [(bucket["time_bucket_start_ms"], bucket["total_count"]) for bucket in hours] == [(0, 2), (3_600_000, 2)]
    found = aggregate(time_bucket_seconds=3600, group_by=["scorer_id", "span_agent_name"])
    assert [(bucket["time_bucket_start_ms"], bucket["group"], bucket["total_count"]) for bucket in found] == [
        (0, {"scorer_id": "judge", "span_agent_name": ""}, 1),
        (0, {"scorer_id": "judge", "span_agent_name": "bot"}, 1),
        (3_600_000, {"scorer_id": "", "span_agent_name": ""}, 1),
        (3_600_000, {"scorer_id": "other", "span_agent_name": ""}, 1),
    ]
    statuses = aggregate(group_by=["span_status_code"])
    assert [(bucket["group"], bucket["total_count"]) for bucket in statuses] == [({"span_status_code": "UNSET"}, 4)]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"feedback_types": ["wandb.runnable."]}, 3),
        ({"feedback_types": ["wandb.agent*", "wandb.runnable.judge"]}, 4),
        ({"tags": ["b", "z"]}, 1),
        ({"scorer_ids": ["judge"]}, 2),
        ({"scorer_ids": ["jud*", "other"]}, 3),
        ({"scorer_ids": ["jud"]}, 0),
        ({"monitor_ids": ["mon"]}, 1),
        ({"monitor_ids": ["mon*"]}, 2),
        ({"span_agent_names": ["bot", "x"]}, 1),
        ({"span_types": ["agent_turn"]}, 1),
        ({"span_types": ["agent_conversation"]}, 0),
        ({"rating_min": 0.5}, 1),
        ({"rating_max": 0.5}, 1),
        ({"rating_min": 0, "rating_max": 1}, 2),
    ],
)
def test_filters(body: Json, count: int) -> None:
    """Each alone."""
    assert [bucket["total_count"] for bucket in aggregate(**body)] == [count]


@pytest.mark.parametrize(
    "body",
    [
        {"after_ms": 5, "before_ms": 5},
        {"after_ms": -1},
        {"before_ms": 32 * 86_400_000, "tags": ["a"]},
        {"before_ms": 32 * 86_400_000, "group_by": ["scorer_id"]},
        {"before_ms": 32 * 86_400_000, "time_bucket_seconds": 86_400},
        {"time_bucket_seconds": 28},
        {"time_bucket_seconds": 0},
        {"rating_min": 1.5},
        {"group_by": ["weave_ref"]},
        {"span_types": ["agent_span"]},
    ],
)
def test_refused_aggregates(body: Json) -> None:
    """All are 422."""
    with pytest.raises(ValidationError):
        aggregate(**body)


def test_the_total_of_all_time_is_allowed() -> None:
    """No dimension and no filter: any range."""
    assert aggregate(before_ms=10**15)[0]["total_count"] == 4
