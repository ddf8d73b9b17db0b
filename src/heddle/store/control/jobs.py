"""The durable queue of training jobs: states, leases, attempts, and the events that clients read.

States: queued -> running -> publishing -> succeeded | failed | cancelled.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from heddle.errors import Busy, HeddleError
from heddle.store.control.job_queue import CANCELLED as CANCELLED
from heddle.store.control.job_queue import FAILED as FAILED
from heddle.store.control.job_queue import NO_LEASE, QUEUED, RUNNING, JobQueue
from heddle.store.control.job_queue import SUCCEEDED as SUCCEEDED
from heddle.store.control.leases import database_time
from heddle.store.control.mapping import Indexed, Integer, Key, Mapped, Unique

PUBLISHING = "publishing"
AT_WORK = (RUNNING, PUBLISHING)
OPEN = (QUEUED, *AT_WORK)


class LeaseLost(HeddleError):
    """Another server works on the job now: this one must not go on with it."""

    status = 409

    def __init__(self, job_id: str) -> None:
        super().__init__(f"The job {job_id} was taken over by another server")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One training job; `number` orders the queue and is given by the table."""

    number: Key[Integer] = 0
    id: Unique[str]
    model_id: Indexed[str]
    kind: str
    """`rl` or `sft`."""
    state: Indexed[str] = QUEUED
    config: dict[str, Any]
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


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a job; `seq` 0 is training_started, then the gradient steps, then the end."""

    job_id: Key[str]
    seq: Key[int]
    id: Unique[str]
    type: str
    data: dict[str, Any]
    created_at: int


_jobs, _events = Mapped(JobRow, "train_jobs"), Mapped(EventRow, "train_events", sqlite_with_rowid=False)
train_jobs, train_events = _jobs.table, _events.table
JOB_TABLES = (train_jobs, train_events)
_c, _e = train_jobs.c, train_events.c


class TrainJobs(JobQueue[JobRow]):
    """The tables of jobs and their events, as one server works on them."""

    jobs = _jobs
    at_work = AT_WORK

    async def add(self, row: JobRow, most_queued: int) -> None:
        """Queue a job; raises Busy when that many of its model wait already."""

        def work(connection: sa.Connection) -> None:
            waiting = sa.select(sa.func.count()).where(_c.model_id == row.model_id, _c.state == QUEUED)
            if connection.execute(waiting).scalar_one() >= most_queued:
                raise Busy(f"{most_queued} jobs of this model wait already", retry_after=5)
            _jobs.insert(connection, row)

        await self._executor.write(work)

    async def find(self, job_id: str) -> JobRow | None:
        """The job with an id."""
        return await self._first(_jobs, _c.id == job_id)

    async def of_model(self, model_id: str) -> list[JobRow]:
        """The jobs of a model, oldest first."""
        return await self._all(_jobs, _jobs.select(_c.model_id == model_id).order_by(_c.number))

    async def open(self) -> list[JobRow]:
        """The jobs that are not done, oldest first."""
        return await self._all(_jobs, _jobs.select(_c.state.in_(OPEN)).order_by(_c.number))

    async def lease(self, now: int, seconds: float, held: Collection[str] = ()) -> JobRow | None:
        """Take the oldest job whose model has none at work: a queued one, or one whose lease has ended.

        What is `held` by this server itself is not taken. A job found in `publishing` keeps that state: only its
        publication is left to do.
        """
        other = train_jobs.alias()
        same = sa.and_(other.c.model_id == _c.model_id, other.c.id != _c.id)
        at_work = sa.exists().where(same, other.c.state.in_(AT_WORK))
        older = sa.exists().where(same, other.c.state == QUEUED, other.c.number < _c.number)
        chosen = _jobs.select(self._is_free(held), sa.or_(_c.state != QUEUED, ~older), ~at_work).order_by(_c.number)
        return await self._executor.write(lambda connection: self._take(connection, chosen, now, seconds))

    async def claim(self, job_id: str, now: int, seconds: float) -> JobRow | None:
        """Take one job, which nobody has; None when it is done or a server works on it."""
        chosen = _jobs.select(_c.id == job_id, self._is_free())
        return await self._executor.write(lambda connection: self._take(connection, chosen, now, seconds, wait=True))

    async def update(self, job_id: str, **changes: Any) -> None:
        """Set columns of a job of this server: state, step, parent_step, attempts, ...

        Raises LeaseLost when another server has it, and when it is done.
        """
        if not await self._set([job_id], changes):
            raise LeaseLost(job_id)

    async def insist(self, job_id: str) -> None:
        """Raise LeaseLost when a job is not this server's any more, or its lease has ended."""
        if await self._first(_jobs, self._is_mine([job_id]), _c.lease_until >= database_time()) is None:
            raise LeaseLost(job_id)

    async def ask_to_cancel(self, job_id: str) -> None:
        """Ask whoever works on a job to give it up; nothing happens to one that is done."""
        await self._execute(train_jobs.update().where(_c.id == job_id, _c.state.in_(OPEN)).values(cancel_asked=True))

    async def is_any_free(self) -> bool:
        """True when a job waits, or its lease has ended; perhaps it may not begin yet."""
        return await self._scalar(sa.select(_c.id).where(self._is_free()).limit(1)) is not None

    async def let_go(self, job_id: str | None = None) -> int:
        """End the leases of this server (on one job), so that the next that looks goes on; returns how many."""
        change = train_jobs.update().where(_c.state.in_(AT_WORK), _c.lease_owner == self.instance.owner)
        if job_id is not None:
            change = change.where(_c.id == job_id)
        return await self._execute(change.values(lease_owner=None, lease_until=0))

    async def release_all(self) -> int:
        """End every lease, as the one server that owns all does when it starts; returns how many.

        Where several servers share the tables nothing is changed, as leases end.
        """
        if self.instance.is_shared:
            return 0
        change = train_jobs.update().where(_c.state.in_(AT_WORK)).values(lease_owner=None, lease_until=0)
        return await self._execute(change)

    async def add_event(self, event: EventRow, progress: int | None = None) -> bool:
        """Append an event of a job of this server, with the job's progress; False when its place is taken already.

        Raises LeaseLost.
        """
        changes = {} if progress is None else {"progress": progress, "attempts": 0}
        return await self._executor.write(lambda connection: self._add_event(connection, event, changes))

    def _add_event(self, connection: sa.Connection, event: EventRow, changes: dict[str, Any]) -> bool:
        if connection.execute(sa.select(_c.id).where(self._is_mine([event.job_id]))).first() is None:
            raise LeaseLost(event.job_id)
        if connection.execute(sa.select(_e.seq).where(_e.job_id == event.job_id, _e.seq == event.seq)).first():
            return False
        _events.insert(connection, event)
        if changes:
            connection.execute(train_jobs.update().where(_c.id == event.job_id).values(changes))
        return True

    async def finish(
        self, job_id: str, state: str, event_id: str, event_type: str, data: dict[str, Any], at: int, **changes: Any
    ) -> bool:
        """End a job of this server and append its last event, together; False (and no change) when it had ended.

        Raises LeaseLost when another server works on it.
        """

        def work(connection: sa.Connection) -> bool:
            found = connection.execute(sa.select(_c.state).where(_c.id == job_id)).first()
            if found is None or found.state not in OPEN:
                return False
            last = connection.execute(sa.select(sa.func.max(_e.seq)).where(_e.job_id == job_id)).scalar_one()
            event = EventRow(job_id, 0 if last is None else last + 1, event_id, event_type, data, at)
            return self._add_event(connection, event, {"state": state, "ended_at": at, **NO_LEASE, **changes})

        return await self._executor.write(work)

    async def events(self, job_id: str, after: int = -1, limit: int | None = None) -> list[EventRow]:
        """The events of a job behind a place, in order."""
        chosen = _events.select(_e.job_id == job_id, _e.seq > after).order_by(_e.seq).limit(limit)
        return await self._all(_events, chosen)

    async def event_place(self, job_id: str, event_id: str) -> int | None:
        """The place of an event in its job, None for an id that the job does not have."""
        return await self._scalar(sa.select(_e.seq).where(_e.job_id == job_id, _e.id == event_id))
