"""What exports held that was not stored, counted by project, signal and cause."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.repository import Key, Mapped, Repository, dialect_insert


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """How many items were rejected, when the last of them came (microseconds), and why that was."""

    project: Key[str]
    signal: Key[str]
    cause: Key[str]
    count: int
    last_at: int
    message: str


_rejections = Mapped(RejectionRow, "rejections")
rejections = _rejections.table


class Rejections(Repository):
    """What can be done with these counts; projects are internal ids, empty where none was named."""

    async def add(self, rows: Sequence[RejectionRow]) -> None:
        """Add to the counts; time and message are those of the last."""

        def work(connection: sa.Connection) -> None:
            for row in rows:
                statement = dialect_insert(connection, rejections).values(_rejections.values(row))
                changed = {
                    "count": rejections.c.count + statement.excluded.count,
                    "last_at": statement.excluded.last_at,
                    "message": statement.excluded.message,
                }
                connection.execute(
                    statement.on_conflict_do_update(index_elements=["project", "signal", "cause"], set_=changed)
                )

        if rows:
            await self._executor.write(work, 500 * len(rows))

    async def of_project(self, project: str, since: int) -> list[RejectionRow]:
        """What was rejected last at or after an instant, the newest first."""
        query = _rejections.select(rejections.c.project == project, rejections.c.last_at >= since)
        return await self._all(_rejections, query.order_by(rejections.c.last_at.desc(), rejections.c.cause))
