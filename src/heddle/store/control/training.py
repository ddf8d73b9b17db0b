"""The durable queue of training jobs, and the events that clients read.

States of a job: queued -> running -> publishing -> succeeded | failed | cancelled.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import sqlalchemy as sa

from heddle.errors import Busy, HeddleError, NotFound
from heddle.store.control.coordination import NO_LEASE, QUEUED, RUNNING, SUCCEEDED, JobQueue, database_time
from heddle.store.control.repository import Indexed, Integer, Key, Mapped, Unique, reads, writes
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json
from heddle.wire.keys import Authority, read_grants

PUBLISHING = "publishing"
AT_WORK = (RUNNING, PUBLISHING)
OPEN = (QUEUED, *AT_WORK)
TINKER = "tinker"
"""The kind of a job that is a run of Tinker's protocol: its steps come from requests, and nobody leases it."""
STARTED, STEP, ENDED, FAILED = "training_started", "gradient_step", "training_ended", "training_failed"
LAST_EVENT = 2**31
"""The place of the end of a run: behind the numbers of all its requests."""


class LeaseLost(HeddleError):
    """Another server works on the job now: this one must not go on with it."""

    status = 409

    def __init__(self, job_id: str) -> None:
        super().__init__(f"The job {job_id} was taken over by another server")


class Resources(TypedDict):
    """What a job trains with; `sequence` is the most tokens of a sequence."""

    threads: int
    dtype: str
    device: str
    sequence: int


class PromotionRule(TypedDict):
    """The evaluation (its version a digest) that a new policy has to pass, with the rights of `caller`."""

    evaluation: str
    minimum_gain: float
    temperature: float
    max_tokens: int | None
    caller: NotRequired[Json]
    reach: NotRequired[Json]
    """What the key reached, of jobs of earlier versions that have no `caller`."""


class RulerRule(TypedDict):
    """Who judges trajectories, and by what, with the rights of `caller`; `usage` has the tokens of what was judged."""

    judge_model: str
    rubric: str | None
    temperature: float | None
    max_tokens: int | None
    caller: Json
    usage: NotRequired[dict[str, dict[str, int]]]


class JobConfig(Resources):
    """What a job keeps of its request."""

    settings: Json
    """`as_json` of the settings of its kind."""
    promotion: NotRequired[PromotionRule | None]
    source: Json | None
    """Where its data came from, and what was left out."""
    kl_reference: NotRequired[str | None]
    """The folder of the checkpoint that `kl_ref_adapter_path` names, relative to the data folder."""
    candidate_from: NotRequired[int]
    """The step to start from; the step that it makes is a candidate, and the name stays where it is."""
    ruler: NotRequired[RulerRule]
    grants: NotRequired[list[list[Any]]]
    """What its key allowed when it was started, as `Caller.to_json` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One training job; `number` orders the queue and is given by the table."""

    number: Key[Integer] = 0
    id: Unique[str]
    model_id: Indexed[str]
    kind: str
    """`rl`, `sft`, `dpo` or `tinker`."""
    state: Indexed[str] = QUEUED
    config: JobConfig
    payload: Indexed[str]
    """The key of a blob (zstd) with the body."""
    step: int | None = None
    """The step that it makes, known since it first ran."""
    parent_step: int | None = None
    attempts: Integer = 0
    """Attempts that ended without progress since the last progress."""
    progress: int = 0
    """Gradient steps whose events are stored."""
    lease_owner: str | None = None
    lease_until: int | None = None
    cancel_asked: bool = False
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    created_at: int
    created_by: str
    started_at: int | None = None
    ended_at: int | None = None
    key_id: str | None = None
    """The key that it was started with."""
    former_project: str | None = None
    """The project (internal id) of its model, once that was deleted."""

    @property
    def authority(self) -> Authority | None:
        """What it was started with; None where that was no key."""
        return None if self.key_id is None else Authority(self.key_id, read_grants(self.config.get("grants", ())))


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a job; `seq` 0 is training_started, then the gradient steps, then the end.

    In a run of Tinker's protocol a gradient step has the number of its request.
    """

    job_id: Key[str]
    seq: Key[int]
    id: Unique[str]
    type: str
    data: dict[str, Any]
    created_at: int


@dataclass(slots=True)
class RunJob:
    """One job as a run shows it; instants in microseconds, None where a phase has not begun."""

    number: int
    id: str
    model_id: str
    kind: str
    state: str
    step: int | None
    parent_step: int | None
    progress: int
    cancel_asked: bool
    error: str | None
    metrics: dict[str, float]
    created_at: int
    created_by: str
    started_at: int | None
    ended_at: int | None
    prepared_at: int | None = None
    """When the first gradient step could begin."""
    trained_at: int | None = None
    """When the newest gradient step was done."""
    planned: int | None = None
    """How many gradient steps there will be."""

    @property
    def is_open(self) -> bool:
        """True while it waits or works."""
        return self.state in OPEN


_jobs, _events = Mapped(JobRow, "train_jobs"), Mapped(EventRow, "train_events", sqlite_with_rowid=False)
train_jobs, train_events = _jobs.table, _events.table
_runs = Mapped(RunJob, of=train_jobs)
JOB_TABLES = (train_jobs, train_events)
_MODELS = sa.table("train_models", sa.column("id"))  # its module imports this one
_j, _e = train_jobs.c, train_events.c


class TrainJobs(JobQueue[JobRow]):
    """The tables of jobs and their events, as one server works on them."""

    jobs = _jobs
    at_work = AT_WORK

    @writes
    def add(self, connection: sa.Connection, row: JobRow, most_queued: int) -> None:
        """Queue a job; raises NotFound for a model that was deleted, Busy when that many of its model wait already."""
        if connection.execute(sa.select(_MODELS.c.id).where(_MODELS.c.id == row.model_id)).first() is None:
            raise NotFound("The model was deleted")
        waiting = sa.select(sa.func.count()).where(_j.model_id == row.model_id, _j.state == QUEUED)
        if connection.execute(waiting).scalar_one() >= most_queued:
            raise Busy(f"{most_queued} jobs of this model are already waiting", retry_after=5)
        _jobs.insert(connection, row)

    async def find(self, job_id: str) -> JobRow | None:
        """The job with an id."""
        return await self._first(_jobs, _j.id == job_id)

    async def of_model(self, model_id: str) -> list[JobRow]:
        """The jobs of a model, oldest first."""
        return await self._all(_jobs, _jobs.select(_j.model_id == model_id).order_by(_j.number))

    async def open(self) -> list[JobRow]:
        """The jobs that are not done, oldest first."""
        return await self._all(_jobs, _jobs.select(_j.state.in_(OPEN)).order_by(_j.number))

    @reads
    def runs(self, connection: sa.Connection, model_ids: Collection[str], since: int = 0) -> list[RunJob]:
        """The jobs of models in the order of the queue, those from a number on, each with its phases."""
        found: dict[str, RunJob] = {}
        for part in batched(model_ids):
            inside = sa.and_(_runs.c.model_id.in_(part), _runs.c.number >= since)
            found |= {job.id: job for job in _runs.all(connection, _runs.select(inside))}
            _add_phases(connection, found, inside)
        return sorted(found.values(), key=lambda job: job.number)

    async def lease(self, now: int, seconds: float, held: Collection[str] = ()) -> JobRow | None:
        """Take the oldest job whose model has none at work: a queued one, or one whose lease has ended.

        What is `held` by this server itself is not taken. A job found in `publishing` keeps that state: only its
        publication is left to do.
        """
        return await self._executor.write(
            lambda connection: self._take(connection, self._next, now, seconds, held=list(held))
        )

    @cached_property
    def _next(self) -> sa.Select[Any]:
        other = train_jobs.alias()
        same = sa.and_(other.c.model_id == _j.model_id, other.c.id != _j.id)
        at_work = sa.exists().where(same, other.c.state.in_(AT_WORK))
        older = sa.exists().where(same, other.c.state == QUEUED, other.c.number < _j.number)
        return self._select_free(sa.or_(_j.state != QUEUED, ~older), ~at_work, order_by=[_j.number])

    async def claim(self, job_id: str, now: int, seconds: float) -> JobRow | None:
        """Take one job, which nobody has; None when it is done or a server works on it."""
        chosen = self._select_free(_j.id == job_id, wait=True)
        return await self._executor.write(lambda connection: self._take(connection, chosen, now, seconds))

    async def update(self, job_id: str, **changes: Any) -> None:
        """Set columns of a job of this server: state, step, parent_step, attempts, ...

        Raises LeaseLost when another server has it, and when it is done.
        """
        if not await self._set([job_id], changes):
            raise LeaseLost(job_id)

    async def require_lease(self, job_id: str) -> None:
        """Raise LeaseLost when a job is not this server's any more, or its lease has ended."""
        held = sa.select(_j.id).where(self._is_mine, _j.lease_until >= database_time())
        if await self._scalar(held, self._mine([job_id])) is None:
            raise LeaseLost(job_id)

    async def ask_to_cancel(self, job_id: str) -> None:
        """Ask whoever works on a job to give it up; nothing happens to one that is done."""
        await self._execute(train_jobs.update().where(_j.id == job_id, _j.state.in_(OPEN)).values(cancel_asked=True))

    async def add_event(self, event: EventRow, progress: int | None = None) -> bool:
        """Append an event of a job of this server, with the job's progress; False when its place is taken already.

        Raises LeaseLost.
        """
        changes = {} if progress is None else {"progress": progress, "attempts": 0}
        return await self._executor.write(lambda connection: self._add_event(connection, event, changes))

    def _add_event(self, connection: sa.Connection, event: EventRow, changes: dict[str, Any]) -> bool:
        if connection.execute(sa.select(_j.id).where(self._is_mine), self._mine([event.job_id])).first() is None:
            raise LeaseLost(event.job_id)
        if connection.execute(sa.select(_e.seq).where(_e.job_id == event.job_id, _e.seq == event.seq)).first():
            return False
        _events.insert(connection, event)
        if changes:
            connection.execute(train_jobs.update().where(_j.id == event.job_id).values(changes))
        return True

    @writes
    def finish(
        self,
        connection: sa.Connection,
        /,
        job_id: str,
        state: str,
        event_id: str,
        event_type: str,
        data: dict[str, Any],
        at: int,
        **changes: Any,
    ) -> bool:
        """End a job of this server and append its last event, together; False (and no change) when it had ended.

        Raises LeaseLost when another server works on it.
        """
        found = connection.execute(sa.select(_j.state).where(_j.id == job_id)).first()
        if found is None or found.state not in OPEN:
            return False
        last = connection.execute(sa.select(sa.func.max(_e.seq)).where(_e.job_id == job_id)).scalar_one()
        event = EventRow(job_id, 0 if last is None else last + 1, event_id, event_type, data, at)
        return self._add_event(connection, event, {"state": state, "ended_at": at, **NO_LEASE, **changes})

    async def events(self, job_id: str, after: int = -1, limit: int | None = None) -> list[EventRow]:
        """The events of a job behind a place, in order."""
        chosen = _events.select(_e.job_id == job_id, _e.seq > after).order_by(_e.seq).limit(limit)
        return await self._all(_events, chosen)

    async def last_step(self, job_id: str, before: int) -> EventRow | None:
        """The newest gradient step of a job before a place."""
        mine = (_e.job_id == job_id, _e.type == STEP, _e.seq < before)
        found = await self._all(_events, _events.select(*mine).order_by(_e.seq.desc()).limit(1))
        return found[0] if found else None

    async def count_steps(self, job_id: str, after: int, before: int) -> int:
        """The gradient steps of a job between two places."""
        return await self._count(train_events, _e.job_id == job_id, _e.type == STEP, _e.seq > after, _e.seq < before)

    async def event_place(self, job_id: str, event_id: str) -> int | None:
        """The place of an event in its job, None for an id that the job does not have."""
        return await self._scalar(sa.select(_e.seq).where(_e.job_id == job_id, _e.id == event_id))


def _add_phases(connection: sa.Connection, found: dict[str, RunJob], inside: sa.ColumnElement[bool]) -> None:
    columns = (_e.job_id, _e.type, sa.func.max(_e.created_at).label("at"), sa.func.max(_e.data).label("data"))
    chosen = sa.select(*columns).join(train_jobs, _j.id == _e.job_id).where(inside)
    for row in connection.execute(chosen.group_by(_e.job_id, _e.type)):
        job = found[row.job_id]
        if row.type == STARTED:
            job.prepared_at = row.at
            planned = row.data.get("num_sequences")
            job.planned = None if planned is None else int(planned)
        elif row.type == STEP:
            job.trained_at = row.at


def add_step(connection: sa.Connection, job: JobRow, step: EventRow) -> None:
    """Append a gradient step of a run of Tinker's protocol, whose job begins with the first one."""
    _jobs.insert_new(connection, job)
    _events.insert_new(connection, EventRow(job.id, 0, f"{job.id}:0", STARTED, {}, job.created_at))
    _events.insert(connection, step)
    changes = {"config": job.config, "metrics": job.metrics, "progress": _j.progress + 1}
    connection.execute(train_jobs.update().where(_j.id == job.id).values(changes))


def end_runs(connection: sa.Connection, is_over: sa.ColumnElement[bool], at: int) -> None:
    """End the jobs of runs of Tinker's protocol that are over."""
    for job in _jobs.all(connection, _jobs.select(_j.kind == TINKER, _j.state.in_(OPEN), is_over)):
        connection.execute(train_jobs.update().where(_j.id == job.id).values(state=SUCCEEDED, ended_at=at))
        _events.insert_new(connection, EventRow(job.id, LAST_EVENT, f"{job.id}:end", ENDED, job.metrics, at))
