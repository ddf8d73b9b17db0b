"""The durable queue of evaluation jobs: queued -> running -> succeeded | failed | cancelled.

A running job is leased to one server. Where one server owns all, what still runs when it starts is queued again; where
several share the tables, a job whose lease has ended is taken by another one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.leases import SECOND, Instance, database_time
from heddle.store.control.schema import Executor, metadata
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
OPEN = (QUEUED, RUNNING)
STATES = (*OPEN, SUCCEEDED, FAILED, CANCELLED)
LEASE_SECONDS = 30.0

eval_jobs = sa.Table(
    "eval_jobs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("not_before", sa.BigInteger, nullable=False),
    sa.Column("cancel_asked", sa.Integer, nullable=False),
    sa.Column("progress", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=True),
    sa.Column("error", sa.Text, nullable=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=True),
    sa.Column("ended_at", sa.BigInteger, nullable=True),
    sa.Column("lease_owner", sa.Text, nullable=True),
    sa.Column("lease_until", sa.BigInteger, nullable=True),
    sa.Column("crashes", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Index("eval_jobs_project", "project_id", "number"),
    sa.Index("eval_jobs_state", "state", "number"),
)
_JSON = ("body", "caller", "progress", "result")
_NO_LEASE: Json = {"lease_owner": None, "lease_until": None}


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job; `number` orders the queue and is given by the table. Times are microseconds."""

    id: str
    kind: str
    project_id: str
    """`entity/project`."""
    body: Json
    caller: Json
    """Who asked, and what the key allowed then."""
    created_at: int
    state: str = QUEUED
    attempts: int = 0
    """How often it was begun since its last progress."""
    not_before: int = 0
    """It waits until then, after an attempt that may go better later."""
    cancel_asked: bool = False
    progress: Json = field(default_factory=dict)
    result: Json | None = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    lease_owner: str | None = None
    lease_until: int | None = None
    crashes: int = 0
    """How often a server ended while it was at work, since its last progress."""
    number: int = 0


class EvalJobs:
    """The table of jobs, as one server works on it."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self.instance = instance or Instance()

    async def add(self, row: JobRow, most_open: int) -> JobRow:
        """Queue a job and return it as stored; an id that is there already is that job.

        Raises Busy when that many of its project are queued or run already.
        """

        def work(connection: sa.Connection) -> JobRow:
            c = eval_jobs.c
            known = connection.execute(sa.select(eval_jobs).where(c.id == row.id)).first()
            if known is not None:
                return _job(known)
            waiting = sa.select(sa.func.count()).where(c.project_id == row.project_id, c.state.in_(OPEN))
            if connection.execute(waiting).scalar_one() >= most_open:
                raise Busy(f"{most_open} jobs of {row.project_id} wait or run already", retry_after=5)
            connection.execute(eval_jobs.insert().values(_values(row)))
            return _job(connection.execute(sa.select(eval_jobs).where(c.id == row.id)).one())

        return await self._executor.write(work)

    async def find(self, project_id: str, job_id: str) -> JobRow | None:
        """The job of a project with an id."""
        c = eval_jobs.c
        chosen = sa.select(eval_jobs).where(c.id == job_id, c.project_id == project_id)

        def work(connection: sa.Connection) -> JobRow | None:
            found = connection.execute(chosen).first()
            return None if found is None else _job(found)

        return await self._executor.read(work)

    async def query(
        self,
        project_id: str,
        kinds: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[JobRow]:
        """The jobs of a project, newest first; None stands for every kind or state."""
        c = eval_jobs.c
        chosen = sa.select(eval_jobs).where(c.project_id == project_id)
        if kinds is not None:
            chosen = chosen.where(c.kind.in_(kinds))
        if states is not None:
            chosen = chosen.where(c.state.in_(states))
        chosen = chosen.order_by(c.number.desc()).limit(limit).offset(offset)
        return await self._executor.read(lambda connection: [_job(row) for row in connection.execute(chosen)])

    async def take(
        self, kinds: Sequence[str], now: int, *, only_cancelled: bool = False, held: Collection[str] = ()
    ) -> JobRow | None:
        """Begin the next job: one to be cancelled, else the oldest of the project that has the fewest at work.

        A running job whose lease has ended is taken like one that waits, unless it is `held` by this server itself.
        """

        def work(connection: sa.Connection) -> JobRow | None:
            c, other = eval_jobs.c, eval_jobs.alias()
            left = sa.and_(c.state == RUNNING, c.lease_until < database_time(), c.id.not_in(list(held)))
            ready = sa.and_(sa.or_(c.state == QUEUED, left), c.kind.in_(kinds))
            asked = c.cancel_asked == 1
            ready = sa.and_(ready, asked if only_cancelled else sa.or_(asked, c.not_before <= now))
            at_work = sa.select(sa.func.count()).where(other.c.project_id == c.project_id, other.c.state == RUNNING)
            order = (c.cancel_asked.desc(), at_work.scalar_subquery(), c.number)
            chosen = sa.select(c.id, c.started_at).where(ready).order_by(*order).limit(1)
            # Servers that look at the same time get different jobs, and do not wait for each other.
            found = connection.execute(chosen.with_for_update(skip_locked=True)).first()
            if found is None:
                return None
            changes = {"state": RUNNING, "attempts": c.attempts + 1, "started_at": found.started_at or now}
            changes["crashes"] = sa.case((c.state == RUNNING, c.crashes + 1), else_=c.crashes)
            changes |= self._lease()
            connection.execute(eval_jobs.update().where(c.id == found.id).values(changes))
            return _job(connection.execute(sa.select(eval_jobs).where(c.id == found.id)).one())

        return await self._executor.write(work)

    async def next_time(self, kinds: Sequence[str]) -> int | None:
        """When the first job that waits may begin; None when none waits. Leases that end are not among it."""
        c = eval_jobs.c
        chosen = sa.select(sa.func.min(c.not_before)).where(c.state == QUEUED, c.kind.in_(kinds))
        return await self._executor.read(lambda connection: connection.execute(chosen).scalar())

    async def note(self, job_id: str, progress: Json) -> None:
        """Store the progress of a job of this server; its attempts and crashes begin anew."""
        await self._update(job_id, {"progress": _text(progress), "attempts": 1, "crashes": 0})

    async def held(self) -> dict[str, bool]:
        """The running jobs of this server, by id; true for those that somebody asked to end."""
        c = eval_jobs.c
        chosen = sa.select(c.id, c.cancel_asked).where(c.state == RUNNING, c.lease_owner == self.instance.owner)
        return await self._executor.read(
            lambda connection: {row.id: bool(row.cancel_asked) for row in connection.execute(chosen)}
        )

    async def renew(self, job_ids: Collection[str]) -> None:
        """Keep these running jobs of this server for another lease.

        One that it took without learning of it (the answer to the commit was lost) is not kept, so that it is taken
        again.
        """
        c = eval_jobs.c
        mine = sa.and_(c.state == RUNNING, c.lease_owner == self.instance.owner, c.id.in_(list(job_ids)))
        change = eval_jobs.update().where(mine)
        change = change.values(self._lease())
        await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def ask_to_cancel(self, project_id: str, job_id: str) -> JobRow | None:
        """Ask for the end of a job that is not done; returns it as it is then, None for an unknown one."""

        def work(connection: sa.Connection) -> JobRow | None:
            c = eval_jobs.c
            which = sa.and_(c.id == job_id, c.project_id == project_id)
            connection.execute(eval_jobs.update().where(which, c.state.in_(OPEN)).values(cancel_asked=1))
            found = connection.execute(sa.select(eval_jobs).where(which)).first()
            return None if found is None else _job(found)

        return await self._executor.write(work)

    async def finish(self, job_id: str, state: str, at: int, *, result: Json | None, error: str | None) -> bool:
        """End a running job; False (and no change) when it is not running, or is another server's."""
        ended = {"state": state, "ended_at": at, "result": None if result is None else _text(result), "error": error}
        return await self._update(job_id, ended | _NO_LEASE)

    async def put_back(self, job_id: str, *, not_before: int = 0, error: str | None = None, begun: bool = True) -> bool:
        """Queue a running job of this server again; `begun` says whether what was done counts as an attempt."""
        changes: Json = {"state": QUEUED, "not_before": not_before, "error": error, **_NO_LEASE}
        if not begun:
            changes["attempts"] = eval_jobs.c.attempts - 1
        return await self._update(job_id, changes)

    async def put_back_all(self) -> int:
        """Queue every job that was at work when an earlier server ended; returns how many.

        Only for the one server that owns all: where several share the tables nothing is changed, as leases end.
        """
        if self.instance.is_shared:
            return 0
        crashed = {"state": QUEUED, "crashes": eval_jobs.c.crashes + 1, **_NO_LEASE}
        change = eval_jobs.update().where(eval_jobs.c.state == RUNNING).values(crashed)
        return await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def count_open(self) -> int:
        """How many jobs are not done."""
        found = sa.select(sa.func.count()).select_from(eval_jobs).where(eval_jobs.c.state.in_(OPEN))
        return await self._executor.read(lambda connection: int(connection.execute(found).scalar_one()))

    async def forget_older(self, before: int) -> int:
        """Remove the jobs that ended before an instant; returns how many."""
        c = eval_jobs.c
        change = eval_jobs.delete().where(c.state.not_in(OPEN), c.ended_at < before)
        return await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def _update(self, job_id: str, changes: Json) -> bool:
        """Change a running job of this server; False when it is none."""
        c = eval_jobs.c
        which = sa.and_(c.id == job_id, c.state == RUNNING, c.lease_owner == self.instance.owner)
        change = eval_jobs.update().where(which).values(changes)
        return await self._executor.write(lambda connection: connection.execute(change).rowcount > 0)

    def _lease(self) -> Json:
        until = database_time() + int(LEASE_SECONDS * SECOND)
        return {"lease_owner": self.instance.owner, "lease_until": until}


def _text(value: Json) -> str:
    return jsontext.dumps(value)


def _values(row: JobRow) -> Json:
    values = {name: getattr(row, name) for name in JobRow.__slots__ if name != "number"}
    values |= {name: _text(values[name]) for name in _JSON if values[name] is not None}
    return values | {"cancel_asked": int(row.cancel_asked)}


def _job(row: sa.Row[Any]) -> JobRow:
    values = dict(row._mapping)
    values |= {name: orjson.loads(values[name]) for name in _JSON if values[name] is not None}
    return JobRow(**values | {"cancel_asked": bool(row.cancel_asked)})
