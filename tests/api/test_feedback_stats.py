"""Figures over feedback, over HTTP: which rows they see, and the shape of the answers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Wire

Json = Any


def moment(minutes: float) -> str:
    """ISO text so many minutes from now."""
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def create(wire: Wire, payload: Json, feedback_type: str = "custom", **more: Json) -> None:
    """Store a row on a call."""
    body = {"weave_ref": f"weave:///{wire.project}/call/c1", "feedback_type": feedback_type, "payload": payload, **more}
    wire.post("/feedback/create", **body)


def scored(wire: Wire, score: float, trigger: str, **more: Json) -> None:
    """Store a scorer's row that a monitor triggered."""
    runnable = f"weave:///{wire.project}/object/judge:1"
    trigger_ref = f"weave:///{wire.project}/object/{trigger}"
    create(wire, {"output": score}, "wandb.runnable.judge", runnable_ref=runnable, trigger_ref=trigger_ref, **more)


def counted(wire: Wire, **body: Json) -> int:
    """How many rows the statistics of the last hour see."""
    given = {"start": moment(-60), "end": moment(60), "metrics": [{"json_path": "output"}], **body}
    return sum(bucket["count"] for bucket in wire.post("/feedback/stats", **given)["buckets"])


def test_stats_of_the_last_hour(wire: Wire) -> None:
    """The range is cut into buckets of five minutes that begin on the clock's multiples."""
    for score in (1, 2, 4):
        create(wire, {"score": score})
    answer = wire.post("/feedback/stats", start=moment(-60), metrics=[{"json_path": "score", "percentiles": [50]}])
    assert answer["granularity"] == 300
    assert 12 <= len(answer["buckets"]) <= 14
    assert all(bucket["timestamp"][14:16] in {f"{n:02d}" for n in range(0, 60, 5)} for bucket in answer["buckets"])
    assert sum(bucket["count"] for bucket in answer["buckets"]) == 3
    assert answer["window_stats"] == {"score": {"avg": pytest.approx(7 / 3), "min": 1, "max": 4, "p50": 2}}


def test_which_rows_are_seen(wire: Wire) -> None:
    """By type, by trigger (exactly, or all its versions), by time, and only of the project."""
    scored(wire, 1, "monitor:1")
    scored(wire, 2, "monitor:2")
    scored(wire, 3, "monitor-b:1")
    create(wire, {"output": 4})
    ref = f"weave:///{wire.project}/object/monitor"
    assert counted(wire) == 4
    assert counted(wire, feedback_type="wandb.runnable.judge") == 3
    assert counted(wire, trigger_ref=f"{ref}:1") == 1
    assert counted(wire, trigger_ref=f"{ref}:*") == 2
    assert counted(wire, trigger_ref=f"{ref}-b:*") == 1
    assert counted(wire, start=moment(-60), end=moment(-30)) == 0
    assert counted(wire, project_id=f"{wire.project}-other") == 0


def test_payload_schema_samples_the_newest_payload_of_each_trigger(wire: Wire) -> None:
    """Older payloads of the same trigger are not looked at."""
    create(wire, {"old": 1})
    create(wire, {"new": {"x": 1, "ok": True, "tags": ["a"]}})
    scored(wire, 0.5, "monitor:1")
    body = {"start": moment(-60), "end": moment(60)}
    assert wire.post("/feedback/payload_schema", **body)["paths"] == [
        {"json_path": "new.ok", "value_type": "boolean"},
        {"json_path": "new.tags", "value_type": "categorical"},
        {"json_path": "new.x", "value_type": "numeric"},
        {"json_path": "output", "value_type": "numeric"},
    ]
    only = wire.post("/feedback/payload_schema", **body, feedback_type="wandb.runnable.judge")["paths"]
    assert only == [{"json_path": "output", "value_type": "numeric"}]
    newest = wire.post("/feedback/payload_schema", **body, sample_limit=1)["paths"]
    assert newest == [{"json_path": "output", "value_type": "numeric"}]


def test_aggregate(wire: Wire) -> None:
    """Tags and ratings of the stored rows."""
    scored(wire, 1, "monitor:1", scorer_tags=["good", "fast"], scorer_ratings={"_rating_": 0.5})
    scored(wire, 2, "monitor:1", scorer_tags=["good"])
    create(wire, {})
    now = int(datetime.now(UTC).timestamp() * 1000)
    body = {"after_ms": now - 3_600_000, "before_ms": now + 3_600_000}
    answer = wire.post("/feedback/aggregate", **body, group_by=["scorer_id"])
    assert answer == {
        "time_bucket_seconds": None,
        **body,
        "buckets": [
            {
                "time_bucket_start_ms": None,
                "group": {"scorer_id": ""},
                "total_count": 1,
                "scored_count": 0,
                "tag_counts": {},
                "rating_counts": {},
                "rating_sums": {},
            },
            {
                "time_bucket_start_ms": None,
                "group": {"scorer_id": "judge"},
                "total_count": 2,
                "scored_count": 2,
                "tag_counts": {"good": 2, "fast": 1},
                "rating_counts": {"_rating_": 1},
                "rating_sums": {"_rating_": 0.5},
            },
        ],
    }
    bucketed = wire.post("/feedback/aggregate", **body, time_bucket_seconds=3600, monitor_ids=["mon*"])
    assert sum(bucket["total_count"] for bucket in bucketed["buckets"]) == 2
    assert all(bucket["time_bucket_start_ms"] % 3_600_000 == 0 for bucket in bucketed["buckets"])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/feedback/stats", {"start": moment(60), "end": moment(-60)}, 422),
        ("/feedback/stats", {"start": moment(-60 * 24 * 32)}, 422),
        ("/feedback/stats", {}, 422),
        ("/feedback/stats", {"start": moment(-60), "metrics": [{"json_path": "a'b"}]}, 400),
        ("/feedback/stats", {"start": moment(-60), "metrics": [{"json_path": "a", "percentiles": [200]}]}, 400),
        ("/feedback/stats", {"start": moment(-60), "metrics": [{"json_path": "a"}], "timezone": "Mars"}, 400),
        ("/feedback/stats", {"start": moment(-60), "metrics": [{"json_path": "a"}], "granularity": -5}, 400),
        ("/feedback/stats", {"start": moment(-60), "metrics": [{"json_path": "a", "value_type": "odd"}]}, 422),
        ("/feedback/stats", {"start": "0001-01-01T00:00:00+14:00", "end": "0001-01-01T00:00:01+14:00"}, 400),
        ("/feedback/payload_schema", {"start": "9999-12-31T23:59:59-14:00", "end": "9999-12-31T23:59:59-14:00"}, 400),
        ("/feedback/payload_schema", {"start": moment(-60), "sample_limit": 0}, 422),
        ("/feedback/payload_schema", {"start": moment(-60), "sample_limit": 5001}, 422),
        ("/feedback/aggregate", {"after_ms": 5, "before_ms": 5}, 422),
        ("/feedback/aggregate", {"after_ms": 0, "before_ms": 10**13, "tags": ["a"]}, 422),
    ],
)
def test_refused_requests(wire: Wire, path: str, body: Json, status: int) -> None:
    """422 for the shape and the range, 400 for what cannot be computed."""
    answer = wire.client.post(path, json={"project_id": wire.project, **body})
    assert answer.status_code == status
    assert ("detail" if status == 422 else "reason") in answer.json()
