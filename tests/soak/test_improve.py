"""`kill -9` in each step of an improvement: the same bytes as without, and nothing is done twice."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.improve import Clinic, step_of
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
STEPS = 9 if SOAK else 2
PATIENCE = 600.0
Json = dict[str, Any]
Place = tuple[str, int | None]

pytestmark = pytest.mark.soak


@pytest.fixture
def heddle(tmp_path: Path) -> Iterator[HeddleProcess]:
    """A server of the test's own that the test may kill; killed at the end whatever happened."""
    process = HeddleProcess(tmp_path / "data", evaluation_parallel=4)
    yield process
    process.kill()


def places() -> list[Place]:
    """Where the server is killed: in make soak in each of 20 steps, else in the training of the first."""
    if not SOAK:
        return [("training", 1)]
    inner: list[Place] = [(name, number) for number in range(1, STEPS + 1) for name in ("rollouts", "training")]
    return [("baseline", None), *inner, ("gate", None)]


def wait_for(clinic: Clinic, improvement: str, place: Place) -> None:
    """Return while a step is at work, or once it is done."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = clinic.read(improvement)
        if place in [(step["name"], step["number"]) for step in found["steps"]]:
            return
        assert found["ended_at"] is None and time.monotonic() < deadline, found
        time.sleep(0.002)


@pytest.mark.thorough
def test_kills_change_no_byte_and_nothing_is_done_twice(heddle: HeddleProcess, project: str) -> None:
    """Two improvements from the same step with the same seed; the server is killed in each step of the second."""
    heddle.start()
    clinic = Clinic(Wire(heddle.url, project))
    clinic.write(16)
    rollouts = {"steps": STEPS, "chats": 4, "answers": 4, "max_tokens": 4, "target_reward": 2.0}
    gate = {"held_out": ["mean(score) < 2"], "general": []}
    quiet = clinic.ended(clinic.improve(rollouts=rollouts, gate=gate))
    assert quiet["outcome"] == "refused", quiet
    improvement = clinic.improve(rollouts=rollouts, gate=gate)
    for place in places():
        wait_for(clinic, improvement, place)
        heddle.kill()
        heddle.start()
    found = clinic.ended(improvement)
    assert found["outcome"] == "refused", found
    digests = clinic.digests()
    made = [[step["result"]["step"] for step in one["steps"] if step["name"] == "training"] for one in (quiet, found)]
    assert made[0] and len(made[0]) == len(made[1]) and sorted(digests) == list(range(1 + 2 * len(made[0])))
    assert [digests[step] for step in made[0]] == [digests[step] for step in made[1]], "the same bytes as without kills"
    rewards = [[s["result"]["reward"] for s in one["steps"] if s["name"] == "rollouts"] for one in (quiet, found)]
    assert rewards[0] == rewards[1]
    check_calls(clinic, found)
    assert "Traceback" not in heddle.log()
    clinic.wire.client.close()


def check_calls(clinic: Clinic, found: Json) -> None:
    """Each answer, row and job once."""
    for step in found["steps"]:
        if step["name"] == "rollouts":
            calls = clinic.wire.calls(filter={"parent_ids": [step["result"]["call_id"]]})
            assert len(calls) == step["result"]["answers"] and all(call["ended_at"] for call in calls)
    run = step_of(found, "gate")["result"]["held_out"]
    rows = clinic.wire.calls(filter={"parent_ids": [run["call_id"]]})
    names = Counter(call["op_name"].partition("/op/")[2].partition(":")[0] for call in rows)
    assert names == {"Evaluation.predict_and_score": run["rows"], "Evaluation.summarize": 1}
    steps = [job["step"] for job in clinic.jobs()]
    assert steps == list(range(1, len(steps) + 1))
