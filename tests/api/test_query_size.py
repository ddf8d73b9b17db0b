"""`$size` in queries: elements of lists and objects, characters of texts, nothing of anything else."""

from typing import Any

import httpx
import pytest

from tests.support.server import HeddleProcess

PROJECT = "team/sizes"
VALUES: dict[str, Any] = {
    "list": [1, 2, 3],
    "empty": [],
    "text": "né?",
    "object": {"a": 1, "b": 2, "c": 3},
    "number": 333,
    "nothing": None,
}


@pytest.fixture(scope="module")
def client(server: HeddleProcess) -> httpx.Client:
    """A project with one call and one feedback row per value."""
    client = httpx.Client(base_url=server.url, timeout=60)
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    calls = [
        {"project_id": PROJECT, "id": f"{number:016x}", "trace_id": "t", "op_name": name, **times}
        | {"attributes": {}, "inputs": {"x": value}, "summary": {}}
        for number, (name, value) in enumerate(VALUES.items())
    ]
    assert client.post(f"/v2/{PROJECT}/calls/complete", json={"batch": calls}).status_code == 200
    rows = [
        {"project_id": PROJECT, "weave_ref": f"weave:///{PROJECT}/call/{call['id']}", "feedback_type": call["op_name"]}
        | {"payload": {"x": call["inputs"]["x"]}}
        for call in calls
    ]
    scored = {"feedback_type": "wandb.runnable.s", "runnable_ref": f"weave:///{PROJECT}/object/s:v0"}
    rows.append({**rows[0], **scored, "payload": {"output": 1}, "scorer_tags": ["a", "b"]})
    assert client.post("/feedback/batch/create", json={"batch": rows}).status_code == 200
    return client


def sized(field: str, size: Any, word: str = "$eq") -> dict[str, Any]:
    """A query that compares a size."""
    return {"$expr": {word: [{"$size": {"$getField": field}}, {"$literal": size}]}}


def calls(client: httpx.Client, query: Any) -> set[str]:
    """The names of the calls that match."""
    answer = client.post("/calls/stream_query", json={"project_id": PROJECT, "query": query})
    assert answer.status_code == 200, answer.text
    return {httpx.Response(200, content=line).json()["op_name"] for line in answer.text.splitlines()}


def feedback(client: httpx.Client, query: Any) -> set[str]:
    """The types of the feedback rows that match."""
    answer = client.post("/feedback/query", json={"project_id": PROJECT, "query": query})
    assert answer.status_code == 200, answer.text
    return {row["feedback_type"] for row in answer.json()["result"]}


def test_sizes_of_json_values(client: httpx.Client) -> None:
    assert calls(client, sized("inputs.x", 3)) == feedback(client, sized("payload.x", 3)) == {"list", "text", "object"}
    assert calls(client, sized("inputs.x", 0)) == feedback(client, sized("payload.x", 0)) == {"empty"}
    assert calls(client, sized("inputs.x", 2, "$gt")) == {"list", "text", "object"}
    assert calls(client, sized("inputs", 1)) == set(VALUES)


def test_sizes_of_columns(client: httpx.Client) -> None:
    assert calls(client, sized("op_name", 4)) == {"list", "text"}
    assert feedback(client, sized("scorer_tags", 2)) == {"wandb.runnable.s"}
    assert feedback(client, sized("feedback_type", 4)) == {"list", "text"}
    assert calls(client, sized("started_at", 4)) == set()


def test_a_size_inside_other_operations(client: httpx.Client) -> None:
    size = {"$size": {"$getField": "inputs.x"}}
    assert calls(client, {"$expr": {"$in": [size, [{"$literal": 0}, {"$literal": 3}]]}}) == {
        "list",
        "text",
        "object",
        "empty",
    }
    converted = {"$size": {"$convert": {"input": {"$getField": "inputs.x"}, "to": "string"}}}
    assert "number" in calls(client, {"$expr": {"$eq": [converted, {"$literal": 3}]}})
    assert calls(client, {"$expr": {"$not": [{"$gt": [size, {"$literal": 0}]}]}}) == {"empty"}


def test_a_size_alone_is_no_query(client: httpx.Client) -> None:
    body = {"project_id": PROJECT, "query": {"$expr": {"$size": {"$getField": "inputs.x"}}}}
    assert client.post("/calls/stream_query", json=body).status_code == 422
    body["query"] = {"$expr": {"$eq": [{"$size": []}, {"$literal": 1}]}}
    assert client.post("/calls/stream_query", json=body).status_code == 422
