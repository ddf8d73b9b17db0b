"""A server that is killed while its monitor scores: every call is scored in the end, and none twice."""

import os
import re
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.support.chat import until
from tests.support.server import HeddleProcess

PROJECT = "team/crash"
KILLS = 5 if os.environ.get("HEDDLE_SOAK") else 2
CALLS = 60
BASES = ["Object", "BaseModel"]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """The JSON answer of a request that must succeed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def publish(client: httpx.Client, name: str, value: dict[str, Any]) -> str:
    """The ref of a new object."""
    made = post(client, "/obj/create", obj={"project_id": PROJECT, "object_id": name, "val": value})
    return f"weave:///{PROJECT}/object/{name}:{made['digest']}"


def switch_on(client: httpx.Client) -> None:
    """A monitor with two scorers."""
    scorers = [
        publish(client, name, {"_type": name, "_class_name": name, "_bases": ["Scorer", *BASES]})
        for name in ("ContainsScorer", "ExactMatchScorer")
    ]
    monitor = {"_type": "Monitor", "_class_name": "Monitor", "_bases": BASES, "active": True, "scorers": scorers}
    publish(client, "watch", {**monitor, "op_names": ["answer"]})


def write(client: httpx.Client, count: int) -> list[str]:
    """So many calls that the monitor matches, in batches of five."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for first in range(0, count, 5):
        calls = [
            {
                "project_id": PROJECT,
                "id": call_id,
                "trace_id": str(uuid.uuid4()),
                "op_name": f"weave:///{PROJECT}/op/answer:1",
                "started_at": "2026-01-01T00:00:00Z",
                "ended_at": "2026-01-01T00:00:01Z",
                "attributes": {},
                "inputs": {"target": "yes"},
                "output": "yes",
                "summary": {},
            }
            for call_id in ids[first : first + 5]
        ]
        post(client, f"/v2/{PROJECT}/calls/complete", batch=calls)
    return ids


def scored(client: httpx.Client) -> Counter[tuple[str, str]]:
    """How often each call was given each score."""
    rows = post(client, "/feedback/query", project_id=PROJECT)["result"]
    return Counter((row["weave_ref"].rpartition("/")[2], row["feedback_type"]) for row in rows)


def backlog(client: httpx.Client) -> list[str]:
    """What /metrics says is waiting: open jobs, and calls."""
    return re.findall(r"^heddle_(?:jobs\{.*|monitor_calls_waiting .*)$", client.get("/metrics").text, re.M)


def wait_until_scored(client: httpx.Client, count: int) -> None:
    """Return once so many scores are stored and nothing is left to do: the calls of scorers come after their scores."""
    until(lambda: len(scored(client)) >= count, f"{count} scores")
    until(lambda: backlog(client) == ["heddle_monitor_calls_waiting 0.0"], "nothing left to do")


def test_each_call_is_scored_exactly_once_through_kills(tmp_path: Path) -> None:
    written: list[str] = []
    for kill in range(KILLS + 1):
        with HeddleProcess(tmp_path / "data", model="none") as server, httpx.Client(base_url=server.url) as client:
            if kill == 0:
                switch_on(client)
            written += write(client, CALLS)
            if kill < KILLS:
                server.kill()
                continue
            wait_until_scored(client, 2 * len(written))
            found = scored(client)
            assert set(found.values()) == {1}
            assert {call for call, _ in found} == set(written)
            calls = client.post("/calls/stream_query", json={"project_id": PROJECT}).text.count("\n")
            assert calls == 3 * len(written)
