"""Training as its pages show it: the models of a project, a model's run and what changes in it, the trajectories."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
from fastapi import Header, Query, Response

from heddle.auth import Caller
from heddle.errors import HeddleError, NotFound
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import EventStreamsDep, Reader, StateDep, StoreDep, answer, group
from heddle.http.state import ServerState
from heddle.store.base import Store
from heddle.store.control.training import TINKER, RunJob
from heddle.store.control.training_models import CheckpointRow, LogRow, ModelRow
from heddle.training.service import Training, TrainingDep
from heddle.wire import times
from heddle.wire.conversation.call import of_call
from heddle.wire.jsontypes import Json

router = group("Pages")

_SPARK = 60
_LOOK_SECONDS = 0.5
_SILENT_LOOKS = 30
"""After this many looks without a change a comment is sent, so that nobody takes the connection for dead."""


@router.get("/_ui/api/training", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def training(project: str, caller: Reader, store: StoreDep, training: TrainingDep) -> Response:
    """The trainable models of a project with how their jobs went, the one at work last first."""
    caller.open(project)
    models = [row for row in await store.train_models.all() if row.project_id == project]
    by_model: dict[str, list[RunJob]] = {row.id: [] for row in models}
    for job in await store.train_jobs.runs(list(by_model)):
        by_model[job.model_id].append(job)
    shown = [_summary(row, by_model[row.id]) for row in models]
    shown.sort(key=lambda model: model["last_at"] or model["created_at"], reverse=True)
    return answer({"models": shown, "problem": await _problem(training)})


async def _problem(training: Training) -> str | None:
    try:
        training.require()
        return None if await training.policies.base_models() else "This server has no model to train"
    except HeddleError as error:
        return error.reason


def _summary(row: ModelRow, jobs: list[RunJob]) -> Json:
    done = [job for job in jobs if job.state == "succeeded"]
    current = next((job for job in reversed(jobs) if job.is_open), None)
    newest = jobs[-1] if jobs else None
    return {
        "id": row.id,
        "name": row.name,
        "base_model": row.base_model,
        "created_at": times.to_iso(row.created_at),
        "jobs": len(jobs),
        "failed": sum(job.state == "failed" for job in jobs),
        "state": newest.state if newest is not None else None,
        "step": max((job.progress if job.kind == TINKER else job.step or 0 for job in (*done, *jobs[-1:])), default=0),
        "rewards": [job.metrics.get("reward") for job in done[-_SPARK:]],
        "started_at": times.optional_iso(jobs[0].created_at if jobs else None),
        "last_at": times.optional_iso((newest.ended_at or newest.created_at) if newest is not None else None),
        "open": None if current is None else run_job(current),
    }


def _pick(row: object, *names: str) -> Json:
    return {name: getattr(row, name) for name in names}


def run_job(job: RunJob) -> Json:
    """A job as the pages read it; instants in seconds since 1970."""
    instants = _pick(job, "created_at", "started_at", "prepared_at", "trained_at", "ended_at")
    return {
        **_pick(job, "number", "id", "kind", "state", "step", "parent_step"),
        "gradient_steps": job.progress,
        **_pick(job, "planned", "cancel_asked", "error", "metrics", "created_by"),
        **{name: None if at is None else at / times.SECOND for name, at in instants.items()},
    }


@router.get("/_ui/api/training/runs/{run}", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def read_run(run: str, caller: Reader, store: StoreDep, training: TrainingDep) -> Response:
    """The whole run of a model, named by its id or by that of one of its jobs (which is then the chosen one)."""
    model, job_id = await _find(run, caller, store)
    jobs = await store.train_jobs.runs([model.id])
    return answer(
        {
            "id": model.id,
            "name": model.name,
            "base_model": model.base_model,
            "project": model.project_id,
            "lora": model.lora,
            "created_at": times.to_iso(model.created_at),
            "created_by": model.created_by,
            "latest_step": await training.models.latest(model),
            "job": job_id,
            "jobs": [run_job(job) for job in jobs],
            **await _steps(store, model.id),
        }
    )


async def _find(run: str, caller: Reader, store: Store) -> tuple[ModelRow, str | None]:
    model = await store.train_models.find(run.lower())
    job = None if model is not None else await store.train_jobs.find(run.lower())
    if job is not None:
        model = await store.train_models.find(job.model_id)
    if model is None or not caller.reaches(model.project_id):
        raise NotFound("Training job not found, or its model was deleted")
    return model, None if job is None else job.id


async def _steps(store: Store, model_id: str) -> Json:
    checkpoints, logs = await asyncio.gather(
        store.train_models.checkpoints(model_id), store.train_models.logs(model_id)
    )
    made = ("id", "step", "parent_step", "job_id", "digest", "bytes", "metrics")
    logged = ("id", "split", "step", "metrics", "groups", "trajectories")
    return {
        "checkpoints": [_with_time(row, *made) for row in checkpoints],
        "logs": [_with_time(row, *logged) for row in logs],
    }


def _with_time(row: CheckpointRow | LogRow, *names: str) -> Json:
    return {**_pick(row, *names), "created_at": row.created_at / times.SECOND}


@router.get("/_ui/api/training/runs/{run}/live", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def follow_run(
    run: str,
    caller: Reader,
    store: StoreDep,
    event_streams: EventStreamsDep,
    state: StateDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Server-sent events: jobs that changed, from the first number on that was open when the page last heard.

    They end when the model is deleted.
    """
    model, _ = await _find(run, caller, store)
    place = int(last_event_id) if last_event_id and re.fullmatch("[0-9]{1,15}", last_event_id) else after
    return event_streams.answer(caller, _changes(store, state, model.id, place))


async def _changes(store: Store, state: ServerState, model_id: str, place: int) -> AsyncIterator[bytes]:
    silent = 0
    known: dict[str, Json] = {}
    yield b": following\n\n"
    while not state.stopping and await store.train_models.find(model_id) is not None:
        jobs = [run_job(job) for job in await store.train_jobs.runs([model_id], place)]
        changed = [job for job in jobs if known.get(job["id"]) != job]
        known = {job["id"]: job for job in jobs}
        silent = 0 if changed else silent + 1
        if changed:
            ended = any(job["state"] == "succeeded" or job["kind"] == TINKER for job in changed)
            message = {"jobs": changed, **(await _steps(store, model_id) if ended else {})}
            place = _floor(jobs, place)
            yield b"id: %d\ndata: %b\n\n" % (place, orjson.dumps(message))
        elif silent % _SILENT_LOOKS == 0:
            yield b": waiting\n\n"
        await asyncio.sleep(_LOOK_SECONDS)


def _floor(jobs: list[Json], place: int) -> int:
    """The number from which on jobs may still change."""
    still = [job["number"] for job in jobs if job["ended_at"] is None]
    return int(min(still)) if still else max((job["number"] + 1 for job in jobs), default=place)


@router.get("/_ui/api/training/events", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def read_events(
    job: str, caller: Reader, store: StoreDep, after: Annotated[int, Query(ge=-1, le=2**53)] = -1
) -> Response:
    """The events of one job behind a place, with their times, and its settings."""
    await _find(job, caller, store)
    found = await store.train_jobs.find(job.lower())
    if found is None:
        raise NotFound("Training job not found")
    events = await store.train_jobs.events(found.id, after)
    shown = [{**_pick(row, "seq", "type", "data"), "at": row.created_at / times.SECOND} for row in events]
    return answer(
        {
            "id": found.id,
            "config": {name: value for name, value in found.config.items() if name != "grants"},
            "events": shown,
        }
    )


@router.get("/_ui/api/trajectories", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def bodies(model: str, caller: Reader, store: StoreDep) -> Response:
    """What a model was trained on and what was logged for it, the newest first."""
    row = await _model(model, caller, store)
    jobs = await store.train_jobs.runs([row.id])
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


@router.get("/_ui/api/trajectories/groups", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def groups(model: str, body: str, caller: Reader, store: StoreDep, training: TrainingDep) -> Response:
    """The groups of one body with rewards and advantages."""
    row = await _model(model, caller, store)
    key, settings, _ = await _body(row, body, store)
    return answer({"groups": await training.rollouts.groups(key, settings)})


@router.get("/_ui/api/trajectories/one", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def one(
    model: str, body: str, index: int, place: int, caller: Reader, store: StoreDep, training: TrainingDep
) -> Response:
    """The trajectory `index` of the group at `place`, its conversations, and the token sequences that are trained."""
    row = await _model(model, caller, store)
    key, settings, longest = await _body(row, body, store)
    base = await _folder(row, training)
    found = await training.rollouts.trajectory(key, settings, (place, index), base, longest)
    told = found["trajectory"]
    said = [
        of_call({"messages": history.get("messages_and_choices"), "tools": history.get("tools")}, None)
        for history in (told, *(told.get("additional_histories") or ()))
    ]
    return answer({**found, "conversations": [asdict(one) for one in said]})


async def _model(model_id: str, caller: Caller, store: Store) -> ModelRow:
    row = await store.train_models.find(model_id.lower())
    if row is None or not caller.reaches(row.project_id):
        raise NotFound("Model not found")
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
    raise NotFound("Trajectories not found")


async def _folder(row: ModelRow, training: Training) -> Path | None:
    try:
        return Path((await training.models.base(row.base_model)).folder)
    except HeddleError:
        return None
