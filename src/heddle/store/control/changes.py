"""How often things changed that servers keep in memory: a server that sees another number reads them anew."""

from typing import Final

import sqlalchemy as sa

from heddle.store.control.leases import Instance
from heddle.store.control.schema import Executor, metadata

ADAPTERS: Final = "adapters"
LIMITS: Final = "limits"
MONITORS: Final = "monitors"

changes = sa.Table(
    "changes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)


def count_change(connection: sa.Connection, name: str) -> None:
    """Say in the transaction of a change that there was one."""
    change = changes.update().where(changes.c.name == name).values(number=changes.c.number + 1)
    if not connection.execute(change).rowcount:
        connection.execute(changes.insert().values(name=name, number=1))


def number_of(connection: sa.Connection, name: str) -> int:
    """How often a thing changed, as a transaction sees it."""
    return connection.execute(sa.select(changes.c.number).where(changes.c.name == name)).scalar() or 0


class Changes:
    """Numbers of changes; where one server is alone it knows its own, and nothing is read."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self.instance = instance or Instance()

    async def count(self, name: str) -> None:
        """Say that a thing changed, after its commit."""
        if self.instance.is_shared:
            await self._executor.write(lambda connection: count_change(connection, name))

    async def number(self, name: str) -> int:
        """How often a thing changed; 0 for ever where no other server can change it."""
        if not self.instance.is_shared:
            return 0
        return await self._executor.read(lambda connection: number_of(connection, name))
