"""The list of calls at 1,000,000 calls: every request that the page sends takes little of the server's CPU.

The short form has a fiftieth of them; `HEDDLE_SOAK=1` runs the long one.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conftest import Wire
from tests.support.server import HeddleProcess

Json = dict[str, Any]

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
CALLS = 1_000_000 if SOAK else 20_000
DAYS = 30
MOST_SECONDS = 0.05
"""Of server CPU for one request."""
_BATCH = 2000
_ROUNDS = 10

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A project with that many calls, on a server of its own, so that its CPU is theirs."""
    with HeddleProcess(tmp_path_factory.mktemp("million") / "data") as process:
        wire = Wire(process.url, "big/calls")
        wire.client.timeout = 600
        fill(wire)
        assert process.process is not None
        wire.server = psutil.Process(process.process.pid)  # type: ignore[attr-defined]
        yield wire
        wire.client.close()


def fill(wire: Wire) -> None:
    """Traces of ten calls, evenly over the days; every fiftieth call failed."""
    start = datetime.now(UTC) - timedelta(days=DAYS)
    for first in range(0, CALLS, _BATCH):
        batch = [call(wire.project, number, start) for number in range(first, first + _BATCH)]
        answer = wire.client.post(f"/v2/{wire.project}/calls/complete", content=json.dumps({"batch": batch}))
        assert answer.status_code == 200, answer.text


def call(project: str, number: int, start: datetime) -> Json:
    """One finished call."""
    at = start + timedelta(days=DAYS) * (number / CALLS)
    root = number // 10 * 10
    return {
        "project_id": project,
        "id": str(uuid.UUID(int=number + 1)),
        "trace_id": str(uuid.UUID(int=2**100 + root)),
        "parent_id": None if number == root else str(uuid.UUID(int=root + 1)),
        "op_name": f"weave:///{project}/op/op{number % 8}:{'a' * 43}",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(milliseconds=number * 7919 % 60_000)).isoformat(),
        "attributes": {"weave": {"kind": "llm"}},
        "inputs": {"question": f"Where is order {number}?", "customer": {"tier": "pro"}},
        "output": {"answer": f"Order {number} is on its way."},
        "exception": "ValueError: no" if number % 50 == 0 else None,
        "summary": {"usage": {"gpt-4o": {"requests": 1, "prompt_tokens": 100, "completion_tokens": 20}}},
    }


def test_each_request_takes_little_cpu(wire: Wire) -> None:
    now = time.time()
    roots: Json = {"filter": {"trace_roots_only": True}}
    failed: Json = {"query": {"$expr": {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}}}
    one_op: Json = {"filter": {"op_names": [f"weave:///{wire.project}/op/op3:*"]}}
    middle = f"{int((now - DAYS / 2 * 86_400) * 1e6)}_x"
    asked: list[tuple[str, Json]] = [
        *(("/_ui/api/calls", body) for body in ({}, roots, failed, one_op, {"after": middle}, {"before": middle})),
        *(("/_ui/api/calls", {"sort": sort} | roots) for sort in ("started_at", "-latency")),
        *(("/_ui/api/calls/summary", body) for body in ({}, roots, failed, one_op)),
        *(("/_ui/api/calls/summary", {"from": now - days * 86_400} | roots) for days in (1 / 24, 1, 7)),
        ("/_ui/api/calls/facets", {}),
    ]
    assert wire.post("/_ui/api/calls/summary")["count"] == CALLS
    assert wire.post("/_ui/api/calls/summary", **failed)["errors"] == CALLS // 50
    taken = {f"{path} {json.dumps(body)}": seconds(wire, path, body) for path, body in asked}
    assert max(taken.values()) <= MOST_SECONDS, taken


def seconds(wire: Wire, path: str, body: Json) -> float:
    """The CPU that the server takes for a request, on average once its caches are warm."""
    wire.post(path, **body)
    server: psutil.Process = wire.server  # type: ignore[attr-defined]
    before = sum(server.cpu_times()[:2])
    for _ in range(_ROUNDS):
        wire.post(path, **body)
    return float(sum(server.cpu_times()[:2]) - before) / _ROUNDS
