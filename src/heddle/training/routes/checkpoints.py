"""`/v1/preview/models/{model_id}/checkpoints`: the steps of a model."""

from typing import Any

from fastapi import Request, Response

from heddle.http import BearerReader, BearerWriter, answer, group, inlined_body, validated_body
from heddle.store.control.training import CheckpointRow
from heddle.training.bodies.paging import USUAL, After, Limit, Order, cut, page
from heddle.training.bodies.requests import DeleteCheckpoints
from heddle.training.dependencies import TrainingDep
from heddle.wire import times

router = group("Training")


def _shown(row: CheckpointRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "step": row.step,
        "metrics": row.metrics,
        "parent_step": row.parent_step,
        "job_id": row.job_id,
        "digest": row.digest,
        "bytes": row.bytes,
        "created_at": times.to_iso(row.created_at),
    }


@router.get("/v1/preview/models/{model_id}/checkpoints", response_model=None)
async def list_checkpoints(
    model_id: str,
    caller: BearerReader,
    training: TrainingDep,
    after: After = None,
    limit: Limit = USUAL,
    order: Order = "asc",
) -> Response:
    """The checkpoints of a model by step, a page at a time."""
    models = training.models
    rows = await models.checkpoints(await models.find(model_id, caller))
    chosen, has_more = cut(rows, lambda row: row.id, after, limit, order)
    return answer(page([_shown(row) for row in chosen], has_more))


@router.delete(
    "/v1/preview/models/{model_id}/checkpoints", response_model=None, openapi_extra=inlined_body(DeleteCheckpoints)
)
async def delete_checkpoints(model_id: str, request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Delete steps and give their space back; steps that are still needed are refused (409), and nothing is deleted."""
    wanted = await validated_body(DeleteCheckpoints, request)
    models = training.models
    row = await models.find(model_id, caller)
    deleted, missing = await models.delete_checkpoints(row, wanted.steps, caller.user)
    return answer({"deleted_count": deleted, "not_found_steps": missing})
