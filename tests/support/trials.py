"""Evaluations as calls, in the shapes of the three SDKs, made by hand with every instant known."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

Json = Any
BEGIN = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
PYTHON, LOGGER, TYPESCRIPT = "python", "logger", "typescript"


class Run:
    """One evaluation run of a project; `calls` are its calls as /calls/complete takes them, children first."""

    def __init__(self, project: str, number: int = 0, shape: str = PYTHON, name: str | None = None) -> None:
        self.project = project
        self.shape = shape
        self.id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{project}/{number}"))
        self.begin = BEGIN + timedelta(hours=number)
        self.evaluation = self.ref("object/sums:" + "E" * 43)
        self.model = self.ref("object/calculator:" + "M" * 43)
        self.trials = 0
        inputs = {"self" if shape != TYPESCRIPT else "this": self.evaluation, "model": self.model}
        self.root = self.call(self.id, None, "Evaluation.evaluate", 0, 3600, inputs, {}, display_name=name)
        self.calls = [self.root]

    def ref(self, tail: str) -> str:
        """An external ref of the project."""
        return f"weave:///{self.project}/{tail}"

    def call(
        self,
        call_id: str,
        parent: str | None,
        op: str,
        at: float,
        until: float,
        inputs: Json,
        output: Json,
        **more: Json,
    ) -> Json:
        """A whole call; `at` and `until` are seconds behind the begin of the run."""
        return {
            "project_id": self.project,
            "id": call_id,
            "trace_id": self.id,
            "parent_id": parent,
            "op_name": self.ref(f"op/{op}:" + "O" * 43),
            "started_at": (self.begin + timedelta(seconds=at)).isoformat(),
            "ended_at": (self.begin + timedelta(seconds=until)).isoformat(),
            "attributes": {},
            "inputs": inputs,
            "output": output,
            "summary": {},
            **more,
        }

    def trial(
        self, example: Json, output: Json, scores: dict[str, Json], tokens: int | None = None, seconds: float = 0.25
    ) -> Json:
        """Add a trial with the call of the model and one per score; returns the trial's call."""
        self.trials += 1
        call_id, at = f"{self.id[:-4]}{self.trials:04d}", self.trials * 10.0
        given = {"self": self.evaluation, "model": self.model, "example": example}
        usage = {"usage": {"gpt-4o": {"total_tokens": tokens, "prompt_tokens": tokens}}} if tokens is not None else {}
        self._predict(call_id, at, seconds, example, output, usage)
        for place, (name, value) in enumerate(scores.items()):
            self._score(call_id, at + seconds + place + 1, name, value)
        op, key = "Evaluation.predict_and_score", "output"
        if self.shape == TYPESCRIPT:
            op, key = "Evaluation.predictAndScore", "model_output"
        latency: Json = {PYTHON: seconds + 0.5, LOGGER: None, TYPESCRIPT: seconds + 0.5}[self.shape]
        whole = {key: output, "scores": scores, "model_latency": latency}
        own = self.call(call_id, self.id, op, at, at + 9, given, whole, summary=usage)
        self.calls.append(own)
        return own

    def _predict(self, trial: str, at: float, seconds: float, example: Json, output: Json, summary: Json) -> None:
        inputs = {
            PYTHON: {"self": self.model},
            LOGGER: {"self": self.model, "inputs": example},
            TYPESCRIPT: {"arg0": 1},
        }
        op = {PYTHON: "Calculator.predict", LOGGER: "Model.predict", TYPESCRIPT: "Model.predict"}[self.shape]
        self.calls.append(
            self.call(
                f"{trial}-p", trial, op, at + 0.1, at + 0.1 + seconds, inputs[self.shape], output, summary=summary
            )
        )

    def _score(self, trial: str, at: float, name: str, value: Json) -> None:
        attributes: Json = {"_weave_eval_meta": {"imperative": True, "score": True}}
        op, inputs = name, {"self": self.ref(f"object/{name}:" + "S" * 43), "output": 1}
        if self.shape == PYTHON:
            attributes, op = {"weave": {"kind": "scorer"}}, f"{name}.score"
        self.calls.append(self.call(f"{trial}-{name}", trial, op, at, at + 0.5, inputs, value, attributes=attributes))
