"""The durable queue of training jobs: states, leases, attempts, and the events that clients read.

States: queued -> running -> publishing -> succeeded | failed | cancelled. A job at work is leased to one server; one
whose lease has ended is taken by the next that looks.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Busy, HeddleError
from heddle.store.control.leases import SECOND, Instance, database_time
from heddle.store.control.schema import Executor, metadata

QUEUED, RUNNING, PUBLISHING = "queued", "running", "publishing"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
OPEN = (QUEUED, RUNNING, PUBLISHING)
AT_WORK = (RUNNING, PUBLISHING)


class LeaseLost(HeddleError):
    """Another server works on the job now: this one must not go on with it."""

    status = 409

    def __init__(self, job_id: str) -> None:
        super().__init__(f"The job {job_id} was taken over by another server")


train_jobs = sa.Table(
    "train_jobs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("model_id", sa.Text, nullable=False, index=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False, index=True),
    sa.Column("step", sa.BigInteger, nullable=True),
    sa.Column("parent_step", sa.BigInteger, nullable=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("progress", sa.BigInteger, nullable=False),
    sa.Column("lease_owner", sa.Text, nullable=True),
    sa.Column("lease_until", sa.BigInteger, nullable=True),
    sa.Column("cancel_asked", sa.Integer, nullable=False),
    sa.Column("error", sa.Text, nullable=True),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=True),
    sa.Column("ended_at", sa.BigInteger, nullable=True),
)

train_events = sa.Table(
    "train_events",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One training job; `number` orders the queue and is given by the table."""

    id: str
    model_id: str
    kind: str
    """`rl` or `sft`."""
    config: dict[str, Any]
    payload: str
    """The key of a blob (zstd) with the body."""
    created_at: int
    created_by: str
    state: str = QUEUED
    step: int | None = None
    """The step that it makes, known since it first ran."""
    parent_step: int | None = None
    attempts: int = 0
    """Attempts that ended without progress since the last progress."""
    progress: int = 0
    """Gradient steps whose events are stored."""
    lease_owner: str | None = None
    lease_until: int | None = None
    cancel_asked: bool = False
    error: str | None = None
    metrics: dict[str, float] | None = None
    started_at: int | None = None
    ended_at: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a job; `seq` 0 is training_started, then the gradient steps, then the end."""

    job_id: str
    seq: int
    id: str
    type: str
    data: dict[str, Any]
    created_at: int


class TrainJobs:
    """The tables of jobs and their events, as one server works on them."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self.instance = instance or Instance()

    async def add(self, row: JobRow, most_queued: int) -> None:
        """Queue a job; raises Busy when that many of its model wait already."""

        def work(connection: sa.Connection) -> None:
            c = train_jobs.c
            waiting = sa.select(sa.func.count()).where(c.model_id == row.model_id, c.state == QUEUED)
            if connection.execute(waiting).scalar_one() >= most_queued:
                raise Busy(f"{most_queued} jobs of this model wait already", retry_after=5)
            connection.execute(train_jobs.insert().values(_job_values(row)))

        await self._executor.write(work)

    async def find(self, job_id: str) -> JobRow | None:
        """The job with an id."""

        def work(connection: sa.Connection) -> JobRow | None:
            found = connection.execute(sa.select(train_jobs).where(train_jobs.c.id == job_id)).first()
            return None if found is None else _job(found)

        return await self._executor.read(work)

    async def of_model(self, model_id: str) -> list[JobRow]:
        """The jobs of a model, oldest first."""
        return await self._select(train_jobs.c.model_id == model_id)

    async def open(self) -> list[JobRow]:
        """The jobs that are not done, oldest first."""
        return await self._select(train_jobs.c.state.in_(OPEN))

    async def lease(self, now: int, seconds: float, held: Collection[str] = ()) -> JobRow | None:
        """Take the oldest job whose model has none at work: a queued one, or one whose lease has ended.

        What is `held` by this server itself is not taken. A job found in `publishing` keeps that state: only its
        publication is left to do.
        """

        def work(connection: sa.Connection) -> JobRow | None:
            c, other = train_jobs.c, train_jobs.alias()
            at_work = sa.exists().where(
                other.c.model_id == c.model_id,
                other.c.id != c.id,
                other.c.state.in_(AT_WORK),
            )
            older = sa.exists().where(
                other.c.model_id == c.model_id, other.c.state == QUEUED, other.c.number < c.number
            )
            left = sa.and_(c.state.in_(AT_WORK), c.lease_until < database_time(), c.id.not_in(list(held)))
            free = sa.or_(sa.and_(c.state == QUEUED, ~older), left)
            chosen = sa.select(train_jobs).where(free, ~at_work).order_by(c.number).limit(1)
            # Servers that look at the same time get different jobs, and do not wait for each other.
            found = connection.execute(chosen.with_for_update(of=train_jobs, skip_locked=True)).first()
            return None if found is None else self._take(connection, found, now, seconds)

        return await self._executor.write(work)

    async def claim(self, job_id: str, now: int, seconds: float) -> JobRow | None:
        """Take one job, which nobody has; None when it is done or a server works on it."""

        def work(connection: sa.Connection) -> JobRow | None:
            c = train_jobs.c
            free = sa.or_(c.state == QUEUED, sa.and_(c.state.in_(AT_WORK), c.lease_until < database_time()))
            chosen = sa.select(train_jobs).where(c.id == job_id, free)
            found = connection.execute(chosen.with_for_update()).first()
            return None if found is None else self._take(connection, found, now, seconds)

        return await self._executor.write(work)

    def _take(self, connection: sa.Connection, found: sa.Row[Any], now: int, seconds: float) -> JobRow:
        c = train_jobs.c
        changes = self._leased(seconds) | {"started_at": found.started_at or now}
        changes["state"] = RUNNING if found.state == QUEUED else found.state
        connection.execute(train_jobs.update().where(c.id == found.id).values(changes))
        return _job(connection.execute(sa.select(train_jobs).where(c.id == found.id)).one())

    async def update(self, job_id: str, **changes: Any) -> None:
        """Set columns of a job of this server: state, step, parent_step, attempts, ...

        Raises LeaseLost when another server has it, and when it is done.
        """
        if "metrics" in changes:
            changes["metrics"] = orjson.dumps(changes["metrics"]).decode()
        change = train_jobs.update().where(self._mine(job_id)).values(changes)
        if not await self._executor.write(lambda connection: connection.execute(change).rowcount):
            raise LeaseLost(job_id)

    async def renew(self, job_id: str, seconds: float) -> None:
        """Keep a job of this server for a while longer; raises LeaseLost."""
        await self.update(job_id, **self._leased(seconds))

    async def insist(self, job_id: str) -> None:
        """Raise LeaseLost when a job is not this server's any more, or its lease has ended."""
        live = sa.and_(self._mine(job_id), train_jobs.c.lease_until >= database_time())
        chosen = sa.select(train_jobs.c.id).where(live)
        if await self._executor.read(lambda connection: connection.execute(chosen).first()) is None:
            raise LeaseLost(job_id)

    async def ask_to_cancel(self, job_id: str) -> None:
        """Ask whoever works on a job to give it up; nothing happens to one that is done."""
        c = train_jobs.c
        change = train_jobs.update().where(c.id == job_id, c.state.in_(OPEN)).values(cancel_asked=1)
        await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def is_cancel_asked(self, job_id: str) -> bool:
        """True when somebody asked for the end of a job."""
        chosen = sa.select(train_jobs.c.cancel_asked).where(train_jobs.c.id == job_id)
        return await self._executor.read(lambda connection: bool(connection.execute(chosen).scalar()))

    async def is_any_free(self) -> bool:
        """True when a job waits, or its lease has ended; perhaps it may not begin yet."""
        c = train_jobs.c
        free = sa.or_(c.state == QUEUED, sa.and_(c.state.in_(AT_WORK), c.lease_until < database_time()))
        chosen = sa.select(c.id).where(free).limit(1)
        return await self._executor.read(lambda connection: connection.execute(chosen).first() is not None)

    async def let_go(self, job_id: str | None = None) -> int:
        """End the leases of this server (on one job), so that the next that looks goes on; returns how many."""
        c = train_jobs.c
        change = train_jobs.update().where(c.state.in_(AT_WORK), c.lease_owner == self.instance.owner)
        if job_id is not None:
            change = change.where(c.id == job_id)
        change = change.values(lease_owner=None, lease_until=0)
        return await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def release_all(self) -> int:
        """End every lease, as the one server that owns all does when it starts; returns how many.

        Where several servers share the tables nothing is changed, as leases end.
        """
        if self.instance.is_shared:
            return 0
        change = train_jobs.update().where(train_jobs.c.state.in_(AT_WORK)).values(lease_owner=None, lease_until=0)
        return await self._executor.write(lambda connection: connection.execute(change).rowcount)

    def _leased(self, seconds: float) -> dict[str, Any]:
        return {"lease_owner": self.instance.owner, "lease_until": database_time() + int(seconds * SECOND)}

    def _mine(self, job_id: str) -> sa.ColumnElement[bool]:
        c = train_jobs.c
        return sa.and_(c.id == job_id, c.state.in_(AT_WORK), c.lease_owner == self.instance.owner)

    def _insist(self, connection: sa.Connection, job_id: str) -> None:
        if connection.execute(sa.select(train_jobs.c.id).where(self._mine(job_id))).first() is None:
            raise LeaseLost(job_id)

    async def add_event(self, event: EventRow, progress: int | None = None) -> bool:
        """Append an event of a job of this server, with the job's progress; False when its place is taken already.

        Raises LeaseLost.
        """

        def work(connection: sa.Connection) -> bool:
            self._insist(connection, event.job_id)
            return _add_event(connection, event, {} if progress is None else {"progress": progress, "attempts": 0})

        return await self._executor.write(work)

    async def finish(
        self, job_id: str, state: str, event_id: str, event_type: str, data: dict[str, Any], at: int, **changes: Any
    ) -> bool:
        """End a job of this server and append its last event, together; False (and no change) when it had ended.

        Raises LeaseLost when another server works on it.
        """
        if "metrics" in changes:
            changes["metrics"] = orjson.dumps(changes["metrics"]).decode()

        def work(connection: sa.Connection) -> bool:
            c, e = train_jobs.c, train_events.c
            found = connection.execute(sa.select(c.state).where(c.id == job_id)).first()
            if found is None or found.state not in OPEN:
                return False
            self._insist(connection, job_id)
            last = connection.execute(sa.select(sa.func.max(e.seq)).where(e.job_id == job_id)).scalar_one()
            event = EventRow(job_id, 0 if last is None else last + 1, event_id, event_type, data, at)
            ended = {"state": state, "ended_at": at, "lease_owner": None, "lease_until": None}
            return _add_event(connection, event, ended | changes)

        return await self._executor.write(work)

    async def events(self, job_id: str, after: int = -1, limit: int | None = None) -> list[EventRow]:
        """The events of a job behind a place, in order."""
        c = train_events.c
        chosen = sa.select(train_events).where(c.job_id == job_id, c.seq > after).order_by(c.seq).limit(limit)
        return await self._executor.read(lambda connection: [_event(row) for row in connection.execute(chosen)])

    async def event_place(self, job_id: str, event_id: str) -> int | None:
        """The place of an event in its job, None for an id that the job does not have."""
        c = train_events.c
        chosen = sa.select(c.seq).where(c.job_id == job_id, c.id == event_id)
        return await self._executor.read(lambda connection: connection.execute(chosen).scalar())

    async def _select(self, which: sa.ColumnElement[bool]) -> list[JobRow]:
        chosen = sa.select(train_jobs).where(which).order_by(train_jobs.c.number)
        return await self._executor.read(lambda connection: [_job(row) for row in connection.execute(chosen)])


def _add_event(connection: sa.Connection, event: EventRow, changes: dict[str, Any]) -> bool:
    c = train_events.c
    if connection.execute(sa.select(c.seq).where(c.job_id == event.job_id, c.seq == event.seq)).first() is not None:
        return False
    values = {name: getattr(event, name) for name in EventRow.__slots__}
    connection.execute(train_events.insert().values(values | {"data": orjson.dumps(event.data).decode()}))
    if changes:
        connection.execute(train_jobs.update().where(train_jobs.c.id == event.job_id).values(changes))
    return True


def _job_values(row: JobRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in JobRow.__slots__ if name != "number"}
    values["config"] = orjson.dumps(row.config).decode()
    values["metrics"] = orjson.dumps(row.metrics or {}).decode()
    values["cancel_asked"] = int(row.cancel_asked)
    return values


def _job(row: sa.Row[Any]) -> JobRow:
    values = dict(row._mapping)
    values |= {"config": orjson.loads(row.config), "metrics": orjson.loads(row.metrics)}
    return JobRow(**values | {"cancel_asked": bool(row.cancel_asked)})


def _event(row: sa.Row[Any]) -> EventRow:
    return EventRow(**dict(row._mapping) | {"data": orjson.loads(row.data)})


JOB_TABLES: Sequence[sa.Table] = (train_jobs, train_events)
