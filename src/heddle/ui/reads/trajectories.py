"""The trajectories behind a step: which bodies there are, the groups of one, and one trajectory with its tokens."""

from pathlib import Path

from fastapi import Response

from heddle.auth import Caller
from heddle.errors import HeddleError, NotFound
from heddle.http import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.training import ModelRow
from heddle.training.dependencies import TrainingDep
from heddle.training.service import Training
from heddle.wire import times
from heddle.wire.jsontypes import Json

router = group("Pages")


@router.get("/_ui/api/trajectories", include_in_schema=False)
async def bodies(model: str, caller: Reader, store: StoreDep) -> Response:
    """What a model was trained on and what was logged for it, the newest first."""
    row = await _model(model, caller, store)
    jobs = await store.train_runs.jobs([row.id])
    logs = await store.train_models.logs(row.id)
    shown: list[Json] = [
        {
            "body": f"job:{job.id}",
            "split": "train",
            "step": job.step,
            "state": job.state,
            "reward": job.metrics.get("reward"),
            "at": job.created_at / times.SECOND,
        }
        for job in jobs
        if job.kind == "rl"
    ]
    shown += [
        {
            "body": f"log:{log.id}",
            "split": log.split,
            "step": log.step,
            "state": "logged",
            "reward": log.metrics.get(f"{log.split}/reward"),
            "at": log.created_at / times.SECOND,
        }
        for log in logs
    ]
    shown.sort(key=lambda one: one["at"], reverse=True)
    return answer({"id": row.id, "name": row.name, "project": row.project_id, "bodies": shown})


@router.get("/_ui/api/trajectories/groups", include_in_schema=False)
async def groups(model: str, body: str, caller: Reader, store: StoreDep, training: TrainingDep) -> Response:
    """The groups of one body with rewards and advantages."""
    row = await _model(model, caller, store)
    key, settings, _ = await _body(row, body, store)
    return answer({"groups": await training.rollouts.groups(key, settings)})


@router.get("/_ui/api/trajectories/one", include_in_schema=False)
async def one(
    model: str, body: str, index: int, place: int, caller: Reader, store: StoreDep, training: TrainingDep
) -> Response:
    """The trajectory `index` of the group at `place`, with the token sequences that are trained."""
    row = await _model(model, caller, store)
    key, settings, longest = await _body(row, body, store)
    base = await _folder(row, training)
    return answer(await training.rollouts.trajectory(key, settings, (place, index), base, longest))


async def _model(model_id: str, caller: Caller, store: Store) -> ModelRow:
    row = await store.train_models.find(model_id.lower())
    if row is None or not caller.reaches(row.project_id):
        raise NotFound("There is no such model")
    return row


async def _body(row: ModelRow, name: str, store: Store) -> tuple[str, Json | None, int]:
    """Where a body lies, the settings that it is trained with, and how long its sequences may be."""
    kind, _, body_id = name.partition(":")
    if kind == "job":
        job = await store.train_jobs.find(body_id)
        if job is not None and job.model_id == row.id:
            return job.payload, job.config["settings"], int(job.config.get("sequence") or 2**31)
    else:
        for log in await store.train_models.logs(row.id):
            if log.id == body_id:
                return log.payload, None, 2**31
    raise NotFound("There are no such trajectories")


async def _folder(row: ModelRow, training: Training) -> Path | None:
    try:
        return Path((await training.models.base(row.base_model)).folder)
    except HeddleError:
        return None
