"""A run as calls and feedback, as the SDKs show theirs; all ids follow from the run's, so that nothing is twice."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.evals.objects import is_ref
from heddle.evals.running.prediction import Prediction, Score
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

_NAMES = uuid.UUID("5b1f4a50-6a0e-5f0b-8d6c-2e1d4c7b9a63")
"""What the ids of the calls of a run are derived under."""
EVALUATE, PREDICT_AND_SCORE, SUMMARIZE = (
    "Evaluation.evaluate",
    "Evaluation.predict_and_score",
    "Evaluation.summarize",
)
META = "_weave_eval_meta"
WORKER: Json = {"evaluate_model_worker": True}
SCORER: Json = {"weave": {"kind": "scorer"}}


def derived_id(name: str) -> str:
    """An id that follows from a name."""
    return str(uuid.uuid5(_NAMES, name))


@dataclass(frozen=True, slots=True)
class Root:
    """The call of a whole run."""

    id: str
    project: str
    """`entity/project`."""
    started_at: int
    evaluation: str
    """Internal ref."""
    model: str
    """Internal ref, or the name of a chat model."""
    label: str | None = None
    attributes: Json = field(default_factory=lambda: {META: WORKER})

    def start(self, op: str) -> Json:
        """The first half; `op` is the ref of its op."""
        day = times.to_iso(self.started_at)[:10]
        return {
            "id": self.id,
            "trace_id": self.id,
            "op_name": op,
            "display_name": self.label or f"eval-{day}-{self.id[-6:]}",
            "started_at": times.to_iso(self.started_at),
            "attributes": self.attributes,
            "inputs": {"self": self.evaluation, "model": self.model},
        }

    def end(self, output: Any, problem: str | None = None) -> Json:
        """The second half."""
        return {
            "id": self.id,
            "ended_at": times.to_iso(max(times.now(), self.started_at)),
            "output": output,
            "exception": problem,
            "summary": {},
        }


class Tree:
    """The calls below a root."""

    def __init__(self, root: Root, ops: Mapping[str, str], predict_op: str) -> None:
        self.root = root
        self._ops = ops
        """Refs of ops by name."""
        self._predict_op = predict_op
        self._project = refs.internal_project(root.project)
        self._meta: Json = {META: {**WORKER, "declarative": True}}

    def row_id(self, key: str) -> str:
        """The id of the call of a case."""
        return derived_id(f"{self.root.id}/{key}")

    def calls(self, prediction: Prediction) -> list[Json]:
        """The calls of a case: the answer, its scores, and what holds them together."""
        case, parent = prediction.case, self.row_id(prediction.case.key)
        columns = columns_of(case.example, case.value)
        predicted = self._call(
            self._predict_id(case.key), parent, self._predict_op, prediction.started_at, prediction.ended_at
        )
        predicted["inputs"] = {**columns, "self": self.root.model}
        predicted |= outcome(prediction.output, prediction.problem, prediction.usage)
        made = [predicted, *(self._scored(score, prediction, columns, parent) for score in prediction.scores)]
        last = max([prediction.ended_at, *(score.ended_at for score in prediction.scores)])
        whole = self._call(parent, self.root.id, PREDICT_AND_SCORE, prediction.started_at, last)
        whole["inputs"] = {"self": self.root.evaluation, "model": self.root.model, "example": case.example}
        problems = [score.problem for score in prediction.scores if score.problem is not None]
        output = {
            "output": prediction.output,
            "scores": {score.scorer.name: score.value for score in prediction.scores if score.problem is None},
            "model_latency": prediction.seconds,
        }
        whole |= outcome(output, prediction.problem or next(iter(problems), None), {})
        return [*made, whole]

    def feedback(self, prediction: Prediction) -> list[Json]:
        """The feedback on the answer of a case: one row per score of a stored scorer."""
        key = prediction.case.key
        return [
            feedback_of(
                score, self._project, self._predict_id(key), self._score_id(key, score), self._score_id(key, score)
            )
            for score in prediction.scores
            if score.problem is None and score.scorer.ref
        ]

    def summary(self, table: str, started_at: int, output: Json) -> tuple[Json, Json]:
        """The halves of the call that sums the run up; `table` is the ref of an EvaluationResults object."""
        call = self._call(derived_id(f"{self.root.id}/summarize"), self.root.id, SUMMARIZE, started_at, times.now())
        end = {"id": call["id"], "ended_at": call.pop("ended_at"), "output": output, "summary": {}}
        return {**call, "inputs": {"self": self.root.evaluation, "eval_table": table}}, end

    def _scored(self, score: Score, prediction: Prediction, columns: Json, parent: str) -> Json:
        name = score_op(score)
        call_id = self._score_id(prediction.case.key, score)
        call = self._call(call_id, parent, name, score.started_at, score.ended_at)
        call["attributes"] = {**self._meta, **SCORER}
        call["inputs"] = {
            **score.scorer.arguments(columns),
            **({"self": score.scorer.ref} if score.scorer.ref else {}),
            "output": prediction.output,
        }
        return call | outcome(score.value, score.problem, score.usage)

    def _call(self, call_id: str, parent: str, op: str, started_at: int, ended_at: int) -> Json:
        return {
            "id": call_id,
            "trace_id": self.root.id,
            "parent_id": parent,
            "op_name": self._ops[op],
            "started_at": times.to_iso(started_at),
            "ended_at": times.to_iso(ended_at),
            "attributes": self._meta,
        }

    def _predict_id(self, key: str) -> str:
        return derived_id(f"{self.root.id}/{key}/predict")

    def _score_id(self, key: str, score: Score) -> str:
        return derived_id(f"{self.root.id}/{key}/score/{score.scorer.name}")


def score_op(score: Score) -> str:
    """The name of the op that a scorer is."""
    return f"{score.scorer.class_name}.score"


def columns_of(example: Any, value: Json) -> Json:
    """The columns of a row as a call shows them: refs into the row where it is stored, else their values."""
    if not is_ref(example):
        return dict(value)
    return {column: f"{example}/key/{refs.quote_part(column)}" for column in value}


def outcome(output: Any, problem: Exception | None, usage: Mapping[str, Json]) -> Json:
    """The fields of a call that say how it ended."""
    return {
        "output": output,
        "exception": None if problem is None else str(problem) or "failed",
        "summary": {"usage": dict(usage)} if usage else {},
    }


def feedback_of(score: Score, project: str, scored_id: str, score_id: str, seed: str) -> Json:
    """The feedback row of a score on a call (internal project id); its id follows from `seed`."""
    return {
        "id": derived_id(f"{seed}/feedback"),
        "weave_ref": refs.call_ref(project, scored_id),
        "feedback_type": f"wandb.runnable.{score.scorer.name}",
        "payload": {"output": score.value},
        "runnable_ref": score.scorer.ref,
        "call_ref": refs.call_ref(project, score_id),
    }
