"""Improvements over HTTP: weak chats with the small model, and an improvement of few answers on them."""

import time
from typing import Any

from heddle.demo.teach import all_questions
from heddle.wire import times
from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.training import TrainingWire

Json = dict[str, Any]
TARGET = "maybe"
PATIENCE = 300.0


class Clinic:
    """A project with a trainable model, weak chats, and a scorer; `improve` starts an improvement of one small step."""

    def __init__(self, wire: Wire, name: str = "learner") -> None:
        self.wire, self.name = wire, name
        entity, _, project = wire.project.partition("/")
        made = {"entity": entity, "project": project, "name": name, "base_model": "heddle-tiny"}
        self.training = TrainingWire(str(wire.client.base_url))
        self.model_id = str(self.training.post("/models", **made, return_existing=True)["id"])
        self.scorer = Lab(wire).scorer("ExactMatchScorer", name="says-maybe")

    def write(self, count: int, op: str = "ask", answer: str = "no", **inputs: Any) -> list[str]:
        """The ids of new calls with different chats, answered in the same way."""
        batch = []
        for place, text in enumerate(all_questions()[:count]):
            at = times.to_iso(times.now())
            asked = {"messages": [{"role": "user", "content": text}], "target": TARGET, **inputs}
            call_id = f"{op}-{place}-{time.time_ns()}"
            batch.append(
                {
                    "project_id": self.wire.project, "id": call_id, "trace_id": call_id, "op_name": op,
                    "started_at": at, "ended_at": at, "attributes": {}, "summary": {}, "inputs": asked,
                    "output": answer,
                }
            )  # fmt: skip
        self.wire.post(f"/v2/{self.wire.project}/calls/complete", batch=batch)
        return [call["id"] for call in batch]

    def scored(self, count: int) -> None:
        """Return once a monitor has scored so many calls."""
        deadline = time.monotonic() + PATIENCE
        while len(found := self.wire.post("/feedback/query", limit=1000)["result"]) < count:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def body(self, **changes: Any) -> Json:
        """The request of a small improvement; its gate lets everything pass."""
        return {
            "model": self.name,
            "weak": {"filter": {"op_names": ["ask"]}},
            "columns": {"target": "inputs.target"},
            "scorers": [self.scorer],
            "rollouts": {"steps": 1, "chats": 4, "answers": 4, "max_tokens": 4},
            "experimental_config": {"learning_rate": 2e-3},
            "gate": {"held_out": [], "general": []},
            **changes,
        }

    def improve(self, **changes: Any) -> str:
        """The id of a new improvement."""
        return str(self.wire.post("/improvements/create", **self.body(**changes))["id"])

    def read(self, improvement: str) -> Json:
        """An improvement as it is now."""
        return dict(self.wire.post("/improvements/read", id=improvement)["improvement"])

    def until(self, improvement: str, **wanted: Any) -> Json:
        """The improvement once its fields have these values, or it has ended."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self.read(improvement)
            if found["ended_at"] is not None or all(found[name] == value for name, value in wanted.items()):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def ended(self, improvement: str) -> Json:
        """The improvement when it is done."""
        return self.until(improvement, state="ended")

    def latest(self) -> int:
        """The step that the model's name means."""
        return int(self.training.get(f"/models/{self.model_id}")["latest_step"])

    def digests(self) -> dict[int, str]:
        """The digest of the weights of each step."""
        listed = self.training.get(f"/models/{self.model_id}/checkpoints", limit=100)["data"]
        return {row["step"]: row["digest"] for row in listed}

    def jobs(self) -> list[Json]:
        """The training jobs of the model, oldest first."""
        return list(self.training.get("/training-jobs", model_id=self.model_id, limit=100)["data"])


def step_of(improvement: Json, name: str, number: int | None = None) -> Json:
    """An entry of the timeline."""
    (found,) = [step for step in improvement["steps"] if (step["name"], step["number"]) == (name, number)]
    return dict(found)
