"""/v2/{entity}/{project}/evaluations: which dataset is answered, and which scorers judge the answers."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.evals.families.common import Entity, Project, body_of, internal_ref, object_id
from heddle.evals.families.serving import Family, serve
from heddle.evals.families.sources import created
from heddle.evals.families.versions import Version, of_class
from heddle.http import (
    RecordsDep,
    RequestModel,
    ResponseModel,
    Writer,
    answer,
    group,
    inlined_body,
)
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

EVALUATIONS = of_class("Evaluation")
_OPS = ("evaluate", "predict_and_score", "summarize")
router: APIRouter = group("Evaluations")


class EvaluationCreateBody(RequestModel):
    """An evaluation; `dataset` and `scorers` are refs, `eval_attributes` become fields of the object."""

    name: str
    description: str | None = None
    dataset: str
    scorers: list[str] | None = None
    trials: int = 1
    evaluation_name: str | None = None
    eval_attributes: dict[str, Any] | None = None


class EvaluationCreateRes(ResponseModel):
    """Where the version is found; `evaluation_ref` is its ref."""

    digest: str
    object_id: str
    version_index: int
    evaluation_ref: str


class EvaluationReadRes(ResponseModel):
    """A version of an evaluation; its ops are refs."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime
    name: str
    description: str | None = None
    dataset: str
    scorers: list[str]
    trials: int
    evaluation_name: str | None = None
    evaluate_op: str | None = None
    predict_and_score_op: str | None = None
    summarize_op: str | None = None


class EvaluationDeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/evaluations",
    response_model=EvaluationCreateRes,
    openapi_extra=inlined_body(EvaluationCreateBody),
)
async def evaluation_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a version of an evaluation, with placeholders for its ops."""
    project_id = f"{entity}/{project}"
    body = await body_of(request, EvaluationCreateBody)
    internal_ref(body.dataset, "dataset")
    for place, scorer in enumerate(body.scorers or ()):
        internal_ref(scorer, f"scorers.{place}", ("object", "op"))
    if body.trials < 1:
        raise InvalidRequest(f"trials must be at least 1, not {body.trials}")
    name = object_id(body.name, "Evaluation")
    ops = {key: await records.placeholder_op(caller, project_id, f"{name}.{key}") for key in _OPS}
    value = {
        "_type": "Evaluation",
        "_class_name": "Evaluation",
        "_bases": ["Object", "BaseModel"],
        "name": body.name,
        "description": body.description,
        "dataset": body.dataset,
        "scorers": body.scorers or [],
        "trials": body.trials,
        "evaluation_name": body.evaluation_name,
        "metadata": None,
        "preprocess_model_input": None,
        **{key: refs.to_external(op.ref) for key, op in ops.items()},
        **(body.eval_attributes or {}),
    }
    published = await records.publish(caller, project_id, name, value)
    return answer(created(published, evaluation_ref=published.ref))


async def _record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    """The record; the TypeScript SDK leaves fields away and names one of its ops in its own way."""
    trials = version.fields.get("trials")
    return {
        **version.named(),
        "dataset": version.place("dataset") or "",
        "scorers": _scorers(version),
        "trials": trials if isinstance(trials, int) and not isinstance(trials, bool) else 1,
        "evaluation_name": version.text("evaluation_name"),
        "evaluate_op": version.place("evaluate"),
        "predict_and_score_op": version.place("predict_and_score") or version.place("predictAndScore"),
        "summarize_op": version.place("summarize"),
    }


def _scorers(version: Version) -> list[str]:
    """The refs of the scorers; one that is stored inside the evaluation is named by its place there."""
    listed = version.fields.get("scorers")
    places = enumerate(listed) if isinstance(listed, list) else ()
    return [
        scorer if isinstance(scorer, str) else f"{version.ref}/attr/scorers/index/{place}" for place, scorer in places
    ]


serve(router, Family("evaluation", "evaluations", EVALUATIONS, _record, EvaluationReadRes, EvaluationDeleteRes))
