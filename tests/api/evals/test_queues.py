"""Annotation queues over HTTP: queues, items, each annotator's progress, labels."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.server import HeddleProcess

Json = Any
DELETED = "1f0b0000-0000-7000-8000-000000000000"


def store_calls(wire: Wire, number: int, op_name: str = "op", first: int = 0) -> list[str]:
    """The ids of new calls, one minute apart."""
    ids = [str(uuid.uuid4()) for _ in range(number)]
    batch = [
        {
            "project_id": wire.project, "id": call_id, "trace_id": str(uuid.uuid4()), "op_name": op_name,
            "started_at": f"2026-01-01T00:{minute:02d}:00Z", "ended_at": f"2026-01-01T00:{minute:02d}:01Z",
            "attributes": {}, "inputs": {"x": minute}, "output": "out", "summary": {},
        }
        for minute, call_id in enumerate(ids, first)
    ]  # fmt: skip
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text
    return ids


def new_queue(wire: Wire, name: str = "queue", **more: Json) -> str:
    """The id of a new queue."""
    return str(wire.post("/annotation_queues", name=name, scorer_refs=[], **more)["id"])


def add(wire: Wire, queue: str, call_ids: list[str], **more: Json) -> Json:
    """The answer to adding calls."""
    return wire.post(f"/annotation_queues/{queue}/items", call_ids=call_ids, display_fields=["inputs.x"], **more)


def items(wire: Wire, queue: str, **body: Json) -> list[Json]:
    """The items of a queue."""
    return list(wire.post(f"/annotation_queues/{queue}/items/query", **body)["items"])


def go(wire: Wire, queue: str, item: str, state: str) -> httpx.Response:
    """The answer to a step."""
    body = {"project_id": wire.project, "annotation_state": state}
    return wire.client.post(f"/annotation_queues/{queue}/items/{item}/progress", json=body)


def refused(answer: httpx.Response, status: int) -> str:
    """The reason of an answer with that status."""
    assert answer.status_code == status, answer.text
    return str(answer.json()["reason"])


def queues(wire: Wire, **body: Json) -> list[Json]:
    """The lines of the list."""
    answer = wire.client.post("/annotation_queues/query", json={"project_id": wire.project, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(text) for text in answer.text.splitlines()]


def test_a_queue_from_its_beginning_to_its_end(wire: Wire) -> None:
    ref = f"weave:///{wire.project}/object/quality:latest"
    made = wire.post("/annotation_queues", name="Q", description="d", scorer_refs=[ref], wb_user_id="somebody")["id"]
    path, where = f"/annotation_queues/{made}", {"project_id": wire.project}
    queue = wire.client.get(path, params=where).json()["queue"]
    assert (queue["id"], queue["project_id"], queue["name"], queue["description"]) == (made, wire.project, "Q", "d")
    assert queue["scorer_refs"] == [ref]
    assert queue["created_by"] == "local"
    assert queue["deleted_at"] is None
    same = wire.client.put(path, json={**where, "name": None}).json()["queue"]
    assert same == queue
    changed = wire.client.put(path, json={**where, "name": "", "scorer_refs": []}).json()["queue"]
    assert (changed["name"], changed["scorer_refs"], changed["description"]) == ("", [], "d")
    assert changed["updated_at"] > queue["updated_at"]
    gone = wire.client.delete(path, params=where).json()["queue"]
    assert gone["deleted_at"] is not None
    assert queues(wire) == []
    for answer in (
        wire.client.get(path, params=where),
        wire.client.post(f"{path}/items", json={**where, "call_ids": [], "display_fields": []}),
    ):
        assert refused(answer, 404) == f"Queue {made} not found"
    for answer in (
        wire.client.put(path, json={**where, "name": "x"}),
        wire.client.put(path, json=where),
        wire.client.delete(path, params=where),
    ):
        assert refused(answer, 404) == f"Queue {made} not found or already deleted"


def test_queues_of_another_project_are_unknown(wire: Wire) -> None:
    made = new_queue(wire)
    path = f"/annotation_queues/{made}"
    assert refused(wire.client.get(path, params={"project_id": "other/project"}), 404) == f"Queue {made} not found"
    assert wire.client.delete(path, params={"project_id": "other/project"}).status_code == 404
    assert wire.client.get(path, params={"project_id": wire.project}).status_code == 200
    assert wire.client.get(path).status_code == 422


def test_lists_are_filtered_sorted_and_paged(wire: Wire) -> None:
    for name in ("beta", "Alpha", "ÄRGER"):
        new_queue(wire, name)
    assert [queue["name"] for queue in queues(wire)] == ["ÄRGER", "Alpha", "beta"]
    assert [queue["name"] for queue in queues(wire, name="a")] == ["Alpha", "beta"]
    assert [queue["name"] for queue in queues(wire, name="ärg")] == ["ÄRGER"]
    by_name = [{"field": "nonsense", "direction": "desc"}, {"field": "name", "direction": "asc"}]
    assert [queue["name"] for queue in queues(wire, sort_by=by_name)] == ["Alpha", "beta", "ÄRGER"]
    assert [queue["name"] for queue in queues(wire, sort_by=by_name, limit=1, offset=1)] == ["beta"]
    assert [queue["name"] for queue in queues(wire, sort_by=by_name[:1])] == ["ÄRGER", "Alpha", "beta"]
    bad = wire.client.post("/annotation_queues/query", json={"project_id": wire.project, "limit": -1})
    assert refused(bad, 400) == "limit must not be negative"


def test_items_copy_their_calls(wire: Wire) -> None:
    calls, queue = store_calls(wire, 3), new_queue(wire)
    wire.post("/calls/delete", call_ids=[calls[2]])
    unknown = str(uuid.uuid4())
    assert add(wire, queue, [calls[1], calls[0], calls[1], unknown, calls[2]]) == {"added_count": 2, "duplicates": 0}
    assert add(wire, queue, [calls[0]]) == {"added_count": 0, "duplicates": 1}
    first, second = items(wire, queue)
    assert [first["call_id"], second["call_id"]] == [calls[1], calls[0]]
    stored = wire.call(calls[1])
    assert first["call_op_name"] == stored["op_name"]
    assert first["call_trace_id"] == stored["trace_id"]
    assert (first["call_started_at"], first["call_ended_at"]) == (stored["started_at"], stored["ended_at"])
    assert first["display_fields"] == ["inputs.x"]
    assert (first["annotation_state"], first["annotator_user_id"]) == ("unstarted", "")
    assert (first["added_by"], first["project_id"], first["position_in_queue"]) == ("local", wire.project, None)


def test_items_are_filtered_sorted_and_have_positions(wire: Wire) -> None:
    calls, queue = store_calls(wire, 4), new_queue(wire)
    add(wire, queue, calls)
    added = items(wire, queue, include_position=True)
    assert [item["position_in_queue"] for item in added] == [1, 2, 3, 4]
    latest = {"sort_by": [{"field": "call_started_at", "direction": "desc"}], "include_position": True}
    page = items(wire, queue, **latest, limit=2, offset=1)
    assert [item["call_id"] for item in page] == [calls[2], calls[1]]
    assert [item["position_in_queue"] for item in page] == [2, 3]
    assert go(wire, queue, added[2]["id"], "skipped").status_code == 200
    left = items(wire, queue, filter={"annotation_states": ["unstarted"]}, include_position=True)
    assert [item["call_id"] for item in left] == [calls[0], calls[1], calls[3]]
    assert [item["position_in_queue"] for item in left] == [1, 2, 3]
    both = {"annotation_states": ["skipped", "completed"], "call_id": calls[2], "added_by": "local"}
    assert [item["call_id"] for item in items(wire, queue, filter=both)] == [calls[2]]
    for name, value in (("id", added[0]["id"]), ("call_trace_id", added[0]["call_trace_id"])):
        assert [item["id"] for item in items(wire, queue, filter={name: value})] == [added[0]["id"]]
    assert items(wire, queue, filter={"call_op_name": "other"}) == []
    assert len(items(wire, queue, filter={"annotation_states": []})) == 4
    wrong = wire.client.post(
        f"/annotation_queues/{queue}/items/query",
        json={"project_id": wire.project, "filter": {"annotation_states": ["started"]}},
    )
    assert wrong.status_code == 422
    assert refused(
        wire.client.post(f"/annotation_queues/{DELETED}/items/query", json={"project_id": wire.project}), 404
    ) == (f"Queue {DELETED} not found")


def test_calls_are_chosen_by_a_filter(wire: Wire) -> None:
    store_calls(wire, 2, "other")
    calls, queue = store_calls(wire, 5, "wanted", first=10), new_queue(wire)
    chosen = {"filter": {"op_names": ["wanted"]}}
    assert add(wire, queue, [calls[0]], **chosen, limit=2) == {
        "added_count": 3, "duplicates": 0, "matched": 2, "has_more": True,
    }  # fmt: skip
    assert [item["call_id"] for item in items(wire, queue)] == [calls[0], calls[4], calls[3]]
    small = {"$expr": {"$lt": [{"$getField": "inputs.x"}, {"$literal": 12}]}}
    assert add(wire, queue, [], **chosen, query=small) == {
        "added_count": 1, "duplicates": 1, "matched": 2, "has_more": False,
    }  # fmt: skip
    body = {"project_id": wire.project, "call_ids": [], "display_fields": [], **chosen, "limit": 10_001}
    answer = wire.client.post(f"/annotation_queues/{queue}/items", json=body)
    assert refused(answer, 400) == "limit is 10001, at most 10000 calls can be added at once"
    body = {"project_id": wire.project, "call_ids": [str(number) for number in range(10_001)], "display_fields": []}
    answer = wire.client.post(f"/annotation_queues/{queue}/items", json=body)
    assert refused(answer, 400) == "call_ids has 10001 entries, at most 10000 are allowed"
    body = {"project_id": wire.project, "call_ids": calls, "display_fields": ["x" * 10_000]}
    answer = wire.client.post(f"/annotation_queues/{queue}/items", json=body)
    assert refused(answer, 400) == (
        "display_fields has 10004 bytes of JSON; at most 10000 can be stored with each of many calls"
    )
    assert len(items(wire, queue)) == 4


def test_calls_are_found_by_their_queue(wire: Wire) -> None:
    calls, first, second = store_calls(wire, 3), new_queue(wire), new_queue(wire)
    add(wire, first, calls[:2])
    add(wire, second, calls[1:2])
    field = {"$getField": "annotation_queue_items.queue_id"}

    def found(condition: Json) -> list[str]:
        return [call["id"] for call in wire.calls(query={"$expr": condition}, columns=["id"])]

    assert found({"$eq": [field, {"$literal": first}]}) == calls[:2]
    assert found({"$eq": [field, {"$literal": second}]}) == calls[1:2]
    assert found({"$in": [field, [{"$literal": second}, {"$literal": DELETED}]]}) == calls[1:2]
    assert found({"$eq": [field, {"$literal": None}]}) == calls[2:]


def test_the_states_of_one_annotator(wire: Wire) -> None:
    calls, queue = store_calls(wire, 2), new_queue(wire)
    add(wire, queue, calls)
    one, two = (item["id"] for item in items(wire, queue))
    for state in ("in_progress", "in_progress", "completed", "completed"):
        answer = go(wire, queue, one, state)
        assert answer.status_code == 200, answer.text
        assert answer.json()["item"]["annotation_state"] == state
        assert answer.json()["item"]["annotator_user_id"] == "local"
    assert refused(go(wire, queue, one, "in_progress"), 400) == (
        "Cannot transition to 'in_progress' when a record already exists (current state: 'completed')"
    )
    assert refused(go(wire, queue, one, "skipped"), 400).startswith(
        "Invalid state transition from 'completed' to 'skipped'. "
    )
    assert go(wire, queue, two, "skipped").status_code == 200
    for bad in ("unstarted", "done"):
        reason = refused(go(wire, queue, two, bad), 400)
        assert reason == (f"Invalid annotation_state '{bad}'. Must be one of: 'completed', 'in_progress', 'skipped'")
    assert refused(go(wire, queue, DELETED, "completed"), 400) == (
        f"Queue item '{DELETED}' not found in queue '{queue}'"
    )
    other = new_queue(wire)
    assert refused(go(wire, other, one, "completed"), 400) == f"Queue item '{one}' not found in queue '{other}'"
    assert [item["annotation_state"] for item in items(wire, queue)] == ["completed", "skipped"]
    counted = wire.post("/annotation_queues/stats", queue_ids=[other, queue, DELETED, queue])["stats"]
    assert counted == [
        {"queue_id": name, "total_items": total, "completed_items": done}
        for name, total, done in ((other, 0, 0), (queue, 2, 2), (DELETED, 0, 0), (queue, 2, 2))
    ]


def test_the_same_call_queued_by_many_at_once_is_one_item(wire: Wire) -> None:
    calls, queue = store_calls(wire, 20), new_queue(wire)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: add(wire, queue, calls), range(8)))
    assert sum(answer["added_count"] for answer in answers) == 20
    assert all(answer["added_count"] + answer["duplicates"] == 20 for answer in answers)
    assert [item["call_id"] for item in items(wire, queue)] == calls


def test_one_annotators_racing_steps_end_in_one_state(wire: Wire) -> None:
    calls, queue = store_calls(wire, 1), new_queue(wire)
    add(wire, queue, calls)
    (item,) = items(wire, queue)
    states = ["completed", "skipped"] * 6
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda state: go(wire, queue, item["id"], state), states))
    (shown,) = items(wire, queue)
    won = [state for state, answer in zip(states, answers, strict=True) if answer.status_code == 200]
    assert set(won) == {shown["annotation_state"]}
    assert len(won) == 6
    assert {answer.status_code for answer in answers} == {200, 400}


def test_labels_name_a_live_queue(wire: Wire) -> None:
    calls, queue = store_calls(wire, 1), new_queue(wire)
    add(wire, queue, calls)
    spec = {
        "_type": "AnnotationSpec", "_class_name": "AnnotationSpec", "_bases": ["BaseObject", "BaseModel"],
        "name": "Quality", "field_schema": {"type": "integer", "minimum": 1, "maximum": 5},
    }  # fmt: skip
    obj = {"project_id": wire.project, "object_id": "quality", "val": spec}
    digest = wire.client.post("/obj/create", json={"obj": obj}).json()["digest"]
    label = {
        "project_id": wire.project,
        "weave_ref": f"weave:///{wire.project}/call/{calls[0]}",
        "feedback_type": "wandb.annotation.quality",
        "payload": {"value": 4},
        "annotation_ref": f"weave:///{wire.project}/object/quality:{digest}",
        "queue_id": queue,
    }
    assert wire.client.post("/feedback/create", json=label).status_code == 200
    (row,) = wire.post("/feedback/query")["result"]
    assert row["queue_id"] == queue
    batch = {"batch": [label, {**label, "queue_id": DELETED}]}
    unknown = f"Queue {DELETED} not found or has been deleted"
    assert refused(wire.client.post("/feedback/batch/create", json=batch), 400) == unknown
    wire.client.delete(f"/annotation_queues/{queue}", params={"project_id": wire.project})
    gone = f"Queue {queue} not found or has been deleted"
    assert refused(wire.client.post("/feedback/create", json=label), 400) == gone
    assert len(wire.post("/feedback/query")["result"]) == 1
    (item,) = items(wire, queue)
    assert refused(go(wire, queue, item["id"], "completed"), 404) == f"Queue {queue} not found"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, dict[str, str]]]:
    """A server with keys of two annotators and a reader."""
    data = tmp_path_factory.mktemp("annotators") / "data"
    keys = {name: make_key(data, name) for name in ("ann", "ben")} | {
        "reader": make_key(data, "reader", "--scope", "read")
    }
    with HeddleProcess(data, auth="on") as process:
        yield process, keys


def as_user(process: HeddleProcess, key: str) -> Wire:
    """The wire of one key."""
    found = Wire(process.url, "team/annotated")
    found.client.auth = httpx.BasicAuth("api", key)
    return found


def test_each_annotator_has_a_state_of_their_own(guarded: tuple[HeddleProcess, dict[str, str]]) -> None:
    process, keys = guarded
    ann, ben, reader = (as_user(process, keys[name]) for name in ("ann", "ben", "reader"))
    calls, queue = store_calls(ann, 2), new_queue(ann)
    add(ann, queue, calls)
    one, two = (item["id"] for item in items(ben, queue))
    assert go(ann, queue, one, "completed").json()["item"]["annotator_user_id"] == "ann"
    shown = go(ben, queue, one, "in_progress").json()["item"]
    assert (shown["annotation_state"], shown["annotator_user_id"]) == ("in_progress", "ben")
    again = go(ann, queue, one, "completed").json()["item"]
    assert (again["annotation_state"], again["annotator_user_id"]) == ("in_progress", "ben")
    assert items(ann, queue)[0]["annotation_state"] == "in_progress"
    (counted,) = ann.post("/annotation_queues/stats", queue_ids=[queue])["stats"]
    assert counted == {"queue_id": queue, "total_items": 2, "completed_items": 1}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda who: go(who, queue, two, "completed"), (ann, ben)))
    assert [answer.status_code for answer in answers] == [200, 200]
    (counted,) = ann.post("/annotation_queues/stats", queue_ids=[queue])["stats"]
    assert counted["completed_items"] == 2
    assert len(items(reader, queue)) == 2
    assert go(reader, queue, one, "completed").status_code == 403


def test_everything_is_there_after_a_crash(tmp_path: Path) -> None:
    server = HeddleProcess(tmp_path / "data").start()
    try:
        wire = Wire(server.url, "team/crash")
        calls, queue = store_calls(wire, 1), new_queue(wire)
        add(wire, queue, calls)
        (item,) = items(wire, queue)
        assert go(wire, queue, item["id"], "completed").status_code == 200
        server.kill()
        server.start()
        (item,) = items(wire, queue)
        assert item["annotation_state"] == "completed"
    finally:
        server.kill()
