"""`kill -9` in the middle of training jobs: the same adapter as without, every event once, no step missing."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.rl import ENDED, Trainer
from tests.support.server import HeddleProcess, ParentProcess
from tests.support.trajectories import group, said, trajectory, user

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
KILLS = 20 if SOAK else 2
GROUPS = 32
EVENTS = 18
"""About as many as a job has; a kill comes before one of them."""
PATIENCE = 120.0
ADAPTER = "adapter_model.safetensors"
WORDS = ("blue", "red", "green", "one two", "maybe", "yes", "no", "three four five")

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


@pytest.fixture
def heddle(tmp_path: Path) -> Iterator[HeddleProcess]:
    """A server of the test's own that the test may kill; killed at the end whatever happened."""
    process = ParentProcess(tmp_path / "data")
    yield process
    process.kill()


def groups(count: int) -> list[dict[str, Any]]:
    """Trajectories with different rewards, one or two groups for a row of 48 tokens."""
    return [
        group(*(trajectory(user(f"Say something, {g}"), said(WORDS[(g + i) % 8]), reward=i % 3) for i in range(4)))
        for g in range(count)
    ]


def workers(heddle: HeddleProcess) -> list[psutil.Process]:
    """The training processes of a server."""
    assert heddle.process is not None
    children = psutil.Process(heddle.process.pid).children(recursive=True)
    return [child for child in children if "heddle.trainer_process" in child.cmdline()]


class Patient:
    """Reads a job's events as clients do: page by page behind the last one, through whatever the server suffers."""

    def __init__(self, url: str, job_id: str) -> None:
        self._url = f"{url}/v1/preview/training-jobs/{job_id}/events"
        self.events: list[dict[str, Any]] = []

    def look(self) -> None:
        """Read what is new, if the server answers."""
        query = {"after": self.events[-1]["id"]} if self.events else {}
        try:
            answer = httpx.get(self._url, params={"limit": "100", **query}, headers={"authorization": "Bearer k"})
        except httpx.TransportError:
            return
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200:
            self.events += answer.json()["data"]

    @property
    def has_ended(self) -> bool:
        """True behind the last event."""
        return bool(self.events) and self.events[-1]["type"] in ENDED

    def until(self, count: float) -> None:
        """Wait for so many events, or the last one."""
        deadline = time.monotonic() + PATIENCE
        while len(self.events) < count and not self.has_ended:
            assert time.monotonic() < deadline, self.events[-2:]
            self.look()
            time.sleep(0.005)


def by_hand(task: dict[str, Any], folder: Path, steps: int) -> bytes:
    """The adapter that the same task gives in processes of its own that nobody disturbs."""
    folder.mkdir()
    quiet = task | {"target": "made/0001", "work": "work"}
    (folder / "made").mkdir()
    (folder / "task.json").write_text(json.dumps(quiet))
    many = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(task["ranks"]), "-m"]
    starter = many if task["ranks"] > 1 else []
    command = [sys.executable, "-m", *starter, "heddle.trainer_process", "--job", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert (kinds[0], kinds[-1], kinds.count("stepped")) == ("started", "finished", steps)
    return (folder / "made" / "0001" / ADAPTER).read_bytes()


def task_of(heddle: HeddleProcess, model_id: str, job_id: str) -> dict[str, Any]:
    """The task that the job's process was given, read while it works."""
    path = heddle.data / "training" / model_id / "jobs" / job_id / "task.json"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            return dict(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError):
            time.sleep(0.001)
    raise AssertionError("the job did not begin")


def disturb(heddle: HeddleProcess, kill_server: bool, chance: random.Random) -> str:
    """Kill a worker, or the server and start it again."""
    time.sleep(chance.random() * 0.05)
    if kill_server:
        orphans = workers(heddle)
        heddle.kill()
        _, alive = psutil.wait_procs(orphans, timeout=120)
        assert not alive, "a training process outlives its server"
        heddle.start()
        return "server"
    found = workers(heddle)
    if found:
        chance.choice(found).send_signal(signal.SIGKILL)
    return "worker" if found else "nothing"


@pytest.mark.parametrize("ranks", [1, 2] if SOAK else [1])
def test_kill_9_changes_nothing(heddle: HeddleProcess, tmp_path: Path, ranks: int) -> None:
    """Worker and server by turns, at random moments of jobs with many gradient steps."""
    heddle.settings = {"training_ranks": ranks}
    heddle.start()
    chance = random.Random(4)
    killed: list[str] = []
    with Trainer(heddle.url, "team/project") as trainer:
        model_id = trainer.model["id"]
        for number in range(KILLS // ranks):
            job_id = trainer.start(groups(GROUPS), packed_sequence_length=48, learning_rate=1e-3)
            client = Patient(heddle.url, job_id)
            task = task_of(heddle, model_id, job_id)
            client.until(chance.randrange(EVENTS))
            killed.append(disturb(heddle, number % 2 == 1, chance))
            client.until(math.inf)
            assert client.events == trainer.events(job_id), "events are the same for ever"
            steps = client.events[0]["data"]["num_sequences"]
            kinds = [event["type"] for event in client.events]
            assert kinds == ["training_started", *["gradient_step"] * steps, "training_ended"]
            assert steps > GROUPS / 4, "several steps to be killed in"
            made = Path(task["target"])
            assert made.name == f"{number + 1:04d}"
            expected = by_hand(task, tmp_path / f"by-hand-{number}", steps)
            assert (made / ADAPTER).read_bytes() == expected, killed
            shutil.rmtree(tmp_path / f"by-hand-{number}")
        page = trainer.get(f"/v1/preview/models/{model_id}/checkpoints", limit=100)
        assert [row["step"] for row in page["data"]] == list(range(KILLS // ranks + 1))
        trainer.chat([{"role": "user", "content": "Say yes"}], step=KILLS // ranks)
    print(f"training crash, {ranks} ranks: killed {len(killed)} times: the same bytes, every event once")
    assert {"worker", "server"} <= set(killed)
