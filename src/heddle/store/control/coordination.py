"""Who does what, where several servers share the control tables: leases, queues of jobs, counts of changes.

Leases end by the clock of the database, so that the clocks of the servers need not agree.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from heddle.errors import Unavailable
from heddle.store.control.repository import NOTHING, Executor, Instance, Key, Mapped, Question, Repository, set_values

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Lease:
    """A name that is one server's until an instant (microseconds)."""

    name: Key[str]
    owner: str
    lease_until: int


leases = Mapped(Lease, "leases").table


class database_time(FunctionElement[int]):  # in small letters, as it reads as a function of SQL
    """The instant of the database in microseconds, as it goes on inside a transaction."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(database_time, "sqlite")
def _on_sqlite(_element: database_time, _compiler: SQLCompiler, **_options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


@compiles(database_time, "postgresql")
def _on_postgresql(_element: database_time, _compiler: SQLCompiler, **_options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


_LEASE = {"owner": sa.bindparam("me"), "lease_until": database_time() + sa.bindparam("length", type_=sa.BigInteger)}
_IS_FREE = sa.or_(leases.c.owner == sa.bindparam("me"), leases.c.lease_until < database_time())
_NAMED = leases.c.name == sa.bindparam("named")
_ASK, _RENEW = sa.select(_IS_FREE).where(_NAMED), leases.update().where(_NAMED).values(_LEASE)
_BEGIN = leases.insert().values(_LEASE | {"name": sa.bindparam("named")})


class Leases(Repository):
    """What one server at a time does for all: names that are taken for a while. A server that is alone has them all."""

    async def take(self, name: str, seconds: float) -> bool:
        """Take a name, or keep it longer; False while it is another server's."""
        if not self.instance.is_shared:
            return True
        mine = {"me": self.instance.owner, "named": name}
        lease = mine | {"length": int(seconds * SECOND)}

        def work(connection: sa.Connection) -> bool:
            found = connection.execute(_ASK, mine).first()
            if found is None:
                connection.execute(_BEGIN, lease)
            elif found[0]:
                connection.execute(_RENEW, lease)
            return found is None or bool(found[0])

        return await self._executor.write(work)

    def require(self, connection: sa.Connection, name: str) -> None:
        """Raise Unavailable in the transaction of a server that slept so long that the name may be another's."""
        c = leases.c
        mine = sa.and_(c.name == name, c.owner == self.instance.owner, c.lease_until >= database_time())
        if self.instance.is_shared and connection.execute(sa.select(c.name).where(mine)).first() is None:
            raise Unavailable(f"The task {name!r} may have been taken over by another server")

    async def give_back(self, *names: str) -> None:
        """Let go of some names of this server; of all of them, as it stops, where none is given."""
        mine = [leases.c.owner == self.instance.owner, *([leases.c.name.in_(names)] if names else [])]
        await self._execute(leases.delete().where(*mine))


ADAPTERS: Final = "adapters"
LIMITS: Final = "limits"
MONITORS: Final = "monitors"
MONITOR_CLASS: Final = "Monitor"
"""The base class of the objects that are monitors."""
_FOLLOWED = {MONITOR_CLASS: MONITORS}
"""By base class of objects: the thing that a version of it changes."""


@dataclass(frozen=True, slots=True)
class Change:
    """How often a thing changed."""

    name: Key[str]
    number: int


changes = Mapped(Change, "changes").table
_NUMBER = sa.select(changes.c.number).where(changes.c.name == sa.bindparam("named"))


def is_others(name: str) -> sa.ColumnElement[bool]:
    """Whether a name is another server's, in a statement with the parameter `me`."""
    return sa.exists().where(leases.c.name == name, sa.not_(_IS_FREE))


def changes_of(name: str) -> sa.ScalarSelect[int]:
    """How often a thing changed (None: never), in a statement."""
    return sa.select(changes.c.number).where(changes.c.name == name).scalar_subquery()


def count_change(connection: sa.Connection, name: str) -> None:
    """Say in the transaction of a change that there was one."""
    change = changes.update().where(changes.c.name == name).values(number=changes.c.number + 1)
    if not connection.execute(change).rowcount:
        connection.execute(changes.insert().values(name=name, number=1))


def count_class_change(connection: sa.Connection, base_class: str | None) -> None:
    """The same of the versions of a base class, where servers follow those."""
    if (name := _FOLLOWED.get(base_class or "")) is not None:
        count_change(connection, name)


def number_of(connection: sa.Connection, name: str) -> int:
    """How often a thing changed, as a transaction sees it."""
    return connection.execute(_NUMBER, {"named": name}).scalar() or 0


class Changes(Repository):
    """Numbers of changes; where one server is alone it knows its own, and nothing is read."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        super().__init__(executor, instance)
        self._here = Counter[str]()

    def count_here(self, name: str) -> None:
        """Say that a thing changed here, by a transaction that counted it."""
        self._here[name] += 1

    async def count(self, name: str) -> None:
        """Say that a thing changed, after its commit."""
        self.count_here(name)
        await self._executor.write(lambda connection: count_change(connection, name))

    async def number(self, name: str) -> int:
        """How often a thing changed; where no other server can change it, how often `count` said so."""
        if not self.instance.is_shared:
            return self._here[name]
        return await self._executor.read(lambda connection: number_of(connection, name))


QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
NO_LEASE: dict[str, Any] = {"lease_owner": None, "lease_until": None}
NOW = sa.bindparam("now", type_=sa.BigInteger)
_IDS = sa.bindparam("ids", type_=sa.Text, expanding=True)
J = TypeVar("J", bound=Any)


class JobQueue(Repository, Generic[J]):
    """What queues have in common; the table has id, number, state, cancel_asked, started_at and the lease."""

    jobs: ClassVar[Mapped[Any]]
    at_work: ClassVar[tuple[str, ...]] = (RUNNING,)
    ready: ClassVar[sa.ColumnElement[bool]] = sa.true()
    """What must hold of a job that waits, before it may begin; `now` is a parameter."""
    unbegun: ClassVar[dict[str, Any]] = {}
    """What else changes of a job that was taken, and not begun."""
    _any_free: ClassVar[Question]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        waits = sa.and_(cls.jobs.c.state == QUEUED, cls.ready)
        cls._any_free = Question(sa.exists().where(sa.or_(waits, _is_left(cls))))

    async def is_any_free(self, now: int) -> bool:
        """True when a job waits and is ready, or its lease has ended; perhaps it may not begin yet."""
        (found,) = await self.instance.looks.ask(self._executor, self._any_free, now=now)
        return bool(found)

    async def read_held(self) -> dict[str, bool]:
        """The jobs at work at this server, by id; true for those that somebody asked to end."""
        c = self.jobs.c
        mine = sa.and_(_is_at_work(self), c.lease_owner == self.instance.owner)
        return {row.id: row.cancel_asked for row in await self._tuples(sa.select(c.id, c.cancel_asked).where(mine))}

    async def find_unended(self, job_ids: Collection[str]) -> set[str]:
        """Those of the jobs that wait or are at work, at any server."""
        c = self.jobs.c
        if not job_ids:
            return set()
        return {row.id for row in await self._tuples(sa.select(c.id).where(c.id.in_(job_ids), c.ended_at.is_(None)))}

    async def renew(self, job_ids: Collection[str], seconds: float) -> int:
        """Keep these jobs at work of this server for a while longer; returns how many of them are.

        One that it took without learning of it (the answer to the commit was lost) is not kept, so that it is taken
        again.
        """
        return await self._set(job_ids, self._lease(seconds))

    async def put_back_unknown(self, known: Collection[str]) -> None:
        """Let jobs be taken that this server took without learning of it, all but the known ones."""
        c = self.jobs.c
        mine = sa.and_(_is_at_work(self), c.lease_owner == self.instance.owner, c.id.not_in(list(known)))
        state = sa.case((c.state == RUNNING, QUEUED), else_=c.state)
        changes = {"state": state, "lease_owner": None, "lease_until": 0, **self.unbegun}
        await self._execute(self.jobs.table.update().where(mine).values(changes))

    async def put_back_all(self) -> int:
        """Queue every job that was at work when an earlier server ended; returns how many.

        Only for the one server that owns all: where several share the tables nothing is changed, as leases end.
        """
        if self.instance.is_shared:
            return 0
        running = self.jobs.table.update().where(self.jobs.c.state == RUNNING)
        return await self._execute(running.values(state=QUEUED, **NO_LEASE))

    async def release_leases(self, job_id: str | None = None) -> int:
        """End the leases of this server (on one job), so that the next that looks goes on; returns how many."""
        c = self.jobs.c
        mine = [c.lease_owner == self.instance.owner, *([] if job_id is None else [c.id == job_id])]
        return await self._release(*mine)

    async def release_all_leases(self) -> int:
        """End every lease, as the one server that owns all does when it starts; returns how many.

        Where several servers share the tables nothing is changed, as leases end.
        """
        return 0 if self.instance.is_shared else await self._release(self.jobs.c.lease_until.is_not(None))

    async def _release(self, *where: sa.ColumnElement[bool]) -> int:
        change = self.jobs.table.update().where(_is_at_work(self), *where)
        return await self._execute(change.values(lease_owner=None, lease_until=0))

    async def count_open(self) -> dict[tuple[str, ...], float]:
        """How many jobs wait or are at work, by kind and state."""
        c = self.jobs.c
        counts = sa.select(c.kind, c.state, sa.func.count()).where(c.state.in_((QUEUED, *self.at_work)))
        return {(kind, state): count for kind, state, count in await self._tuples(counts.group_by(c.kind, c.state))}

    @cached_property
    def _update_listed(self) -> sa.Update:
        return self.jobs.table.update().where(self.jobs.c.id.in_(_IDS))

    @cached_property
    def _select_listed(self) -> sa.Select[Any]:
        return self.jobs.select(self.jobs.c.id.in_(_IDS))

    async def _set(self, job_ids: Collection[str], changes: dict[str, Any]) -> int:
        """Change jobs at work of this server; returns how many of them are."""
        mine = self._mine(job_ids)
        return await self._executor.write(lambda connection: set_values(connection, self._update_mine, changes, mine))

    @cached_property
    def _update_mine(self) -> sa.Update:
        return self.jobs.table.update().where(self._is_mine)

    @cached_property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        """It is at work at this server, and one of those of the parameters `_mine`."""
        c = self.jobs.c
        return sa.and_(_is_at_work(self), c.lease_owner == sa.bindparam("me"), c.id.in_(_IDS))

    def _mine(self, job_ids: Collection[str]) -> dict[str, Any]:
        return {"me": self.instance.owner, "ids": list(job_ids)}

    def _is_free(self) -> sa.ColumnElement[bool]:
        """It waits, or its lease has ended and it is not `held` (a parameter) by this server itself."""
        c = self.jobs.c
        held = sa.bindparam("held", (), sa.Text, expanding=True)
        return sa.or_(c.state == QUEUED, sa.and_(_is_left(self), c.id.not_in(held)))

    def _select_free(
        self, *where: sa.ColumnElement[bool], order_by: Sequence[Any] = (), wait: bool = False
    ) -> sa.Select[Any]:
        """The first free job under conditions; servers that look at once get different ones unless they `wait`.

        Queues keep what they look by, every second: making it costs more than running it.
        """
        chosen = self.jobs.select(self._is_free(), *where).order_by(*order_by).limit(1)
        return chosen.with_for_update(of=self.jobs.table, skip_locked=not wait)

    def _take(
        self,
        connection: sa.Connection,
        chosen: sa.Select[Any],
        now: int,
        seconds: float,
        changes: Mapping[str, Any] = NOTHING,
        **values: Any,
    ) -> J | None:
        """Lease the job that `chosen` finds with `now` and other `values` of its parameters."""
        found: J | None = self.jobs.first(connection, chosen, values | {"now": now})
        if found is None:
            return None
        taken = self._lease(seconds) | {"started_at": found.started_at or now, **changes}
        taken["state"] = RUNNING if found.state == QUEUED else found.state
        one = {"ids": [found.id]}
        set_values(connection, self._update_listed, taken, one)
        return self.jobs.first(connection, self._select_listed, one)

    def _lease(self, seconds: float) -> dict[str, Any]:
        return {"lease_owner": self.instance.owner, "lease_until": database_time() + int(seconds * SECOND)}


def _is_at_work(queue: JobQueue[Any] | type[JobQueue[Any]]) -> sa.ColumnElement[bool]:
    # Not a list: binding one costs more than the rest of the statement.
    return sa.or_(*(queue.jobs.c.state == state for state in queue.at_work))


def _is_left(queue: JobQueue[Any] | type[JobQueue[Any]]) -> sa.ColumnElement[bool]:
    """Whether the lease of a job at work has ended."""
    return sa.and_(_is_at_work(queue), queue.jobs.c.lease_until < database_time())
