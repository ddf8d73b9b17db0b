"""Calls that have ended in watched projects, where calls are kept in another database: an outbox, read in order."""

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from heddle.store.control.mapping import Repository
from heddle.store.control.schema import metadata
from heddle.wire.calls import Ending

ended_calls = sa.Table(
    "ended_calls",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("is_taken", sa.SmallInteger, nullable=False),
    sa.Index("ended_calls_by_project", "project", "seq"),
    sqlite_autoincrement=True,
)
_c = ended_calls.c


def note(connection: sa.Connection, keys: Iterable[tuple[str, str]]) -> None:
    """Add calls (project, id) that are whole now."""
    rows = [{"project": project, "call": call_id, "is_taken": 0} for project, call_id in keys]
    if rows:
        connection.execute(ended_calls.insert(), rows)


class EndedCalls(Repository):
    """What reads the outbox."""

    async def take(self, limit: int, skipping: Collection[str]) -> list[Ending]:
        """The oldest endings of one project as a batch; the same again until it is dropped."""

        def work(connection: sa.Connection) -> list[Ending]:
            oldest = sa.select(_c.project).where(_c.project.not_in(list(skipping))).order_by(_c.seq).limit(1)
            project = connection.execute(oldest).scalar_one_or_none()
            if project is None:
                return []
            mine = _c.project == project
            taken = sa.select(_c.seq, _c.project, _c.call).where(mine, _c.is_taken == 1).order_by(_c.seq)
            rows = connection.execute(taken).all()
            if not rows:
                part = sa.select(_c.seq).where(mine).order_by(_c.seq).limit(limit).subquery()
                first = _c.seq.in_(sa.select(part.c.seq))
                connection.execute(ended_calls.update().where(first).values(is_taken=1))
                rows = connection.execute(taken).all()
            return [Ending(*row) for row in rows]

        return await self._executor.write(work)

    async def count(self) -> int:
        """How many endings wait."""
        return await self._count(ended_calls)

    async def drop(self, project: str) -> None:
        """Forget the batch of a project that was taken."""
        await self._execute(sa.delete(ended_calls).where(_c.project == project, _c.is_taken == 1))
