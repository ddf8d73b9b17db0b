"""The events of jobs, written once each and in order, and training in /metrics."""

import asyncio
import uuid
from collections.abc import Mapping
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry

from heddle import aio
from heddle.jobs.metrics import JobMetrics
from heddle.metrics import LOWEST_CORRELATION, make_counter, make_gauge
from heddle.store.control.training import ENDED, FAILED, STARTED, STEP, EventRow, JobRow, TrainJobs
from heddle.training.messages import Started, Stepped
from heddle.wire import times
from heddle.wire.jsontypes import Json

_LOOK_SECONDS = 1.0


def stable_id(job_id: str, what: str) -> str:
    """The same for the same job and place, whoever writes it and however often."""
    return str(uuid.uuid5(uuid.UUID(job_id), what))


class EventLog:
    """Appends events; an event whose place is taken was written by an earlier attempt, and is left alone."""

    def __init__(self, jobs: TrainJobs) -> None:
        self._jobs = jobs
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        """For each job that somebody waits for: set with its next event."""

    async def started(self, job_id: str, message: Started) -> bool:
        """Place 0; False when it is taken."""
        return await self._add(job_id, 0, STARTED, {**message.data, "num_sequences": message.num_sequences}, None)

    async def stepped(self, job_id: str, message: Stepped) -> bool:
        """One gradient step, with the job's progress; False when its place is taken."""
        place = message.index + 1
        return await self._add(job_id, place, STEP, message.data, place)

    async def ended(self, job: JobRow, data: Json) -> bool:
        """End a job in its state, with its last event; False when it had ended."""
        kind = ENDED if job.state == "succeeded" else FAILED
        changes = {"error": job.error, "metrics": job.metrics}
        last = stable_id(job.id, "end")
        is_new = await self._jobs.finish(job.id, job.state, last, kind, data, job.ended_at or times.now(), **changes)
        self._tell(job.id)
        return is_new

    async def wait(self, job_id: str, after: int, seconds: float) -> list[EventRow]:
        """Events behind a place; waits until there is one, at most `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while True:
            news = self._news.setdefault(job_id, asyncio.Event())
            events = await self._jobs.events(job_id, after)
            if events or clock() >= until:
                return events
            # Another server may write it.
            await aio.wait_at_most(min(_LOOK_SECONDS, until - clock()), news.wait())

    async def _add(self, job_id: str, place: int, kind: str, data: Json, progress: int | None) -> bool:
        event = EventRow(job_id, place, stable_id(job_id, str(place)), kind, data, times.now())
        is_new = await self._jobs.add_event(event, progress)
        if is_new:
            self._tell(job_id)
        return is_new

    def _tell(self, job_id: str) -> None:
        if (news := self._news.pop(job_id, None)) is not None:
            news.set()


_LAST_STEP = {
    "offpolicy/ratio_mean": "ratio_mean",
    "offpolicy/ratio_max": "ratio_max",
    "offpolicy/clip_fraction": "clip_fraction",
    "offpolicy/lag_mean": "lag_mean",
    "loss/probs_corr": "probs_corr",
    "loss/grad_norm": "grad_norm",
}
"""Figures of a gradient step, and the gauges that show them."""
KIND_PREFIX = "train_"
"""Before the kind of a training job, among the kinds of all jobs."""


class TrainingMetrics:
    """Counts what training does, and shows the last gradient step."""

    def __init__(self, registry: CollectorRegistry, jobs: JobMetrics) -> None:
        self._jobs = jobs
        self._lost = make_counter(registry, "heddle_training_attempts_lost_total")
        self._steps = make_counter(registry, "heddle_training_steps_total")
        self._tokens = make_counter(registry, "heddle_training_tokens_total")
        self._last = {figure: make_gauge(registry, f"heddle_training_{name}") for figure, name in _LAST_STEP.items()}
        self._alarm = make_gauge(registry, "heddle_training_mismatch")

    def count_tokens(self, metrics: Mapping[str, float]) -> None:
        """Tokens are trained."""
        self._tokens.inc(metrics.get("num_trainable_tokens", 0.0))

    def stepped(self, metrics: Mapping[str, float]) -> None:
        """A gradient step was done."""
        self._steps.inc()
        for name, gauge in self._last.items():
            if name in metrics:
                gauge.set(metrics[name])
        if (correlation := metrics.get("loss/probs_corr")) is not None:
            self._alarm.set(correlation < LOWEST_CORRELATION)

    def lost(self) -> None:
        """An attempt ended without a result."""
        self._lost.inc()

    def ended(self, job: JobRow) -> None:
        """A job is done."""
        self._jobs.count_ended(f"{KIND_PREFIX}{job.kind}", job.state, job.started_at, job.ended_at)
