"""All calls that a selection chooses, changed by one job of the server."""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Wire

Json = dict[str, Any]
OF_ODD: Json = {"query": {"$expr": {"$eq": [{"$getField": "inputs.odd"}, {"$literal": True}]}}}


def fill(wire: Wire, count: int) -> list[Json]:
    """Calls, every second odd; the newest has the highest number."""
    now = datetime.now(UTC)
    calls = []
    for number in range(count):
        at = now - timedelta(minutes=count - number)
        inputs = {"number": number, "odd": bool(number % 2), "a.b": "dotted"}
        call = {"id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), "op_name": "ask", "started_at": at.isoformat()}
        told = {"ended_at": at.isoformat(), "attributes": {}, "inputs": inputs, "output": {"n": number}, "summary": {}}
        calls.append({"project_id": wire.project, **call, **told})
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": calls})
    assert answer.status_code == 200, answer.text
    return calls


def ended(wire: Wire, job_id: str) -> Json:
    """The job when it is done."""
    while True:
        jobs = wire.post("/evaluations/jobs/query", kinds=["change_calls"])["jobs"]
        found = next(job for job in jobs if job["id"] == job_id)
        if found["state"] not in ("queued", "running"):
            return dict(found)
        time.sleep(0.05)


def change(wire: Wire, action: Json, **chosen: Any) -> Json:
    """Do it, and wait for the end."""
    return ended(wire, wire.post("/_ui/api/calls/change", action=action, **chosen)["id"])


def test_all_that_match_are_deleted_and_no_others(wire: Wire) -> None:
    fill(wire, 700)
    done = change(wire, {"type": "delete"}, **OF_ODD)
    assert (done["state"], done["result"]) == ("succeeded", {"done": 350})
    assert [call["inputs"]["odd"] for call in wire.calls(columns=["inputs"])] == [False] * 350


def test_calls_are_chosen_by_a_ref_to_their_op(wire: Wire) -> None:
    fill(wire, 2)
    op = f"weave:///{wire.project}/op/ask"
    start = {"id": "c", "trace_id": "t", "op_name": f"{op}:{'a' * 43}", "started_at": "2026-01-01T00:00:00Z"}
    wire.post("/call/start", start={"project_id": wire.project, **start, "attributes": {}, "inputs": {}})
    done = change(wire, {"type": "delete"}, filter={"op_names": [f"{op}:*"]})
    assert (done["state"], done["result"]) == ("succeeded", {"done": 1})
    assert len(wire.calls(columns=["id"])) == 2


def test_feedback_that_is_no_strict_json_is_given(wire: Wire) -> None:
    fill(wire, 1)
    payload = {"note": "half \ud800", "number": 2**65}
    action = {"type": "feedback", "feedback_type": "odd", "payload": payload}
    sent = json.dumps({"project_id": wire.project, "action": action})
    answer = wire.client.post("/_ui/api/calls/change", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert ended(wire, answer.json()["id"])["result"] == {"done": 1}
    (row,) = wire.post("/feedback/query")["result"]
    assert row["payload"] == {"note": "half \ufffd", "number": 2**65}


def test_feedback_is_given_once_to_each(wire: Wire) -> None:
    calls = fill(wire, 30)
    given = {"type": "feedback", "feedback_type": "wandb.note.1", "payload": {"note": "look"}}
    assert change(wire, given, **OF_ODD)["result"] == {"done": 15}
    rows = wire.post("/feedback/query")["result"]
    odd = [f"weave:///{wire.project}/call/{call['id']}" for call in calls if call["inputs"]["odd"]]
    assert sorted(row["weave_ref"] for row in rows) == sorted(odd)
    assert {row["payload"]["note"] for row in rows} == {"look"}


def test_rows_of_a_new_and_of_a_known_dataset(wire: Wire) -> None:
    fill(wire, 12)
    columns = {"number": "inputs.number", "said": "output", "n": "output.n", "dotted": "inputs.a.b", "none": "inputs.x"}
    made = change(wire, {"type": "dataset", "name": "asked", "is_new": True, "columns": columns}, **OF_ODD)
    assert made["result"]["done"] == 6
    again = wire.client.post(
        "/_ui/api/calls/change",
        json={
            "project_id": wire.project,
            "action": {"type": "dataset", "name": "asked", "is_new": True, "columns": columns},
        },
    )
    assert again.status_code == 400 and "already" in again.text
    change(wire, {"type": "dataset", "name": "asked", "is_new": False, "columns": columns})
    newest = wire.post("/obj/read", object_id="asked", digest="latest")["obj"]
    rows = wire.post("/table/query", digest=newest["val"]["rows"].rpartition("/")[2])["rows"]
    numbers = [row["val"]["number"] for row in rows]
    assert numbers == [11, 9, 7, 5, 3, 1, *range(11, -1, -1)]
    assert rows[0]["val"] == {"number": 11, "said": {"n": 11}, "n": 11, "dotted": "dotted", "none": None}


def test_a_cancelled_change_says_how_far_it_came(wire: Wire) -> None:
    fill(wire, 900)
    job = wire.post("/_ui/api/calls/change", action={"type": "delete"})["id"]
    wire.post("/evaluations/cancel", call_id=job)
    done = ended(wire, job)
    left = len(wire.calls(columns=["id"]))
    assert done["state"] in ("cancelled", "succeeded")
    assert left <= 900 - done["progress"].get("done", 0) and (left == 0) == (done["state"] == "succeeded")


def test_what_cannot_be_done_is_refused_and_changes_nothing(wire: Wire) -> None:
    fill(wire, 2)
    for body in (
        {},
        {"action": {"type": "burn"}},
        {"action": {"type": "dataset", "name": "a b", "is_new": True, "columns": {"x": "output"}}},
        {"action": {"type": "dataset", "name": "x", "is_new": True, "columns": {}}},
        {"action": {"type": "delete"}, "query": {"$expr": {}}},
    ):
        answer = wire.client.post("/_ui/api/calls/change", json={"project_id": wire.project, **body})
        assert answer.status_code == 422, answer.text
    large = {"type": "feedback", "feedback_type": "custom", "payload": {"x": "x" * 10_000}}
    answer = wire.client.post("/_ui/api/calls/change", json={"project_id": wire.project, "action": large})
    assert (answer.status_code, answer.json()["reason"]) == (
        400,
        "action has 10019 bytes of JSON; at most 10000 can be stored with each of many calls",
    )
    assert len(wire.calls()) == 2 and wire.post("/feedback/query")["result"] == []


@pytest.mark.parametrize(
    "given",
    [
        {"feedback_type": "wandb.note.1", "payload": {"no": "note"}},
        {"feedback_type": "wandb.reaction.1", "payload": {"emoji": "no emoji"}},
        {"feedback_type": "wandb.annotation.quality", "payload": {"value": 1}},
        {"feedback_type": "wandb.runnable.judge", "payload": {"output": 1}},
        {"feedback_type": "wandb.agent_user_feedback", "payload": {}},
    ],
)
def test_feedback_that_is_refused_for_one_call_is_refused_for_many(wire: Wire, given: Json) -> None:
    (call,) = fill(wire, 1)
    of_one = {"project_id": wire.project, "weave_ref": f"weave:///{wire.project}/call/{call['id']}", **given}
    one = wire.client.post("/feedback/create", json=of_one)
    of_many = {"project_id": wire.project, "action": {"type": "feedback", **given}}
    many = wire.client.post("/_ui/api/calls/change", json=of_many)
    assert (many.status_code, many.json()) == (one.status_code, one.json())
    assert many.status_code == 400 and wire.post("/evaluations/jobs/query", kinds=["change_calls"])["jobs"] == []
