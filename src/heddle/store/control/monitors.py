"""Calls that wait to be scored by a monitor until their trace or thread has been quiet for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.mapping import Key, Mapped, Repository


@dataclass(frozen=True, slots=True)
class Waiting:
    """The newest call of a trace or thread (`group_key`), and when its time has come. Instants in microseconds."""

    project: Key[str]
    monitor: Key[str]
    group_key: Key[str]
    call_id: str
    due_at: int


_waiting = Mapped(Waiting, "monitor_waiting", sa.Index("monitor_waiting_due", "due_at"))
monitor_waiting = _waiting.table
_c = monitor_waiting.c


class MonitorWaits(Repository):
    """The verbs of waiting calls. Project ids are internal, `monitor` is an object's name."""

    async def put(self, rows: Sequence[Waiting]) -> None:
        """Let calls wait; a later call of the same group takes the place of the one before."""

        def work(connection: sa.Connection) -> None:
            for row in rows:
                connection.execute(monitor_waiting.delete().where(_one(row)))
                _waiting.insert(connection, row)

        await self._executor.write(work, 200 * len(rows))

    async def due(self, now: int, limit: int) -> list[Waiting]:
        """Those whose time has come, oldest first."""
        return await self._all(_waiting, _waiting.select(_c.due_at <= now).order_by(_c.due_at).limit(limit))

    async def next_due(self) -> int | None:
        """When the next one's time comes, None when none waits."""
        return await self._scalar(sa.select(sa.func.min(_c.due_at)))

    async def done(self, rows: Sequence[Waiting]) -> None:
        """Forget these, unless a later call has taken their place."""

        def work(connection: sa.Connection) -> None:
            for row in rows:
                connection.execute(monitor_waiting.delete().where(_one(row), _c.call_id == row.call_id))

        await self._executor.write(work, 200)


def _one(row: Waiting) -> sa.ColumnElement[bool]:
    return sa.and_(_c.project == row.project, _c.monitor == row.monitor, _c.group_key == row.group_key)
