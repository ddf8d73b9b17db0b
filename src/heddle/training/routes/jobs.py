"""`/v1/preview/training-jobs`: jobs on trajectories, and for every kind of job its state, events, data and end."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import Header, Request, Response

from heddle.auth import Caller, Scope
from heddle.event_streams import EventStreams
from heddle.http import BearerReader, BearerWriter, EventStreamsDep, StateDep, answer, group, inlined_body
from heddle.server_state import ServerState
from heddle.store.control.jobs import OPEN, EventRow, JobRow
from heddle.training.bodies.paging import USUAL, After, Limit, Order, cut, page
from heddle.training.bodies.requests import CreateJob
from heddle.training.dependencies import TrainingDep
from heddle.training.routes.stored import with_body
from heddle.training.service import Training
from heddle.wire import times

router = group("Training")
EVENT_STREAM = "text/event-stream"
_LOOK_SECONDS = 1.0
_SILENT_LOOKS = 15
"""After this many looks without an event a comment is sent, so that nobody takes the connection for dead."""
State = Literal["queued", "running", "publishing", "succeeded", "failed", "cancelled"]
_LAST = ("training_ended", "training_failed")


def shown(row: JobRow) -> dict[str, Any]:
    """A job as clients see it."""
    return {
        "id": row.id,
        "model_id": row.model_id,
        "kind": row.kind,
        "state": row.state,
        "cancel_asked": row.cancel_asked,
        "step": row.step,
        "parent_step": row.parent_step,
        "gradient_steps": row.progress,
        "error": row.error,
        "metrics": row.metrics,
        "config": row.config,
        "created_at": times.to_iso(row.created_at),
        "created_by": row.created_by,
        "started_at": times.optional_iso(row.started_at),
        "ended_at": times.optional_iso(row.ended_at),
    }


def _event(row: EventRow) -> dict[str, Any]:
    return {"id": row.id, "type": row.type, "data": row.data}


@router.post("/v1/preview/training-jobs", response_model=None, openapi_extra=inlined_body(CreateJob))
async def create_job(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Queue a job on trajectory groups, or on a source of them (ours); what it needs is durable before the answer."""
    taken = await training.intake.take("job", request.stream())
    training.require()
    return answer({"id": (await training.jobs.create(taken, caller)).id})


@router.get("/v1/preview/training-jobs", response_model=None)
async def list_jobs(
    caller: BearerReader,
    training: TrainingDep,
    model_id: str | None = None,
    state: State | None = None,
    after: After = None,
    limit: Limit = USUAL,
    order: Order = "asc",
) -> Response:
    """The jobs of a model, or of every model that the caller's key reaches, oldest first."""
    if model_id is None:
        rows = await training.jobs.reached(caller)
    else:
        rows = await training.jobs.of_model(await training.models.find(model_id, caller))
    rows = [row for row in rows if state is None or row.state == state]
    chosen, has_more = cut(rows, lambda row: row.id, after, limit, order)
    return answer(page([shown(row) for row in chosen], has_more))


@router.get("/v1/preview/training-jobs/{job_id}", response_model=None)
async def read_job(job_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """One job."""
    return answer(shown(await training.jobs.find(job_id, caller)))


@router.post("/v1/preview/training-jobs/{job_id}/cancel", response_model=None)
async def cancel_job(job_id: str, caller: BearerWriter, training: TrainingDep) -> Response:
    """Give a job up: one that waits ends at once, one that runs within seconds, with training_failed (cancelled)."""
    caller.require(Scope.READ)
    return answer(shown(await training.jobs.cancel(await training.jobs.find(job_id, caller))))


@router.get("/v1/preview/training-jobs/{job_id}/trajectories", response_model=None)
async def read_trajectories(job_id: str, caller: BearerReader, training: TrainingDep) -> Response:
    """What a job is trained on: its trajectory groups, or its rows."""
    job = await training.jobs.find(job_id, caller)
    return with_body({"id": job.id, "model_id": job.model_id}, training.jobs.body(job.payload))


@router.get("/v1/preview/training-jobs/{job_id}/events", response_model=None)
async def list_events(
    job_id: str,
    caller: BearerReader,
    event_streams: EventStreamsDep,
    training: TrainingDep,
    state: StateDep,
    after: After = None,
    limit: Limit = USUAL,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """The events of a job in order, a page at a time; as server-sent events when the client accepts those."""
    if EVENT_STREAM in accept.lower():
        return await _stream(event_streams, training, state, job_id, caller, last_event_id or after)
    jobs = training.jobs
    job = await jobs.find(job_id, caller)
    rows = await jobs.events(job, await jobs.place(job, after), limit + 1)
    return answer(page([_event(row) for row in rows[:limit]], len(rows) > limit))


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
    job = await training.jobs.find(job_id, caller)
    place = await training.jobs.place(job, after)
    return event_streams.answer(caller, _sent_events(training, state, job, place))


async def _sent_events(training: Training, state: ServerState, job: JobRow, place: int) -> AsyncIterator[bytes]:
    jobs, silent = training.jobs, 0
    while not state.stopping:
        rows = await jobs.wait_for_events(job, place, _LOOK_SECONDS)
        for row in rows:
            place = row.seq
            yield b"id: %b\nevent: %b\ndata: %b\n\n" % (row.id.encode(), row.type.encode(), orjson.dumps(_event(row)))
            if row.type in _LAST:
                return
        if not rows and job.state not in OPEN:
            return
        silent = 0 if rows else silent + 1
        if silent == _SILENT_LOOKS:
            silent = 0
            yield b": waiting\n\n"
