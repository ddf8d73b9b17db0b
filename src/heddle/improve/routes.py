"""The improvement routes: start one, read its timeline, stop it."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Response

from heddle.auth import Scope
from heddle.evals.jobs import JobsDep
from heddle.http.routing import Reader, Service, Writer, answer, group
from heddle.improve.job import KIND, Improvements
from heddle.improve.schemas import (
    ImprovementCreateReq,
    ImprovementCreateRes,
    ImprovementQueryReq,
    ImprovementQueryRes,
    ImprovementReq,
    ImprovementRes,
    State,
)
from heddle.improve.timeline import spent_seconds
from heddle.store.control.eval_jobs import OPEN, JobRow
from heddle.wire import times
from heddle.wire.jsontypes import Json

ImprovementsDep = Annotated[Improvements, Depends(Service("improvements"))]
router: APIRouter = group("Improvements")
ROUTERS = (router,)


@router.post("/improvements/create", response_model=ImprovementCreateRes)
async def create(body: ImprovementCreateReq, caller: Writer, improvements: ImprovementsDep) -> Response:
    """Train a model on its weak calls, and promote what passes a gate; answers as soon as the job is stored."""
    return answer({"id": (await improvements.submit(body, caller)).id})


@router.post("/improvements/query", response_model=ImprovementQueryRes)
async def query(body: ImprovementQueryReq, caller: Reader, jobs: JobsDep) -> Response:
    """The improvements of a project, newest first."""
    caller.open(body.project_id)
    rows = await jobs.query(body.project_id, [KIND])
    shown = [row for row in rows if body.model is None or row.body["model"] == body.model]
    return answer({"improvements": [_describe(row) for row in shown[body.offset : body.offset + body.limit]]})


@router.post("/improvements/read", response_model=ImprovementRes)
async def read(body: ImprovementReq, caller: Reader, jobs: JobsDep) -> Response:
    """State, outcome and timeline of an improvement."""
    return answer({"improvement": _describe(await jobs.find(caller, body.project_id, body.id, KIND, "improvement"))})


@router.post("/improvements/cancel", response_model=ImprovementRes)
async def cancel(body: ImprovementReq, caller: Writer, jobs: JobsDep) -> Response:
    """Stop an improvement, or the watch of its promotion; steps that were trained and a promotion stay."""
    caller = caller.require(Scope.READ)
    await jobs.find(caller, body.project_id, body.id, KIND, "improvement")
    return answer({"improvement": _describe(await jobs.cancel(body.project_id, body.id))})


def _describe(job: JobRow) -> Json:
    progress = {"steps": [], "outcome": None, "reason": None, **job.progress}
    request = {name: value for name, value in job.body.items() if name not in ("project_id", "model_id", "name")}
    state = job.state
    if state in OPEN and progress["steps"]:
        state = "watching" if progress["steps"][-1]["name"] == "watch" else "running"
    return {
        "id": job.id,
        "project_id": job.project_id,
        "name": job.body.get("name"),
        "model": job.body["model"],
        "model_id": job.body["model_id"],
        "state": cast(State, state),
        "outcome": progress["outcome"],
        "reason": progress["reason"],
        "error": job.error,
        "created_at": times.to_iso(job.created_at),
        "ended_at": times.optional_iso(job.ended_at),
        "spent_seconds": round(spent_seconds(progress["steps"]), 3),
        "budget_seconds": job.body["budget_seconds"],
        "request": request,
        "steps": progress["steps"],
    }
