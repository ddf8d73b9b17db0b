"""The replay routes."""

from fastapi import APIRouter, Response

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
from heddle.http import Reader, Services, Writer, answer, group

router: APIRouter = group("Replays")


@router.post("/replays/create", response_model=ReplayCreateRes)
async def create(body: ReplayCreateReq, caller: Writer, house: Services) -> Response:
    """Run stored chats again with another model, prompt or parameters; answers as soon as the job is stored."""
    return answer({"id": await house.replays.create(caller, body)})


@router.post("/replays/query", response_model=ReplayQueryRes)
async def query(body: ReplayQueryReq, caller: Reader, house: Services) -> Response:
    """The replays of a project, newest first."""
    return answer({"replays": await house.replays.query(caller, body)})


@router.post("/replays/read", response_model=ReplayRes)
async def read(body: ReplayReq, caller: Reader, house: Services) -> Response:
    """State and counts of a replay."""
    return answer({"replay": await house.replays.read(caller, body.project_id, body.id)})


@router.post("/replays/results", response_model=ReplayResultsRes)
async def results(body: ReplayResultsReq, caller: Reader, house: Services) -> Response:
    """Originals and replayed answers side by side: text, scores, cost, latency and tokens of both."""
    return answer(await house.replays.results(caller, body))


@router.post("/replays/cancel", response_model=ReplayRes)
async def cancel(body: ReplayReq, caller: Writer, house: Services) -> Response:
    """End a replay; what was answered stays."""
    caller.require(Scope.READ)
    return answer({"replay": await house.replays.cancel(caller, body.project_id, body.id)})


@router.post("/replays/dataset", response_model=ReplayDatasetRes)
async def dataset(body: ReplayDatasetReq, caller: Writer, house: Services) -> Response:
    """Publish the calls of a replay with both answers and their scores as a dataset."""
    caller.require(Scope.READ)
    return answer(await house.replays.dataset(caller, body))
