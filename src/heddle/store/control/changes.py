"""How often things changed that servers keep in memory: a server that sees another number reads them anew."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from heddle.store.control.mapping import Key, Mapped, Repository

ADAPTERS: Final = "adapters"
LIMITS: Final = "limits"
MONITORS: Final = "monitors"


@dataclass(frozen=True, slots=True)
class Change:
    """How often a thing changed."""

    name: Key[str]
    number: int


changes = Mapped(Change, "changes").table


def count_change(connection: sa.Connection, name: str) -> None:
    """Say in the transaction of a change that there was one."""
    change = changes.update().where(changes.c.name == name).values(number=changes.c.number + 1)
    if not connection.execute(change).rowcount:
        connection.execute(changes.insert().values(name=name, number=1))


def number_of(connection: sa.Connection, name: str) -> int:
    """How often a thing changed, as a transaction sees it."""
    return connection.execute(sa.select(changes.c.number).where(changes.c.name == name)).scalar() or 0


class Changes(Repository):
    """Numbers of changes; where one server is alone it knows its own, and nothing is read."""

    async def count(self, name: str) -> None:
        """Say that a thing changed, after its commit."""
        if self.instance.is_shared:
            await self._executor.write(lambda connection: count_change(connection, name))

    async def number(self, name: str) -> int:
        """How often a thing changed; 0 for ever where no other server can change it."""
        if not self.instance.is_shared:
            return 0
        return await self._executor.read(lambda connection: number_of(connection, name))
