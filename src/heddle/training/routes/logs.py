"""`/v1/preview/models/{model_id}/log` and `/logs`: trajectories that clients log, and reading them again."""

from typing import Any

from fastapi import Request, Response

from heddle.http import BearerReader, BearerWriter, answer, group, inlined_body
from heddle.store.control.training import LogRow
from heddle.training.bodies.paging import USUAL, After, Limit, Order, cut, page
from heddle.training.bodies.trajectories import LogRequest
from heddle.training.dependencies import TrainingDep
from heddle.training.routes.stored import with_body
from heddle.wire import times

router = group("Training")


def _shown(row: LogRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "split": row.split,
        "step": row.step,
        "metrics": row.metrics,
        "num_groups": row.groups,
        "num_trajectories": row.trajectories,
        "created_at": times.to_iso(row.created_at),
        "created_by": row.created_by,
    }


@router.post("/v1/preview/models/{model_id}/log", response_model=None, openapi_extra=inlined_body(LogRequest))
async def log(model_id: str, request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Keep trajectories of a split; their figures join the metrics of the newest checkpoint."""
    taken = await training.intake.take("log", request.stream())
    await training.logs.add(await training.models.find(model_id, caller), taken, caller)
    return answer(None)


@router.get("/v1/preview/models/{model_id}/logs", response_model=None)
async def list_logs(
    model_id: str,
    caller: BearerReader,
    training: TrainingDep,
    after: After = None,
    limit: Limit = USUAL,
    order: Order = "asc",
) -> Response:
    """What was logged for a model, without the trajectories (ours)."""
    rows = await training.logs.of_model(await training.models.find(model_id, caller))
    chosen, has_more = cut(rows, lambda row: row.id, after, limit, order)
    return answer(page([_shown(row) for row in chosen], has_more))


@router.get("/v1/preview/models/{model_id}/logs/{log_id}", response_model=None)
async def read_log(model_id: str, log_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One log with its trajectories (ours)."""
    row = await training.logs.find(await training.models.find(model_id, caller), log_id)
    return with_body(_shown(row), training.jobs.body(row.payload))
