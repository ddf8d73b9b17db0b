"""Evaluations that the server runs: /evaluations/..., /calls/score, and what their jobs are doing."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.errors import InvalidRequest
from heddle.evals.jobs import JobsDep
from heddle.evals.scoring import Scoring
from heddle.evals.service import Evaluations, read_status
from heddle.http.own_bodies import OwnReq
from heddle.http.parameters import page_limit
from heddle.http.routing import (
    Empty,
    ProjectReq,
    Reader,
    RecordsDep,
    ResponseModel,
    Service,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    describe_row,
    group,
)
from heddle.wire.jsontypes import Json

EvaluationsDep = Annotated[Evaluations, Depends(Service("evaluations"))]
ScoringDep = Annotated[Scoring, Depends(Service("scoring"))]
router: APIRouter = group("Evaluation")


class EvaluateModelReq(ProjectReq):
    """Body of /evaluations/evaluate_model; `model_ref` may also be the name of a chat model."""

    evaluation_ref: str
    model_ref: str = Field(min_length=1)
    wb_user_id: str | None = None


class EvaluateModelRes(ResponseModel):
    """The id of the call that shows the run."""

    call_id: str


class EvaluationStatusReq(ProjectReq):
    """Body of /evaluations/status."""

    call_id: str


class EvaluationStatusNotFound(ResponseModel):
    """No such call."""

    code: Literal["not_found"] = "not_found"


class EvaluationStatusRunning(ResponseModel):
    """How far it is."""

    code: Literal["running"] = "running"
    completed_rows: int
    total_rows: int


class EvaluationStatusFailed(ResponseModel):
    """Why it failed."""

    code: Literal["failed"] = "failed"
    error: str | None = None


class EvaluationStatusComplete(ResponseModel):
    """What it came to."""

    code: Literal["complete"] = "complete"
    output: Json
    unscored: Json | None = None
    """By scorer how many `answers` have no score, and the `reason` of the first; missing where all have one."""


class EvaluationStatusRes(ResponseModel):
    """Where an evaluation stands."""

    status: EvaluationStatusNotFound | EvaluationStatusRunning | EvaluationStatusFailed | EvaluationStatusComplete


class RescoreReq(ProjectReq):
    """Body of /evaluations/rescore."""

    source_evaluation_run_id: str
    scorer_refs: list[str] = Field(min_length=1)
    wb_user_id: str | None = None


class RescoreRes(ResponseModel):
    """The id of the new run, twice."""

    call_id: str
    evaluation_run_id: str


class CallsScoreReq(ProjectReq):
    """Body of /calls/score."""

    call_ids: list[str]
    scorer_refs: list[str]
    wb_user_id: str | None = None


class ScorePreviewReq(OwnReq):
    """Body of /calls/score/preview: an object of a built-in scorer or judge as it would be stored."""

    call_ids: list[str] = Field(min_length=1, max_length=20)
    scorer: Json


class ScorePreview(ResponseModel):
    """What the scorer says of a call, or why it says nothing."""

    call_id: str
    score: Any
    problem: str | None


class ScorePreviewRes(ResponseModel):
    """One entry per call."""

    results: list[ScorePreview]


class EvaluationCancelReq(OwnReq):
    """Body of /evaluations/cancel: the call of a run, or the id of any job."""

    call_id: str


class EvaluationJobsReq(OwnReq):
    """Body of /evaluations/jobs/query; null is every kind, every state."""

    kinds: list[str] | None = None
    states: list[str] | None = None
    limit: int | None = Field(default=100, ge=0)
    offset: int | None = Field(default=0, ge=0, le=2**53)


class EvaluationJob(ResponseModel):
    """One background job."""

    id: str
    kind: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    cancel_asked: bool
    attempts: int
    progress: Json
    result: Json | None
    error: str | None
    wb_user_id: str
    created_at: str
    started_at: str | None
    ended_at: str | None


class EvaluationJobsRes(ResponseModel):
    """The jobs of a project, newest first."""

    jobs: list[EvaluationJob]


@router.post("/evaluations/evaluate_model", response_model=EvaluateModelRes)
async def evaluate_model(body: EvaluateModelReq, caller: Writer, evaluations: EvaluationsDep) -> Response:
    """Evaluate a model in the background; the call is visible at once."""
    caller.open(body.project_id)
    return answer(
        {"call_id": await evaluations.evaluate_model(caller, body.project_id, body.evaluation_ref, body.model_ref)}
    )


@router.post("/evaluations/status", response_model=EvaluationStatusRes)
async def evaluation_status(
    body: EvaluationStatusReq, caller: Reader, store: StoreDep, records: RecordsDep
) -> Response:
    """Where an evaluation stands, whoever runs it."""
    return answer({"status": await read_status(store, records, caller, body.project_id, body.call_id)})


@router.post("/evaluations/rescore", response_model=RescoreRes)
async def rescore(body: RescoreReq, caller: Writer, evaluations: EvaluationsDep) -> Response:
    """Score the stored answers of a run by other scorers, as a new run; no model answers again."""
    caller.open(body.project_id)
    made = await evaluations.rescore(caller, body.project_id, body.source_evaluation_run_id, body.scorer_refs)
    return answer({"call_id": made, "evaluation_run_id": made})


@router.post("/evaluations/cancel", response_model=Empty)
async def cancel_evaluation(body: EvaluationCancelReq, caller: Writer, jobs: JobsDep) -> Response:
    """End a job of the background; one that is done stays as it is."""
    caller.open(body.project_id)
    await jobs.cancel(body.project_id, body.call_id)
    return answer({})


@router.post("/evaluations/jobs/query", response_model=EvaluationJobsRes)
async def query_jobs(body: EvaluationJobsReq, caller: Reader, settings: SettingsDep, jobs: JobsDep) -> Response:
    """The background jobs of a project, newest first."""
    caller.open(body.project_id)
    limit = page_limit(settings, body.limit)
    found = await jobs.query(body.project_id, body.kinds, body.states, limit, body.offset or 0)
    return answer({"jobs": [describe_row(EvaluationJob, job, wb_user_id=job.caller["user"]) for job in found]})


@router.post("/calls/score", response_model=Empty)
async def calls_score(body: CallsScoreReq, caller: Writer, scoring: ScoringDep) -> Response:
    """Score calls in the background by judges and built-in scorers."""
    caller.open(body.project_id)
    if not body.scorer_refs or not body.call_ids:
        raise InvalidRequest("call_ids and scorer_refs must each have at least one entry")
    await scoring.submit(caller, body.project_id, body.call_ids, body.scorer_refs)
    return answer({})


@router.post("/calls/score/preview", response_model=ScorePreviewRes)
async def preview_scores(body: ScorePreviewReq, caller: Writer, scoring: ScoringDep) -> Response:
    """Try a scorer that is not stored yet on some calls; nothing is stored."""
    caller = caller.require(Scope.READ)
    caller.open(body.project_id)
    return answer({"results": await scoring.preview(caller, body.project_id, body.call_ids, body.scorer)})
