"""The replay routes."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from heddle.auth import Scope
from heddle.evals.replay.models import (
    ReplayCreateReq,
    ReplayCreateRes,
    ReplayDatasetReq,
    ReplayDatasetRes,
    ReplayQueryReq,
    ReplayQueryRes,
    ReplayReq,
    ReplayRes,
    ReplayResultsReq,
    ReplayResultsRes,
)
from heddle.evals.replay.service import Replays
from heddle.http import Reader, Service, Writer, answer, group

ReplaysDep = Annotated[Replays, Depends(Service("replays"))]
router: APIRouter = group("Replays")


@router.post("/replays/create", response_model=ReplayCreateRes)
async def create(body: ReplayCreateReq, caller: Writer, replays: ReplaysDep) -> Response:
    """Run stored chats again with another model, prompt or parameters; answers as soon as the job is stored."""
    return answer({"id": await replays.create(caller, body)})


@router.post("/replays/query", response_model=ReplayQueryRes)
async def query(body: ReplayQueryReq, caller: Reader, replays: ReplaysDep) -> Response:
    """The replays of a project, newest first."""
    return answer({"replays": await replays.query(caller, body)})


@router.post("/replays/read", response_model=ReplayRes)
async def read(body: ReplayReq, caller: Reader, replays: ReplaysDep) -> Response:
    """State and counts of a replay."""
    return answer({"replay": await replays.read(caller, body.project_id, body.id)})


@router.post("/replays/results", response_model=ReplayResultsRes)
async def results(body: ReplayResultsReq, caller: Reader, replays: ReplaysDep) -> Response:
    """Originals and replayed answers side by side: text, scores, cost, latency and tokens of both."""
    return answer(await replays.results(caller, body))


@router.post("/replays/cancel", response_model=ReplayRes)
async def cancel(body: ReplayReq, caller: Writer, replays: ReplaysDep) -> Response:
    """End a replay; what was answered stays."""
    caller.require(Scope.READ)
    return answer({"replay": await replays.cancel(caller, body.project_id, body.id)})


@router.post("/replays/dataset", response_model=ReplayDatasetRes)
async def dataset(body: ReplayDatasetReq, caller: Writer, replays: ReplaysDep) -> Response:
    """Publish the calls of a replay with both answers and their scores as a dataset."""
    caller.require(Scope.READ)
    return answer(await replays.dataset(caller, body))
