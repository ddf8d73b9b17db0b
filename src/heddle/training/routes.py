"""Routes of training: models, checkpoints, logs, jobs."""

import asyncio
import importlib.metadata
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import orjson
from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from heddle.auth import Caller, Scope
from heddle.errors import HeddleError
from heddle.extras import install_command
from heddle.http.description import body_schema
from heddle.http.routing import (
    BearerDeleter,
    BearerReader,
    BearerWriter,
    EventStreamsDep,
    StateDep,
    StoreDep,
    answer,
    group,
    validate_body,
)
from heddle.http.state import EventStreams, ServerState
from heddle.store.control.training import OPEN, EventRow, JobRow
from heddle.store.control.training_models import CheckpointRow, LogRow, ModelRow
from heddle.training import files
from heddle.training.schemas.requests import (
    CreateDpoJob,
    CreateJob,
    CreateModel,
    CreateSftJob,
    DeleteCheckpoints,
    Rollback,
)
from heddle.training.schemas.trajectories import LogRequest
from heddle.training.service import Training, TrainingDep, unknown_cursor
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json

router = group("Training")
ROUTERS = (router,)
Listed = TypeVar("Listed", ModelRow, CheckpointRow, LogRow, JobRow)
After = Annotated[str | None, Query(max_length=200, description="The id of the last item of the page before")]
Limit = Annotated[int, Query(ge=1, le=100)]


@dataclass(slots=True)
class Page:
    """What of a list a client asks for, as clients of the OpenAI kind do (contract training.md, 1)."""

    after: After = None
    limit: Limit = 20
    order: Annotated[Literal["asc", "desc"], Query()] = "asc"

    def cut(self, rows: Sequence[Listed]) -> tuple[list[Listed], bool]:
        """The rows (given in ascending order) of this page, and whether more follow; raises InvalidRequest."""
        ordered = list(rows) if self.order == "asc" else list(reversed(rows))
        start = 0
        if self.after:
            places = [place for place, row in enumerate(ordered) if row.id == self.after]
            if not places:
                raise unknown_cursor(self.after)
            start = places[0] + 1
        return ordered[start : start + self.limit], len(ordered) > start + self.limit


PageDep = Annotated[Page, Depends()]


def page_json(items: Sequence[Json], has_more: bool) -> Json:
    """The page object; an empty page has empty ids."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}


def _answer_with_body(head: Json, path: Path) -> StreamingResponse:
    """One JSON object: the head's keys (at least one), then those of the stored object."""
    return StreamingResponse(_parts(head, path), media_type="application/json")


async def _parts(head: Json, path: Path) -> AsyncIterator[bytes]:
    yield jsontext.dumps_bytes(head)[:-1] + b","
    with path.open("rb") as stream:
        parts: Iterator[bytes] = files.read_chunks(stream)
        first = await asyncio.to_thread(next, parts, b"")
        yield first[1:]  # without the brace that the head has opened
        while part := await asyncio.to_thread(next, parts, b""):
            yield part


def _pick(row: object, *names: str) -> Json:
    return {name: getattr(row, name) for name in names}


async def model_json(training: Training, row: ModelRow) -> Json:
    """A model as clients see it."""
    return {
        **_pick(row, "id", "entity", "project", "name", "base_model", "run_id"),
        "latest_step": await training.models.latest(row),
        "created_at": times.to_iso(row.created_at),
    }


@router.post("/v1/preview/models", response_model=None, openapi_extra=body_schema(CreateModel))
async def create_model(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Make a trainable model; its name can be asked at once, and answers as the base model does."""
    wanted = await validate_body(CreateModel, request)
    training.require()
    return answer(await model_json(training, await training.models.create(wanted, caller)))


@router.get("/v1/preview/models", response_model=None)
async def list_models(
    caller: BearerReader,
    training: TrainingDep,
    page: PageDep,
    entity: str | None = None,
    project: str | None = None,
    name: str | None = None,
) -> Response:
    """The trainable models that the caller's key reaches."""
    wanted = {"entity": entity, "project": project, "name": name}
    rows = [
        row
        for row in await training.models.list_reached(caller)
        if all(value is None or getattr(row, field) == value for field, value in wanted.items())
    ]
    chosen, has_more = page.cut(rows)
    return answer(page_json([await model_json(training, row) for row in chosen], has_more))


@router.get("/v1/preview/models/{model_id}", response_model=None)
async def read_model(model_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One trainable model."""
    return answer(await model_json(training, await training.models.find(model_id, caller)))


@router.delete("/v1/preview/models/{model_id}", response_model=None)
async def delete_model(model_id: str, caller: BearerDeleter, training: TrainingDep) -> Response:
    """Cancel a model's jobs and delete it with its checkpoints and logs; the space is free again."""
    row = await training.models.find(model_id, caller)
    deleted = await training.models.delete(row, caller.user)
    return answer({"model_id": row.id, "deleted_checkpoints": deleted, "deleted_run": row.run_id is not None})


@router.post("/v1/preview/models/{model_id}/rollback", response_model=None, openapi_extra=body_schema(Rollback))
async def roll_back(model_id: str, request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Let the model's bare name mean a step that there is; nothing is deleted (ours)."""
    caller = caller.require(Scope.READ)
    wanted = await validate_body(Rollback, request)
    row = await training.models.find(model_id, caller)
    await training.models.roll_back(row, wanted.step)
    return answer(await model_json(training, row))


async def _checkpoint_json(row: CheckpointRow, model: ModelRow, training: Training) -> Json:
    fields = _pick(row, "id", "step", "metrics", "parent_step", "job_id", "digest", "bytes")
    recipe = await training.models.recipe(model, row)
    return fields | {"recipe": recipe, "created_at": times.to_iso(row.created_at)}


@router.get("/v1/preview/models/{model_id}/checkpoints", response_model=None)
async def list_checkpoints(
    model_id: str, caller: BearerReader, store: StoreDep, training: TrainingDep, page: PageDep
) -> Response:
    """The checkpoints of a model by step, a page at a time."""
    model = await training.models.find(model_id, caller)
    chosen, has_more = page.cut(await store.train_models.checkpoints(model.id))
    shown = [await _checkpoint_json(row, model, training) for row in chosen]
    return answer(page_json(shown, has_more))


@router.delete(
    "/v1/preview/models/{model_id}/checkpoints", response_model=None, openapi_extra=body_schema(DeleteCheckpoints)
)
async def delete_checkpoints(model_id: str, request: Request, caller: BearerDeleter, training: TrainingDep) -> Response:
    """Delete steps and give their space back; steps that are still needed are refused (409), and nothing is deleted."""
    wanted = await validate_body(DeleteCheckpoints, request)
    models = training.models
    row = await models.find(model_id, caller)
    deleted, missing = await models.delete_checkpoints(row, wanted.steps, caller.user)
    return answer({"deleted_count": deleted, "not_found_steps": missing})


def _log_json(row: LogRow) -> Json:
    return {
        **_pick(row, "id", "split", "step", "metrics", "created_by"),
        "num_groups": row.groups,
        "num_trajectories": row.trajectories,
        "created_at": times.to_iso(row.created_at),
    }


@router.post("/v1/preview/models/{model_id}/log", response_model=None, openapi_extra=body_schema(LogRequest))
async def log(model_id: str, request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Keep trajectories of a split; their figures join the metrics of the newest checkpoint."""
    taken = await training.take("log", request.stream(), caller, model_id)
    await training.models.add_log(await training.models.find(model_id, caller), taken, caller)
    return answer(None)


@router.get("/v1/preview/models/{model_id}/logs", response_model=None)
async def list_logs(
    model_id: str, caller: BearerReader, store: StoreDep, training: TrainingDep, page: PageDep
) -> Response:
    """What was logged for a model, without the trajectories (ours)."""
    rows = await store.train_models.logs((await training.models.find(model_id, caller)).id)
    chosen, has_more = page.cut(rows)
    return answer(page_json([_log_json(row) for row in chosen], has_more))


@router.get("/v1/preview/models/{model_id}/logs/{log_id}", response_model=None)
async def read_log(model_id: str, log_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One log with its trajectories (ours)."""
    row = await training.models.find_log(await training.models.find(model_id, caller), log_id)
    return _answer_with_body(_log_json(row), await asyncio.to_thread(training.body_path, row.payload))


_LOOK_SECONDS = 1.0
_SILENT_LOOKS = 15
"""After this many looks without an event a comment is sent, so that nobody takes the connection for dead."""
State = Literal["queued", "running", "publishing", "succeeded", "failed", "cancelled"]
_LAST = ("training_ended", "training_failed")


def job_json(row: JobRow) -> Json:
    """A job as clients see it."""
    return {
        **_pick(row, "id", "model_id", "kind", "state", "cancel_asked", "step", "parent_step", "error"),
        **_pick(row, "metrics", "config", "created_by"),
        "gradient_steps": row.progress,
        "created_at": times.to_iso(row.created_at),
        "started_at": times.optional_iso(row.started_at),
        "ended_at": times.optional_iso(row.ended_at),
    }


def _event_json(row: EventRow) -> Json:
    return {"id": row.id, "type": row.type, "data": row.data}


@router.post("/v1/preview/training-jobs", response_model=None, openapi_extra=body_schema(CreateJob))
async def create_job(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Queue a job on trajectory groups, or on a source of them (ours); what it needs is durable before the answer."""
    taken = await training.take("job", request.stream(), caller)
    training.require()
    return answer({"id": (await training.create_job(taken, caller)).id})


@router.get("/v1/preview/training-jobs", response_model=None)
async def list_jobs(
    caller: BearerReader,
    store: StoreDep,
    training: TrainingDep,
    page: PageDep,
    model_id: str | None = None,
    state: State | None = None,
) -> Response:
    """The jobs of a model, or of every model that the caller's key reaches, oldest first."""
    if model_id is None:
        models = await training.models.list_reached(caller)
        rows = [job for model in models for job in await store.train_jobs.of_model(model.id)]
        rows.sort(key=lambda job: job.number)
    else:
        rows = await store.train_jobs.of_model((await training.models.find(model_id, caller)).id)
    rows = [row for row in rows if state is None or row.state == state]
    chosen, has_more = page.cut(rows)
    return answer(page_json([job_json(row) for row in chosen], has_more))


@router.get("/v1/preview/training-jobs/{job_id}", response_model=None)
async def read_job(job_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One job."""
    return answer(job_json(await training.find_job(job_id, caller)))


@router.post("/v1/preview/training-jobs/{job_id}/cancel", response_model=None)
async def cancel_job(job_id: str, caller: BearerWriter, training: TrainingDep) -> Response:
    """Give a job up: one that waits ends at once, one that runs within seconds, with training_failed (cancelled)."""
    caller = caller.require(Scope.READ)
    return answer(job_json(await training.cancel_job(await training.find_job(job_id, caller))))


@router.get("/v1/preview/training-jobs/{job_id}/trajectories", response_model=None)
async def read_trajectories(job_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """What a job is trained on: its trajectory groups, or its rows."""
    job = await training.find_job(job_id, caller)
    return _answer_with_body(
        {"id": job.id, "model_id": job.model_id}, await asyncio.to_thread(training.body_path, job.payload)
    )


@router.get("/v1/preview/training-jobs/{job_id}/events", response_model=None)
async def list_events(
    job_id: str,
    caller: BearerReader,
    event_streams: EventStreamsDep,
    store: StoreDep,
    training: TrainingDep,
    state: StateDep,
    after: After = None,
    limit: Limit = 20,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """The events of a job in order, a page at a time; as server-sent events when the client accepts those."""
    if "text/event-stream" in accept.lower():
        return await _stream(event_streams, training, state, job_id, caller, last_event_id or after)
    job = await training.find_job(job_id, caller)
    rows = await store.train_jobs.events(job.id, await training.find_event_place(job, after), limit + 1)
    return answer(page_json([_event_json(row) for row in rows[:limit]], len(rows) > limit))


@router.get("/v1/preview/training-jobs/{job_id}/events/stream", response_model=None)
async def stream_events(
    job_id: str,
    caller: BearerReader,
    event_streams: EventStreamsDep,
    training: TrainingDep,
    state: StateDep,
    after: After = None,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """The events of a job as server-sent events, from the place after `Last-Event-ID` on, until the job has ended."""
    return await _stream(event_streams, training, state, job_id, caller, last_event_id or after)


async def _stream(
    event_streams: EventStreams, training: Training, state: ServerState, job_id: str, caller: Caller, after: str | None
) -> Response:
    job = await training.find_job(job_id, caller)
    place = await training.find_event_place(job, after)
    return event_streams.answer(caller, _sent_events(training, state, job, place))


async def _sent_events(training: Training, state: ServerState, job: JobRow, place: int) -> AsyncIterator[bytes]:
    is_open, silent = job.state in OPEN, 0
    while not state.stopping:
        rows = await training.supervisor.events.wait(job.id, place, _LOOK_SECONDS)
        for row in rows:
            place = row.seq
            yield b"id: %b\nevent: %b\ndata: %b\n\n" % (
                row.id.encode(),
                row.type.encode(),
                orjson.dumps(_event_json(row)),
            )
            if row.type in _LAST:
                return
        if not rows:
            if not is_open:
                return
            # A purge removes a job with its last event.
            found = await state.store.train_jobs.find(job.id)
            is_open = found is not None and found.state in OPEN
        silent = 0 if rows else silent + 1
        if silent == _SILENT_LOOKS:
            silent = 0
            yield b": waiting\n\n"


@router.post("/v1/preview/sft-training-jobs", response_model=None, openapi_extra=body_schema(CreateSftJob))
async def create_sft_job(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Queue a supervised job on chat rows: a file's digest, a dataset's ref, or an address that the settings allow."""
    wanted = await validate_body(CreateSftJob, request)
    training.require()
    return answer({"id": (await training.create_job_on_rows(wanted, caller)).id})


@router.post("/v1/preview/dpo-training-jobs", response_model=None, openapi_extra=body_schema(CreateDpoJob))
async def create_dpo_job(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Queue a job on preferences (ours): rows with a chosen and a rejected answer, read as those of fine-tuning."""
    wanted = await validate_body(CreateDpoJob, request)
    training.require()
    return answer({"id": (await training.create_job_on_rows(wanted, caller)).id})


@router.get("/v1/preview/base-models", response_model=None)
async def list_base_models(caller: BearerReader, training: TrainingDep) -> Response:  # noqa: ARG001
    """The base models that trainable models can be made from."""
    items = []
    for base in await training.policies.base_models():
        shape = await training.models.shape(base)
        items.append(
            {
                "id": base.id,
                "object": "base_model",
                "digest": base.digest,
                "parameters": shape.parameters,
                "vocab_size": base.vocab_size,
                "max_model_len": base.max_model_len,
                "lora_targets": shape.targets,
            }
        )
    return answer(page_json(items, False))


@router.get("/v1/health", response_model=None)
async def health() -> Response:
    """That the server answers."""
    return answer({"status": "ok"})


@router.get("/v1/system-check", response_model=None)
async def system_check(caller: BearerReader, training: TrainingDep) -> Response:  # noqa: ARG001
    """Whether training is possible here: each check with what to do where it fails."""
    settings, missing = training.settings, training.missing
    is_on = settings.training == "on"
    try:
        served, problem = [base.id for base in await training.policies.base_models()], None
    except HeddleError as error:
        served, problem = [], error.reason
    free = (await asyncio.to_thread(shutil.disk_usage, settings.data)).free
    checks = (
        ("setting", is_on, "training = on" if is_on else "training = off; start it with --training on"),
        (
            "extra",
            not missing,
            f"{', '.join(missing)} not installed: {install_command('training')}"
            if missing
            else f"torch {importlib.metadata.version('torch')}",
        ),
        ("base model", bool(served), problem or ", ".join(served) or "no model is served; start it with --model"),
        ("disk", free > settings.max_training_body, f"{free} bytes free"),
    )
    workers = {
        "workers": settings.training_workers,
        "ranks": settings.training_ranks,
        "device": settings.training_device,
        "cores": len(os.sched_getaffinity(0)),
    }
    named = [{"name": name, "ok": ok, "detail": detail} for name, ok, detail in checks]
    return answer({"ok": all(ok for _, ok, _ in checks), "checks": named, "training": workers})
