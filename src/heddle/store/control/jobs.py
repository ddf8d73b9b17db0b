"""The durable queue of training jobs: states, leases, attempts, and the events that clients read.

States: queued -> running -> publishing -> succeeded | failed | cancelled. A job whose lease ends goes back to queued.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.schema import Executor, metadata

QUEUED, RUNNING, PUBLISHING = "queued", "running", "publishing"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
OPEN = (QUEUED, RUNNING, PUBLISHING)
AT_WORK = (RUNNING, PUBLISHING)

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
    """The tables of jobs and their events."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

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

    async def lease(self, owner: str, now: int, until: int) -> JobRow | None:
        """Take the oldest job whose model has none at work: a queued one, or one whose lease has ended.

        A job found in `publishing` keeps that state: only its publication is left to do.
        """

        def work(connection: sa.Connection) -> JobRow | None:
            c, other = train_jobs.c, train_jobs.alias()
            held = sa.exists().where(
                other.c.model_id == c.model_id,
                other.c.id != c.id,
                other.c.state.in_(AT_WORK),
            )
            older = sa.exists().where(
                other.c.model_id == c.model_id, other.c.state == QUEUED, other.c.number < c.number
            )
            free = sa.or_(sa.and_(c.state == QUEUED, ~older), sa.and_(c.state.in_(AT_WORK), c.lease_until < now))
            chosen = sa.select(train_jobs).where(free, ~held).order_by(c.number).limit(1)
            found = connection.execute(chosen).first()
            if found is None:
                return None
            changes = {"lease_owner": owner, "lease_until": until, "started_at": found.started_at or now}
            changes["state"] = RUNNING if found.state == QUEUED else found.state
            connection.execute(train_jobs.update().where(c.id == found.id).values(changes))
            return _job(connection.execute(sa.select(train_jobs).where(c.id == found.id)).one())

        return await self._executor.write(work)

    async def update(self, job_id: str, **changes: Any) -> None:
        """Set columns of a job: lease_until, state, step, parent_step, attempts, cancel_asked, ..."""
        if "metrics" in changes:
            changes["metrics"] = orjson.dumps(changes["metrics"]).decode()

        def work(connection: sa.Connection) -> None:
            connection.execute(train_jobs.update().where(train_jobs.c.id == job_id).values(changes))

        await self._executor.write(work)

    async def release_all(self) -> int:
        """End every lease, as the one server that holds the folder does when it starts; returns how many."""

        def work(connection: sa.Connection) -> int:
            held = train_jobs.update().where(train_jobs.c.state.in_(AT_WORK))
            return connection.execute(held.values(lease_owner=None, lease_until=0)).rowcount

        return await self._executor.write(work)

    async def add_event(self, event: EventRow, progress: int | None = None) -> bool:
        """Append an event, with the job's progress; False (and no change) when its place is taken already."""

        def work(connection: sa.Connection) -> bool:
            return _add_event(connection, event, {} if progress is None else {"progress": progress, "attempts": 0})

        return await self._executor.write(work)

    async def finish(
        self, job_id: str, state: str, event_id: str, event_type: str, data: dict[str, Any], at: int, **changes: Any
    ) -> bool:
        """End an open job and append its last event, together; False (and no change) when it had ended."""
        if "metrics" in changes:
            changes["metrics"] = orjson.dumps(changes["metrics"]).decode()

        def work(connection: sa.Connection) -> bool:
            c, e = train_jobs.c, train_events.c
            found = connection.execute(sa.select(c.state).where(c.id == job_id)).first()
            if found is None or found.state not in OPEN:
                return False
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
