"""Evaluations and runs written by hand over plain HTTP, in the shape in which SDKs write them."""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]
Post = Callable[..., Any]
"""Posts a body (as keywords) to a path and returns the JSON of a success."""
START = datetime(2026, 1, 1, tzinfo=UTC)


class Writer:
    """Writes objects and runs of one project."""

    def __init__(self, post: Post, project: str) -> None:
        self.post = post
        self.project = project

    def object(self, name: str, value: Json) -> str:
        """The external ref of a new object version."""
        made = self.post("/obj/create", obj={"project_id": self.project, "object_id": name, "val": value})
        return f"weave:///{self.project}/object/{name}:{made['digest']}"

    def dataset(self, name: str, rows: Sequence[Json]) -> tuple[str, list[str]]:
        """The ref of a dataset, and the digests of its rows."""
        made = self.post("/table/create", table={"project_id": self.project, "rows": list(rows)})
        table = f"weave:///{self.project}/table/{made['digest']}"
        return self.object(name, _value("Dataset", name=name, rows=table)), list(made["row_digests"])

    def scorer(self, class_name: str, **fields: Any) -> str:
        """The ref of a built-in scorer."""
        bases = ["Scorer", "Object", "BaseModel"]
        return self.object(class_name, {"_type": class_name, "_class_name": class_name, "_bases": bases, **fields})

    def evaluation(self, name: str, dataset: str, scorers: Sequence[str], **fields: Any) -> str:
        """The ref of an evaluation."""
        return self.object(name, _value("Evaluation", name=name, dataset=dataset, scorers=list(scorers), **fields))

    def run(
        self, evaluation: str, dataset: str, rows: Sequence[str], model: str, answers: Sequence[Json], at: int = 0
    ) -> str:
        """The id of an ended run: one answer per row, `{output, scores, seconds}`; one without output has failed."""
        started = START + timedelta(minutes=at)
        run_id = _id()
        head = {"self": evaluation, "model": model}
        calls = [_call(run_id, run_id, None, "Evaluation.evaluate", started, head, {"done": True}, 30)]
        for row, answer in zip(rows, answers, strict=True):
            seconds = answer.get("seconds", 0.5)
            inputs = {**head, "example": f"{dataset}/attr/rows/id/{row}"}
            output = {"output": answer.get("output"), "scores": answer.get("scores", {}), "model_latency": seconds}
            child = _id()
            calls += [
                _call(child, run_id, run_id, "Evaluation.predict_and_score", started, inputs, output, seconds),
                _call(_id(), run_id, child, "Model.predict", started, {"self": model}, answer.get("output"), seconds),
            ]
        self.post(f"/v2/{self.project}/calls/complete", batch=[{**call, "project_id": self.project} for call in calls])
        return run_id


def _value(class_name: str, **fields: Any) -> Json:
    return {"_type": class_name, "_class_name": class_name, "_bases": ["Object", "BaseModel"], **fields}


def _id() -> str:
    return str(uuid.uuid4())


def _call(
    call_id: str, trace: str, parent: str | None, op: str, at: datetime, inputs: Json, output: Any, seconds: float
) -> Json:
    return {
        "id": call_id,
        "trace_id": trace,
        "parent_id": parent,
        "op_name": op,
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=seconds)).isoformat(),
        "attributes": {},
        "inputs": inputs,
        "output": output,
        "summary": {},
    }
