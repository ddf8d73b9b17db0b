"""Who does what, where several servers share the control tables: one server's name, and what only one does at a time.

Leases end by the clock of the database, so that the clocks of the servers need not agree.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from heddle.store.control.mapping import Key, Mapped, Repository

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


class Leases(Repository):
    """What one server at a time does for all: names that are taken for a while. A server that is alone has them all."""

    async def take(self, name: str, seconds: float) -> bool:
        """Take a name, or keep it longer; False while it is another server's."""
        if not self.instance.is_shared:
            return True
        row = {"owner": self.instance.owner, "lease_until": database_time() + int(seconds * SECOND)}

        def work(connection: sa.Connection) -> bool:
            free = sa.or_(leases.c.owner == self.instance.owner, leases.c.lease_until < database_time())
            found = connection.execute(sa.select(free).where(leases.c.name == name)).first()
            if found is None:
                connection.execute(leases.insert().values(row | {"name": name}))
            elif found[0]:
                connection.execute(leases.update().where(leases.c.name == name).values(row))
            return found is None or bool(found[0])

        return await self._executor.write(work)

    async def holds(self, name: str) -> bool:
        """True while the name is this server's."""
        if not self.instance.is_shared:
            return True
        c = leases.c
        mine = sa.and_(c.name == name, c.owner == self.instance.owner, c.lease_until >= database_time())
        return await self._scalar(sa.select(c.name).where(mine)) is not None

    async def give_back(self) -> None:
        """Let go of every name of this server, as it stops."""
        await self._execute(leases.delete().where(leases.c.owner == self.instance.owner))
