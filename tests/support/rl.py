"""Reinforcement learning over plain HTTP: what a client without any SDK sends and reads."""

import itertools
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

from heddle.inference.served_model import TINY
from tests.clients.art import tasks
from tests.support.chat import API_KEY
from tests.support.server import HeddleProcess

Json = dict[str, Any]
ENDED = ("training_ended", "training_failed")


class Trainer:
    """The training routes of one server for one trainable model, and the chats with it."""

    def __init__(self, url: str, project: str, name: str = "", connections: int = 16) -> None:
        self.client = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {API_KEY}"},
            timeout=120,
            limits=httpx.Limits(max_connections=2 * connections),
        )
        self.pool = ThreadPoolExecutor(connections)
        self.seeds = itertools.count(1)
        """Of rollouts, so that a test samples alike each time."""
        entity, project = project.split("/")
        body = {"entity": entity, "project": project, "name": name or f"policy-{uuid.uuid4().hex[:8]}"}
        self.model = self.post("/v1/preview/models", **body, base_model=TINY)
        self.name = f"wandb-artifact:///{entity}/{project}/{self.model['name']}"

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()
        self.client.close()

    def post(self, path: str, **body: Any) -> Json:
        """The JSON answer of a POST that must succeed."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
        return dict(answer.json())

    def get(self, path: str, **query: Any) -> Json:
        """The JSON answer of a GET that must succeed."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
        return dict(answer.json())

    def chat(self, messages: list[Json], step: int | None = None, **fields: Any) -> Json:
        """The only choice of a chat with the latest policy, or with that of a step."""
        model = self.name if step is None else f"{self.name}:step{step}"
        body = {"model": model, "messages": messages, "temperature": 1.0, "max_tokens": 8, **fields}
        (choice,) = self.post("/v1/chat/completions", **body)["choices"]
        return dict(choice)

    def rollouts(self, problems: list[Any], size: int, **fields: Any) -> list[Json]:
        """For each problem a group of so many trajectories."""
        questions = [problem for problem in problems for _ in range(size)]
        seeds = [next(self.seeds) for _ in questions]
        done = list(self.pool.map(lambda problem, seed: self.rollout(problem, seed=seed, **fields), questions, seeds))
        return [{"trajectories": done[start : start + size]} for start in range(0, len(done), size)]

    def rollout(self, problem: Any, **fields: Any) -> Json:
        """One question, its sampled answer and the reward: a trajectory; a sum is asked for with its tool."""
        if isinstance(problem, tasks.Sum):
            return self.tool_rollout(problem, **fields)
        messages = [{"role": "user", "content": problem.question}]
        choice = self.chat(messages, **fields)
        reward = problem.reward(choice["message"]["content"] or "")
        return {"messages_and_choices": [*messages, choice], "reward": reward}

    def tool_rollout(self, problem: tasks.Sum, **fields: Any) -> Json:
        """The question, the call, the tool's result and the answer; without a call it ends after the first turn."""
        items: list[Json] = [{"role": "user", "content": problem.question}]
        turn = self.chat(items, tools=[tasks.ADD], **{"max_tokens": 48, **fields})
        calls = turn["message"].get("tool_calls") or []
        named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": tasks.run_tool(*name)}
            for call, name in zip(calls, named, strict=True)
        ]
        answer = ""
        sampled: list[Json] = [*items, turn]
        if calls:
            said = {"role": "assistant", "content": turn["message"]["content"] or "", "tool_calls": calls}
            last = self.chat([*items, said, *results], tools=[tasks.ADD], **{"max_tokens": 24, **fields})
            answer = last["message"]["content"] or ""
            sampled += [*results, last]
        return {
            "messages_and_choices": sampled,
            "tools": [tasks.ADD],
            "reward": problem.reward(named, answer),
        }

    def accuracy(self, problems: list[Any], step: int | None = None) -> float:
        """Mean reward of greedy answers."""
        answers = self.pool.map(lambda problem: self.rollout(problem, step=step, temperature=0.0), problems)
        return float(sum(answer["reward"] for answer in answers) / len(problems))

    def start(self, groups: list[Json], **settings: Any) -> str:
        """A new training job; its id."""
        body: Json = {"model_id": self.model["id"], "trajectory_groups": groups}
        return str(self.post("/v1/preview/training-jobs", **body, experimental_config=settings or None)["id"])

    def events(self, job_id: str) -> list[Json]:
        """All events of a job so far, oldest first."""
        events: list[Json] = []
        while True:
            query = {"after": events[-1]["id"]} if events else {}
            page = self.get(f"/v1/preview/training-jobs/{job_id}/events", limit=100, **query)
            events += page["data"]
            if not page["has_more"]:
                return events

    def until_ended(self, job_id: str, timeout: float = 120) -> list[Json]:
        """Poll until the job has ended; all its events."""
        deadline = time.monotonic() + timeout
        while True:
            events = self.events(job_id)
            if events and events[-1]["type"] in ENDED:
                return events
            assert time.monotonic() < deadline, f"job {job_id} has not ended: {events[-3:]}"
            time.sleep(0.05)

    def train(self, groups: list[Json], **settings: Any) -> list[Json]:
        """A job that must succeed; the data of its gradient steps."""
        events = self.until_ended(self.start(groups, **settings))
        assert events[-1]["type"] == "training_ended", events[-1]
        return [event["data"] for event in events if event["type"] == "gradient_step"]


def learn(
    trainer: Trainer, draw: Callable[[], Any], steps: int, groups: int, size: int, **settings: Any
) -> list[tuple[float, list[Json]]]:
    """So many times rollouts and a job; for each the mean reward and the data of the gradient steps."""
    told = []
    for _ in range(steps):
        done = trainer.rollouts([draw() for _ in range(groups)], size)
        rewards = [trajectory["reward"] for group in done for trajectory in group["trajectories"]]
        told.append((sum(rewards) / len(rewards), trainer.train(done, **settings)))
    return told


def children_seconds(process: HeddleProcess) -> float:
    """CPU seconds of the server and of the processes it has started."""
    assert process.process is not None
    server = psutil.Process(process.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (server, *server.children(recursive=True)))
