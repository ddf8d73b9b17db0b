"""The events of jobs: written once each, in order, and told to those who wait for them."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

from heddle.store.control.jobs import EventRow, JobRow, TrainJobs
from heddle.training.base import Started, Stepped

_LOOK_SECONDS = 1.0
STARTED, STEP, ENDED, FAILED = "training_started", "gradient_step", "training_ended", "training_failed"


def now() -> int:
    """Microseconds."""
    return time.time_ns() // 1000


def stable_id(job_id: str, what: str) -> str:
    """The same for the same job and place, whoever writes it and however often."""
    return str(uuid.uuid5(uuid.UUID(job_id), what))


class EventLog:
    """Appends events; an event whose place is taken was written by an earlier attempt, and is left alone."""

    def __init__(self, jobs: TrainJobs) -> None:
        self._jobs = jobs
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    async def started(self, job_id: str, message: Started) -> bool:
        """Place 0; False when it is taken."""
        return await self._add(job_id, 0, STARTED, {**message.data, "num_sequences": message.num_sequences}, None)

    async def stepped(self, job_id: str, message: Stepped) -> bool:
        """One gradient step, with the job's progress; False when its place is taken."""
        place = message.index + 1
        return await self._add(job_id, place, STEP, message.data, place)

    async def ended(self, job: JobRow, data: dict[str, Any]) -> bool:
        """End a job in its state, with its last event; False when it had ended."""
        kind = ENDED if job.state == "succeeded" else FAILED
        changes = {"error": job.error, "metrics": job.metrics}
        last = stable_id(job.id, "end")
        is_new = await self._jobs.finish(job.id, job.state, last, kind, data, job.ended_at or now(), **changes)
        self._tell(job.id)
        return is_new

    async def insist(self, job_id: str) -> None:
        """Raise LeaseLost when the job is not this server's any more."""
        await self._jobs.insist(job_id)

    async def wait(self, job_id: str, after: int, seconds: float) -> list[EventRow]:
        """Events behind a place; waits until there is one, at most `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while True:
            with self._arrival(job_id) as arrival:
                events = await self._jobs.events(job_id, after)
                if events or clock() >= until:
                    return events
                # Another server may write it.
                await asyncio.wait([arrival], timeout=min(_LOOK_SECONDS, until - clock()))

    async def _add(self, job_id: str, place: int, kind: str, data: dict[str, Any], progress: int | None) -> bool:
        event = EventRow(job_id, place, stable_id(job_id, str(place)), kind, data, now())
        is_new = await self._jobs.add_event(event, progress)
        if is_new:
            self._tell(job_id)
        return is_new

    def _tell(self, job_id: str) -> None:
        for arrival in self._waiting.get(job_id, ()):
            if not arrival.done():
                arrival.set_result(None)

    @contextlib.contextmanager
    def _arrival(self, job_id: str) -> "Iterator[asyncio.Future[None]]":
        """Done once an event was written; enter before the look at the table, so that nothing falls in between."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(job_id, set())
        waiting.add(arrival)
        try:
            yield arrival
        finally:
            waiting.discard(arrival)
            if not waiting and self._waiting.get(job_id) is waiting:
                del self._waiting[job_id]
