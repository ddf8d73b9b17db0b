"""Calls that wait to be scored by a monitor until their trace or thread has been quiet for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.schema import Executor, metadata

monitor_waiting = sa.Table(
    "monitor_waiting",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("group_key", sa.Text, primary_key=True),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("due_at", sa.BigInteger, nullable=False),
    sa.Index("monitor_waiting_due", "due_at"),
)
_c = monitor_waiting.c


@dataclass(frozen=True, slots=True)
class Waiting:
    """The newest call of a trace or thread (`group_key`), and when its time has come. Instants in microseconds."""

    project: str
    monitor: str
    group_key: str
    call_id: str
    due_at: int


class MonitorWaits:
    """The verbs of waiting calls. Project ids are internal, `monitor` is an object's name."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def put(self, rows: Sequence[Waiting]) -> None:
        """Let calls wait; a later call of the same group takes the place of the one before."""

        def work(connection: sa.Connection) -> None:
            for row in rows:
                connection.execute(monitor_waiting.delete().where(_one(row)))
                connection.execute(monitor_waiting.insert().values({n: getattr(row, n) for n in Waiting.__slots__}))

        await self._executor.write(work, 200 * len(rows))

    async def due(self, now: int, limit: int) -> list[Waiting]:
        """Those whose time has come, oldest first."""
        chosen = sa.select(monitor_waiting).where(_c.due_at <= now).order_by(_c.due_at).limit(limit)
        return await self._executor.read(
            lambda connection: [Waiting(**row._mapping) for row in connection.execute(chosen)]
        )

    async def next_due(self) -> int | None:
        """When the next one's time comes, None when none waits."""
        return await self._executor.read(
            lambda connection: connection.execute(sa.select(sa.func.min(_c.due_at))).scalar()
        )

    async def done(self, rows: Sequence[Waiting]) -> None:
        """Forget these, unless a later call has taken their place."""

        def work(connection: sa.Connection) -> None:
            for row in rows:
                connection.execute(monitor_waiting.delete().where(_one(row), _c.call_id == row.call_id))

        await self._executor.write(work, 200)


def _one(row: Waiting) -> sa.ColumnElement[bool]:
    return sa.and_(_c.project == row.project, _c.monitor == row.monitor, _c.group_key == row.group_key)
