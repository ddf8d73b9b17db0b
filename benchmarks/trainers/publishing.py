"""Publishing through a real server: how long a new policy takes from its last gradient step to its first answer."""

import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks import support
from benchmarks.inference.driver import cpu_seconds, family

CLIENTS = 2
HEADERS = {"authorization": "Bearer benchmark"}
PLACE = {"entity": "bench", "project": "training", "name": "policy"}
ADDRESS = "wandb-artifact:///bench/training/policy"
PATIENCE = 30.0
GOAL_PUBLISH, GOAL_ANSWER = 0.1, 0.3
LAST = ("training_ended", "training_failed")


@dataclass
class Swaps:
    """Seconds of each job."""

    total: list[float] = field(default_factory=list)
    """From the request to training_ended."""
    published: list[float] = field(default_factory=list)
    """From the last gradient step to training_ended."""
    answered: list[float] = field(default_factory=list)
    """From training_ended to the first answer of the new step to a request sent then."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the server and its processes, chats beside it included."""


class Chatter:
    """Clients that chat with the bare name all the time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[tuple[float, float, int, str]] = []
        """When it was sent and answered, status and policy."""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._chat) for _ in range(CLIENTS)]

    def __enter__(self) -> "Chatter":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _chat(self) -> None:
        with httpx.Client(base_url=self.url, headers=HEADERS, timeout=60) as client:
            while not self._stop.is_set():
                began = time.perf_counter()
                status, policy = chat(client)
                self.answers.append((began, time.perf_counter(), status, policy))

    def failures(self) -> int:
        """Requests that were not answered with 200."""
        return sum(status != 200 for _, _, status, _ in self.answers)


def chat(client: httpx.Client) -> tuple[int, str]:
    """Ask the latest policy; status, and the policy that answered."""
    body = {"model": ADDRESS, "messages": [{"role": "user", "content": "respond with yes or no"}], "max_tokens": 8}
    answer = client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.headers.get("x-heddle-policy", "")


def print_publishing(groups: list[dict[str, Any]], folder: Path, count: int) -> None:
    """A table of `count` jobs with nobody else there, and of as many while clients chat."""
    with (
        support.Heddle(folder / "data", training_threads=1, engine_threads=1) as server,
        httpx.Client(base_url=server.url, headers=HEADERS, timeout=120) as client,
    ):
        model = client.post("/v1/preview/models", json=PLACE | {"base_model": "heddle-tiny"}).raise_for_status()
        chat(client)
        train(client, server, model.json()["id"], groups, 2)
        alone = train(client, server, model.json()["id"], groups, count)
        with Chatter(server.url) as chatter:
            beside = train(client, server, model.json()["id"], groups, count)
    rows = [row(f"{count} jobs alone", alone), row(f"{count} jobs beside {CLIENTS} chats", beside)]
    columns = ["what", "request to end, ms p50", "last step to end, ms p50", "longest"]
    columns += ["end to first answer, ms p50", "longest", "CPU of a job, s"]
    support.print_table("Publish and swap, 64 short trajectories, over HTTP", columns, rows)
    print(f"\nchats meanwhile: {len(chatter.answers)} answered, {chatter.failures()} failed", flush=True)
    for what, value, goal in (
        ("last gradient step to training_ended", statistics.median(alone.published), GOAL_PUBLISH),
        ("first answer of the new step, longest", max(alone.answered), GOAL_ANSWER),
    ):
        print(f"goal: {what} ≤ {goal:g} s; {value:.3f}: {'met' if value <= goal else 'missed'}", flush=True)


def row(name: str, swaps: Swaps) -> list[object]:
    """Medians and longest, in milliseconds."""
    values: list[object] = [name, statistics.median(swaps.total) * 1e3]
    for seconds in (swaps.published, swaps.answered):
        values += [statistics.median(seconds) * 1e3, max(seconds) * 1e3]
    return [*values, statistics.median(swaps.cpu)]


def train(
    client: httpx.Client, server: support.Heddle, model_id: str, groups: list[dict[str, Any]], count: int
) -> Swaps:
    """Jobs one after the other; each is asked for its policy the moment it has ended."""
    swaps = Swaps()
    assert server.process is not None
    config = {"learning_rate": 1e-4}
    body = json.dumps({"model_id": model_id, "trajectory_groups": groups, "experimental_config": config})
    for _ in range(count):
        pids = family(server.process.pid)
        began, cpu = time.perf_counter(), cpu_seconds(pids)
        job = client.post("/v1/preview/training-jobs", content=body, headers={"content-type": "application/json"})
        marks = {kind: moment for moment, kind in events(client, job.raise_for_status().json()["id"])}
        if "training_ended" not in marks:
            support.fail(f"a training job failed; see {server.log_path}")
        ended = marks["training_ended"]
        wanted = client.get(f"/v1/preview/training-jobs/{job.json()['id']}").json()["step"]
        asked = time.perf_counter()
        while not chat(client)[1].endswith(f"@{wanted}"):
            if time.perf_counter() - asked > PATIENCE:
                support.fail(f"step {wanted} never answers; see {server.log_path}")
        swaps.answered.append(time.perf_counter() - asked)
        swaps.total.append(ended - began)
        swaps.published.append(ended - marks["gradient_step"])
        swaps.cpu.append(cpu_seconds(pids) - cpu)
    return swaps


def events(client: httpx.Client, job_id: str) -> Iterator[tuple[float, str]]:
    """When each event of a job arrives, and its type."""
    with client.stream("GET", f"/v1/preview/training-jobs/{job_id}/events/stream") as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                yield time.perf_counter(), line.removeprefix("event: ")
                if line.removeprefix("event: ") in LAST:
                    return
