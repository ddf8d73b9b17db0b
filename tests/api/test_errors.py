"""Failed calls in groups, and that the filter of a group chooses exactly its calls."""

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Wire

Json = dict[str, Any]
MESSAGES = ("order {} not found", "user 'u{}' has no plan", "cannot open /tmp/{}/data.json")


def failed(wire: Wire, number: int, at: datetime) -> Json:
    """A call of one of two ops (one of them in versions) that failed in one of three ways, every fifth did not."""
    op = f"weave:///{wire.project}/op/answer:{str(number % 2) * 43}" if number % 3 else "openai.chat"
    frames = [{"filename": f"/srv/{number}/app.py", "line_number": number, "function_name": "run", "text": ""}]
    problem = {"type": "LookupError", "message": MESSAGES[number % 3].format(number), "traceback": frames}
    return {
        "project_id": wire.project,
        "id": str(uuid.uuid4()),
        "trace_id": f"trace-{number % 7}",
        "op_name": op,
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=1)).isoformat(),
        "attributes": {},
        "inputs": {"number": number},
        "output": None,
        "summary": {},
        "exception": json.dumps(problem) if number % 5 else None,
    }


def counted(wire: Wire, group: Json, **chosen: Any) -> Json:
    """What the list of calls counts with the filter of a group."""
    filters = {"op_names": [f"weave:///{wire.project}/op/{group['op']}:*", group["op"]]}
    query = {"$expr": {"$eq": [{"$getField": "error_group"}, {"$literal": group["group"]}]}}
    return dict(wire.post("/_ui/api/calls/summary", filter=filters, query=query, **chosen))


def test_groups_count_what_their_filters_choose(wire: Wire) -> None:
    chance, now = random.Random(5), datetime.now(UTC)
    calls = [failed(wire, number, now - timedelta(minutes=chance.uniform(1, 3000))) for number in range(120)]
    for batch in (calls[:70], calls[70:]):
        answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch})
        assert answer.status_code == 200, answer.text
    found = wire.post("/_ui/api/errors")
    groups = found["groups"]
    expected: dict[tuple[str, str], list[Json]] = {}
    for number, call in enumerate(calls):
        if call["exception"]:
            op = "answer" if number % 3 else "openai.chat"
            expected.setdefault((op, MESSAGES[number % 3]), []).append(call)
    assert len(groups) == len(expected) == 3 and not found["more"]
    assert [group["calls"] for group in groups] == sorted(map(len, expected.values()), reverse=True)
    words = {"order <n> not found": 0, "user <value> has no plan": 1, "cannot open <path>": 2}
    for group in groups:
        own = expected[group["op"], MESSAGES[words[group["message"]]]]
        starts = [datetime.fromisoformat(call["started_at"]).timestamp() for call in own]
        assert (group["type"], group["frame"], group["users"]) == ("LookupError", "app.py:run", 1)
        assert (group["calls"], group["traces"]) == (len(own), len({call["trace_id"] for call in own}))
        assert abs(group["first"] - min(starts)) < 1e-3 and abs(group["last"] - max(starts)) < 1e-3
        assert group["newest"]["id"] == max(own, key=lambda call: call["started_at"])["id"]
        assert sum(group["trend"]) == len(own) == counted(wire, group)["count"] == counted(wire, group)["errors"]
    assert sum(group["calls"] for group in groups) == sum(bool(call["exception"]) for call in calls)


def test_groups_of_a_range_of_time_and_in_other_orders(wire: Wire) -> None:
    now = datetime.now(UTC)
    calls = [failed(wire, number, now - timedelta(hours=number)) for number in range(1, 41)]
    wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": calls})
    since = (now - timedelta(hours=20, minutes=30)).timestamp()
    recent = wire.post("/_ui/api/errors", **{"from": since})["groups"]
    assert sum(group["calls"] for group in recent) == 16
    assert all(counted(wire, group, **{"from": since})["count"] == group["calls"] for group in recent)
    for order in ("last", "first"):
        instants = [group[order] for group in wire.post("/_ui/api/errors", sort=order)["groups"]]
        assert instants == sorted(instants, reverse=True)
    first = wire.post("/_ui/api/errors", limit=1)
    assert len(first["groups"]) == 1 and first["more"]
    assert wire.client.post("/_ui/api/errors", json={"project_id": wire.project, "sort": "x"}).status_code == 422


def test_a_deleted_call_and_a_later_end_change_the_groups(wire: Wire) -> None:
    now = datetime.now(UTC)
    calls = [failed(wire, number, now - timedelta(minutes=number)) for number in (1, 4)]
    wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": calls})
    assert [group["calls"] for group in wire.post("/_ui/api/errors")["groups"]] == [2]
    wire.post("/calls/delete", call_ids=[calls[0]["id"]])
    assert [group["calls"] for group in wire.post("/_ui/api/errors")["groups"]] == [1]
    end = {"project_id": wire.project, "id": calls[1]["id"], "ended_at": now.isoformat(), "output": 1, "summary": {}}
    assert wire.client.post("/call/end", json={"end": end}).status_code == 200
    assert wire.post("/_ui/api/errors")["groups"] == []
