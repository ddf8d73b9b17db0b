"""`/v1/preview/models`: trainable models come, are found, rolled back and go."""

from typing import Any

from fastapi import Request, Response

from heddle.auth import Scope
from heddle.http import BearerReader, BearerWriter, answer, group, inlined_body, validated_body
from heddle.store.control.training import ModelRow
from heddle.training.bodies.paging import USUAL, After, Limit, Order, cut, page
from heddle.training.bodies.requests import CreateModel, Rollback
from heddle.training.dependencies import TrainingDep
from heddle.training.service import Training
from heddle.wire import times

router = group("Training")


async def shown(training: Training, row: ModelRow) -> dict[str, Any]:
    """A model as clients see it."""
    return {
        "id": row.id,
        "entity": row.entity,
        "project": row.project,
        "name": row.name,
        "base_model": row.base_model,
        "run_id": row.run_id,
        "latest_step": await training.models.latest(row),
        "created_at": times.to_iso(row.created_at),
    }


@router.post("/v1/preview/models", response_model=None, openapi_extra=inlined_body(CreateModel))
async def create_model(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Make a trainable model; its name can be asked at once, and answers as the base model does."""
    wanted = await validated_body(CreateModel, request)
    training.require()
    return answer(await shown(training, await training.models.create(wanted, caller)))


@router.get("/v1/preview/models", response_model=None)
async def list_models(
    caller: BearerReader,
    training: TrainingDep,
    entity: str | None = None,
    project: str | None = None,
    name: str | None = None,
    after: After = None,
    limit: Limit = USUAL,
    order: Order = "asc",
) -> Response:
    """The trainable models that the caller's key reaches."""
    wanted = {"entity": entity, "project": project, "name": name}
    rows = [
        row
        for row in await training.models.reached(caller)
        if all(value is None or getattr(row, field) == value for field, value in wanted.items())
    ]
    chosen, has_more = cut(rows, lambda row: row.id, after, limit, order)
    return answer(page([await shown(training, row) for row in chosen], has_more))


@router.get("/v1/preview/models/{model_id}", response_model=None)
async def read_model(model_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One trainable model."""
    return answer(await shown(training, await training.models.find(model_id, caller)))


@router.delete("/v1/preview/models/{model_id}", response_model=None)
async def delete_model(model_id: str, caller: BearerWriter, training: TrainingDep) -> Response:
    """Cancel a model's jobs and delete it with its checkpoints and logs; the space is free again."""
    row = await training.models.find(model_id, caller)
    deleted = await training.models.delete(row, caller.user)
    return answer({"model_id": row.id, "deleted_checkpoints": deleted, "deleted_run": row.run_id is not None})


@router.post("/v1/preview/models/{model_id}/rollback", response_model=None, openapi_extra=inlined_body(Rollback))
async def roll_back(model_id: str, request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Let the model's bare name mean a step that there is; nothing is deleted (ours)."""
    caller.require(Scope.READ)
    wanted = await validated_body(Rollback, request)
    row = await training.models.find(model_id, caller)
    await training.models.roll_back(row, wanted.step)
    return answer(await shown(training, row))
