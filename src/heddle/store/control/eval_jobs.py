"""The durable queue of evaluation jobs (queued -> running -> succeeded | failed | cancelled), and the calls of replays.

Where one server owns all, what still runs when it starts is queued again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.coordination import CANCELLED, FAILED, NO_LEASE, NOW, QUEUED, RUNNING, SUCCEEDED, JobQueue
from heddle.store.control.repository import Integer, Key, Mapped, Repository, Unique, writes
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json
from heddle.wire.keys import Authority, read_grants

OPEN = (QUEUED, RUNNING)
STATES = (*OPEN, SUCCEEDED, FAILED, CANCELLED)
LEASE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job; `number` orders the queue and is given by the table. Times are microseconds."""

    number: Key[Integer] = 0
    id: Unique[str]
    kind: str
    project_id: str
    """`entity/project`."""
    body: Json
    caller: Json
    """Who asked, and what the key allowed then."""
    state: str = QUEUED
    attempts: Integer = 0
    """How often it was begun since its last progress."""
    not_before: int = 0
    """It waits until then, after an attempt that may go better later."""
    cancel_asked: bool = False
    progress: Json = field(default_factory=dict)
    result: Json | None = None
    error: str | None = None
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    lease_owner: str | None = None
    lease_until: int | None = None
    crashes: Annotated[Integer, sa.text("0")] = 0
    """How often it was begun since its last progress and no server said how that ended; this time counts, too."""

    @property
    def authority(self) -> Authority | None:
        """What it was started with; None where that was no key."""
        key_id = self.caller.get("key_id")
        return None if key_id is None else Authority(key_id, read_grants(self.caller.get("grants", ())))


_jobs = Mapped(
    JobRow,
    "eval_jobs",
    sa.Index("eval_jobs_project", "project_id", "number"),
    sa.Index("eval_jobs_state", "state", "number"),
)
eval_jobs = _jobs.table
_c = eval_jobs.c
_ASKED = _c.cancel_asked == 1
_NAMED = _jobs.select(_c.id == sa.bindparam("named"))
_IS_OPEN = sa.or_(*(_c.state == state for state in OPEN))
_COUNT_OPEN = sa.select(sa.func.count()).where(_c.project_id == sa.bindparam("of_project"), _IS_OPEN)
_COUNTS = {"attempts": _c.attempts + 1}
_OF_KINDS = _c.kind.in_(sa.bindparam("kinds", expanding=True))
_NEXT_TIME = sa.select(sa.func.min(_c.not_before)).where(_c.state == QUEUED, _OF_KINDS)


class EvalJobs(JobQueue[JobRow]):
    """The table of jobs, as one server works on it."""

    jobs = _jobs
    ready = sa.or_(_ASKED, _c.not_before <= NOW)
    unbegun: ClassVar[dict[str, Any]] = {"attempts": _c.attempts - 1}

    @writes
    def add(
        self,
        connection: sa.Connection,
        row: JobRow,
        most_open: int,
        check: Callable[[Sequence[JobRow]], None] | None = None,
    ) -> JobRow:
        """Queue a job and return it as stored; an id that is there already is that job.

        Raises Busy when that many of its project are queued or run already, and what `check` raises, which is told the
        open jobs of its kind in its project.
        """
        if (known := _jobs.first(connection, _NAMED, {"named": row.id})) is not None:
            return known
        if connection.execute(_COUNT_OPEN, {"of_project": row.project_id}).scalar_one() >= most_open:
            raise Busy(f"{most_open} jobs of {row.project_id} are already waiting or running", retry_after=5)
        if check is not None:
            mine = _jobs.select(_c.project_id == row.project_id, _c.kind == row.kind, _c.state.in_(OPEN))
            check(_jobs.all(connection, mine))
        _jobs.insert(connection, row)
        added = _jobs.first(connection, _NAMED, {"named": row.id})
        assert added is not None
        return added

    async def find(self, project_id: str, job_id: str) -> JobRow | None:
        """The job of a project with an id."""
        return await self._first(_jobs, _c.id == job_id, _c.project_id == project_id)

    async def open_of(self, kind: str) -> list[JobRow]:
        """The jobs of a kind that wait or run."""
        return await self._all(_jobs, _jobs.select(_c.kind == kind, _c.state.in_(OPEN)))

    async def query(
        self,
        project_id: str,
        kinds: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[JobRow]:
        """The jobs of a project, newest first; None stands for every kind or state."""
        chosen = _jobs.select(_c.project_id == project_id)
        if kinds is not None:
            chosen = chosen.where(_c.kind.in_(kinds))
        if states is not None:
            chosen = chosen.where(_c.state.in_(states))
        return await self._all(_jobs, chosen.order_by(_c.number.desc()).limit(limit).offset(offset))

    async def take(
        self, kinds: Sequence[str], now: int, *, only_cancelled: bool = False, held: Collection[str] = ()
    ) -> JobRow | None:
        """Begin the next job: one to be cancelled, else the oldest of the project that has the fewest at work.

        A running job whose lease has ended is taken like one that waits, unless it is `held` by this server itself.
        """
        chosen = self._next_cancelled if only_cancelled else self._next
        given = {"kinds": list(kinds), "held": list(held)}
        return await self._executor.write(lambda conn: self._take(conn, chosen, now, LEASE_SECONDS, _COUNTS, **given))

    @cached_property
    def _next(self) -> sa.Select[Any]:
        return self._select_next(self.ready)

    @cached_property
    def _next_cancelled(self) -> sa.Select[Any]:
        return self._select_next(_ASKED)

    def _select_next(self, ready: sa.ColumnElement[bool]) -> sa.Select[Any]:
        other = eval_jobs.alias()
        at_work = sa.select(sa.func.count()).where(other.c.project_id == _c.project_id, other.c.state == RUNNING)
        order = (_c.cancel_asked.desc(), at_work.scalar_subquery(), _c.number)
        return self._select_free(_OF_KINDS, ready, order_by=order)

    async def next_time(self, kinds: Sequence[str]) -> int | None:
        """When the first job that waits may begin; None when none waits. Leases that end are not among it."""
        return await self._scalar(_NEXT_TIME, {"kinds": list(kinds)})

    async def begin(self, job_id: str) -> bool:
        """Count a crash, which progress and every end take back; False when the job is not this server's any more.

        A job that was taken and is not begun (the answer was lost, the server stood still) counts as none.
        """
        return await self._set([job_id], {"crashes": _c.crashes + 1}) > 0

    async def note(self, job_id: str, progress: Json) -> None:
        """Store the progress of a job of this server; its attempts and crashes begin anew."""
        await self._set([job_id], {"progress": progress, "attempts": 1, "crashes": 1})

    @writes
    def ask_to_cancel(self, connection: sa.Connection, project_id: str, job_id: str) -> JobRow | None:
        """Ask for the end of a job that is not done; returns it as it is then, None for an unknown one."""
        mine = sa.and_(_c.id == job_id, _c.project_id == project_id)
        connection.execute(eval_jobs.update().where(mine, _c.state.in_(OPEN)).values(cancel_asked=True))
        return _jobs.first(connection, _jobs.select(mine))

    async def finish(self, job_id: str, state: str, at: int, *, result: Json | None, error: str | None) -> bool:
        """End a running job; False (and no change) when it is not running, or is another server's."""
        ended = {"state": state, "ended_at": at, "result": result, "error": error, **NO_LEASE}
        return await self._set([job_id], ended) > 0

    async def put_back(self, job_id: str, *, not_before: int = 0, error: str | None = None, begun: bool = True) -> bool:
        """Queue a running job of this server again; `begun` says whether what was done counts as an attempt."""
        changes: Json = {"state": QUEUED, "not_before": not_before, "error": error, "crashes": 0, **NO_LEASE}
        if not begun:
            changes["attempts"] = _c.attempts - 1
        return await self._set([job_id], changes) > 0

    @writes
    def forget_older(self, connection: sa.Connection, before: int) -> int:
        """Remove the jobs that ended before an instant, with the calls of replays; returns how many jobs."""
        gone = connection.execute(eval_jobs.delete().where(_c.state.not_in(OPEN), _c.ended_at < before)).rowcount
        connection.execute(replay_items.delete().where(_i.replay_id.not_in(sa.select(_c.id))))
        return gone


REPLAYED, SKIPPED = "replayed", "skipped"


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """One call of a replay; an outcome of None is still to come, `reason` says why there is no answer."""

    replay_id: Key[str]
    place: Key[Integer]
    call_id: str
    outcome: str | None = None
    reason: str | None = None


_items = Mapped(ReplayItem, "replay_items")
replay_items = _items.table
_i = replay_items.c


class Replays(Repository):
    """The table of replayed calls."""

    @writes
    def choose(self, connection: sa.Connection, replay_id: str, call_ids: Sequence[str]) -> None:
        """Fix the calls of a replay, in one commit; those of replays that are forgotten go."""
        connection.execute(replay_items.delete().where(_i.replay_id.not_in(sa.select(eval_jobs.c.id))))
        rows = (_items.values(ReplayItem(replay_id, *item)) for item in enumerate(call_ids))
        for part in batched(rows, 1_000):
            connection.execute(replay_items.insert(), part)

    async def decide(self, items: Sequence[ReplayItem]) -> None:
        """Store what became of calls."""
        change = (
            replay_items.update()
            .where(_i.replay_id == sa.bindparam("which"), _i.place == sa.bindparam("at"))
            .values(outcome=sa.bindparam("ended"), reason=sa.bindparam("why"))
        )
        rows = [
            {"which": item.replay_id, "at": item.place, "ended": item.outcome, "why": item.reason} for item in items
        ]
        await self._executor.write(lambda connection: connection.execute(change, rows))

    async def left(self, replay_id: str, limit: int) -> list[ReplayItem]:
        """The first calls of which nothing has become yet."""
        left = _items.select(_i.replay_id == replay_id, _i.outcome.is_(None))
        return await self._all(_items, left.order_by(_i.place).limit(limit))

    async def page(
        self, replay_id: str, outcomes: Sequence[str] | None, limit: int | None, offset: int
    ) -> list[ReplayItem]:
        """The calls of a replay in order, with some outcomes only where these are named."""
        query = _items.select(_i.replay_id == replay_id).order_by(_i.place).limit(limit).offset(offset)
        return await self._all(_items, query if outcomes is None else query.where(_i.outcome.in_(outcomes)))

    async def counts(self, replay_id: str) -> dict[str | None, int]:
        """How many calls have each outcome; None: not yet."""
        chosen = sa.select(_i.outcome, sa.func.count()).where(_i.replay_id == replay_id).group_by(_i.outcome)
        return {row[0]: row[1] for row in await self._tuples(chosen)}
