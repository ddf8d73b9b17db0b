"""Evaluations over plain HTTP: what they are made of, and waiting for their ends."""

import time
from typing import Any

from tests.conftest import Wire

Json = dict[str, Any]
MODEL, JUDGE = "LLMStructuredCompletionModel", "LLMAsAJudgeScorer"


class Lab:
    """Publishes the parts of evaluations in the project of a Wire, and runs them in the server."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def publish(self, name: str, class_name: str, bases: list[str], **fields: Any) -> str:
        """The ref of a new object version."""
        value = {"_type": class_name, "_class_name": class_name, "_bases": bases, "name": name, **fields}
        made = self.wire.post("/obj/create", obj={"project_id": self.wire.project, "object_id": name, "val": value})
        return f"weave:///{self.wire.project}/object/{name}:{made['digest']}"

    def store(self, name: str, value: Json, builtin_class: str) -> str:
        """The digest of an object of a class that the server knows itself."""
        body = {"project_id": self.wire.project, "object_id": name, "val": value}
        return str(self.wire.post("/obj/create", obj={**body, "builtin_object_class": builtin_class})["digest"])

    def dataset(self, rows: list[Json], name: str = "rows") -> str:
        """The ref of a dataset."""
        made = self.wire.post("/table/create", table={"project_id": self.wire.project, "rows": rows})
        table = f"weave:///{self.wire.project}/table/{made['digest']}"
        return self.publish(name, "Dataset", ["Object", "BaseModel"], rows=table)

    def model(self, model_id: str, name: str = "answerer", **parameters: Any) -> str:
        """The ref of a model of settings."""
        given = {"response_format": "text", **parameters}
        return self.publish(name, MODEL, ["Model", "Object", "BaseModel"], llm_model_id=model_id, default_params=given)

    def scorer(self, class_name: str, name: str | None = None, **fields: Any) -> str:
        """The ref of a scorer."""
        return self.publish(name or class_name, class_name, ["Scorer", "Object", "BaseModel"], **fields)

    def judge(self, model: str, prompt: Any, name: str = "judge", **fields: Any) -> str:
        """The ref of a judge."""
        return self.scorer(JUDGE, name, model=model, scoring_prompt=prompt, **fields)

    def evaluation(self, dataset: str, scorers: list[str], name: str = "exam", **fields: Any) -> str:
        """The ref of an evaluation."""
        parts = {"dataset": dataset, "scorers": scorers, "trials": 1, **fields}
        return self.publish(name, "Evaluation", ["Object", "BaseModel"], **parts)

    def evaluate(self, evaluation: str, model: str) -> str:
        """The id of the call of a new run."""
        return str(self.wire.post("/evaluations/evaluate_model", evaluation_ref=evaluation, model_ref=model)["call_id"])

    def status(self, call_id: str) -> Json:
        """Where a run stands."""
        return dict(self.wire.post("/evaluations/status", call_id=call_id)["status"])

    def ended(self, call_id: str, seconds: float = 120) -> Json:
        """The status of a run when it no longer runs."""
        deadline = time.monotonic() + seconds
        while (status := self.status(call_id))["code"] == "running":
            assert time.monotonic() < deadline, f"{status} of {call_id}: {self.jobs()}"
            time.sleep(0.05)
        return status

    def jobs(self, **body: Any) -> list[Json]:
        """The background jobs, newest first."""
        return list(self.wire.post("/evaluations/jobs/query", **body)["jobs"])

    def jobs_done(self, seconds: float = 120) -> list[Json]:
        """The background jobs when none is open."""
        deadline = time.monotonic() + seconds
        while True:
            jobs = self.jobs()
            if all(job["ended_at"] is not None for job in jobs):
                return jobs
            assert time.monotonic() < deadline, jobs
            time.sleep(0.05)

    def children(self, call_id: str, op: str) -> list[Json]:
        """The calls of an op below a call."""
        calls = self.wire.calls(filter={"parent_ids": [call_id]})
        return [call for call in calls if f"/op/{op}:" in call["op_name"]]
