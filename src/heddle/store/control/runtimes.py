"""Custom runtimes of projects: named servers of models, each with the models that it runs.

Contract: trace-evals, section 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.mapping import Key, Mapped, Repository, upsert
from heddle.store.control.projects import audit


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """One runtime; `max_tokens` are the most tokens of an answer by model, in the order of the request."""

    project: Key[str]
    name: Key[str]
    base_url: str
    api_key_secret: str | None
    """The environment variable of the server that holds the key; never the key."""
    headers: Mapping[str, str]
    max_tokens: Mapping[str, int]
    updated_at: int
    updated_by: str


_runtimes = Mapped(RuntimeRow, "runtimes")
runtimes = _runtimes.table


class Runtimes(Repository):
    """What can be done with runtimes; projects are internal ids."""

    async def apply(self, row: RuntimeRow) -> None:
        """Store a runtime in place of the one of its name."""

        def work(connection: sa.Connection) -> None:
            upsert(connection, runtimes, ("project", "name"), _runtimes.values(row))
            said = {"name": row.name, "base_url": row.base_url, "models": list(row.max_tokens)[:100]}
            audit(connection, row.updated_at, row.updated_by, "runtime.apply", row.project, said)

        await self._executor.write(work, 500)

    async def read(self, project: str, name: str) -> RuntimeRow | None:
        """A runtime by its name."""
        return await self._first(_runtimes, runtimes.c.project == project, runtimes.c.name == name)

    async def all(self, project: str) -> list[RuntimeRow]:
        """The project's runtimes by name."""
        return await self._all(_runtimes, _runtimes.select(runtimes.c.project == project).order_by(runtimes.c.name))
