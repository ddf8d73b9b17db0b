"""A durable queue as a table: jobs wait, are leased to one server while it works on them, and end.

A job whose lease has ended is taken by the next server that looks; leases end by the clock of the database.
"""

from collections.abc import Collection
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa

from heddle.store.control.leases import SECOND, database_time
from heddle.store.control.mapping import Mapped, Repository

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
NO_LEASE: dict[str, Any] = {"lease_owner": None, "lease_until": None}
J = TypeVar("J", bound=Any)


class JobQueue(Repository, Generic[J]):
    """What queues have in common; the table has id, number, state, cancel_asked, started_at and the lease."""

    jobs: ClassVar[Mapped[Any]]
    at_work: ClassVar[tuple[str, ...]] = (RUNNING,)

    async def held(self) -> dict[str, bool]:
        """The jobs at work at this server, by id; true for those that somebody asked to end."""
        c = self.jobs.c
        mine = sa.and_(c.state.in_(self.at_work), c.lease_owner == self.instance.owner)
        return {row.id: row.cancel_asked for row in await self._tuples(sa.select(c.id, c.cancel_asked).where(mine))}

    async def unended(self, job_ids: Collection[str]) -> set[str]:
        """Those of the jobs that wait or are at work, at any server."""
        c = self.jobs.c
        if not job_ids:
            return set()
        return {row.id for row in await self._tuples(sa.select(c.id).where(c.id.in_(job_ids), c.ended_at.is_(None)))}

    async def renew(self, job_ids: Collection[str], seconds: float) -> None:
        """Keep these jobs at work of this server for a while longer.

        One that it took without learning of it (the answer to the commit was lost) is not kept, so that it is taken
        again.
        """
        await self._set(job_ids, self._lease(seconds))

    async def _set(self, job_ids: Collection[str], changes: dict[str, Any]) -> int:
        """Change jobs at work of this server; returns how many of them are."""
        return await self._execute(self.jobs.table.update().where(self._is_mine(job_ids)).values(changes))

    def _is_mine(self, job_ids: Collection[str]) -> sa.ColumnElement[bool]:
        c = self.jobs.c
        return sa.and_(c.state.in_(self.at_work), c.lease_owner == self.instance.owner, c.id.in_(list(job_ids)))

    def _is_free(self, held: Collection[str] = ()) -> sa.ColumnElement[bool]:
        """It waits, or its lease has ended and it is not `held` by this server itself."""
        c = self.jobs.c
        left = sa.and_(c.state.in_(self.at_work), c.lease_until < database_time(), c.id.not_in(list(held)))
        return sa.or_(c.state == QUEUED, left)

    def _take(
        self,
        connection: sa.Connection,
        chosen: sa.Select[Any],
        now: int,
        seconds: float,
        changes: dict[str, Any] | None = None,
        wait: bool = False,
    ) -> J | None:
        """Lease the first of the chosen jobs; unless they `wait`, servers that look at once get different ones."""
        c = self.jobs.c
        locked = chosen.limit(1).with_for_update(of=self.jobs.table, skip_locked=not wait)
        found: J | None = self.jobs.first(connection, locked)
        if found is None:
            return None
        taken = self._lease(seconds) | {"started_at": found.started_at or now, **(changes or {})}
        taken["state"] = RUNNING if found.state == QUEUED else found.state
        connection.execute(self.jobs.table.update().where(c.id == found.id).values(taken))
        return self.jobs.first(connection, self.jobs.select(c.id == found.id))

    def _lease(self, seconds: float) -> dict[str, Any]:
        return {"lease_owner": self.instance.owner, "lease_until": database_time() + int(seconds * SECOND)}
