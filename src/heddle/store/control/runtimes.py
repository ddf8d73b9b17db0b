"""Custom runtimes of projects: named servers of models, each with the models that it runs.

Contract: trace-evals, section 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata

runtimes = sa.Table(
    "runtimes",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("base_url", sa.Text, nullable=False),
    sa.Column("api_key_secret", sa.Text, nullable=True),
    sa.Column("headers", sa.Text, nullable=False),
    sa.Column("max_tokens", sa.Text, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("updated_by", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """One runtime; `max_tokens` are the most tokens of an answer by model, in the order of the request."""

    project: str
    name: str
    base_url: str
    api_key_secret: str | None
    """The environment variable of the server that holds the key; never the key."""
    headers: Mapping[str, str]
    max_tokens: Mapping[str, int]
    updated_at: int
    updated_by: str


class Runtimes:
    """What can be done with runtimes; projects are internal ids."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def apply(self, row: RuntimeRow) -> None:
        """Store a runtime in place of the one of its name."""
        values = {name: getattr(row, name) for name in RuntimeRow.__slots__}
        values |= {name: orjson.dumps(values[name]).decode() for name in ("headers", "max_tokens")}

        def work(connection: sa.Connection) -> None:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            statement = insert(runtimes).values(values)
            changed = {name: statement.excluded[name] for name in values if name not in ("project", "name")}
            connection.execute(statement.on_conflict_do_update(index_elements=["project", "name"], set_=changed))
            said = {"name": row.name, "base_url": row.base_url, "models": list(row.max_tokens)[:100]}
            audit(connection, row.updated_at, row.updated_by, "runtime.apply", row.project, said)

        await self._executor.write(work, 500)

    async def read(self, project: str, name: str) -> RuntimeRow | None:
        """A runtime by its name."""
        query = sa.select(runtimes).where(runtimes.c.project == project, runtimes.c.name == name)
        found = await self._executor.read(lambda connection: [_row(row) for row in connection.execute(query)])
        return found[0] if found else None

    async def all(self, project: str) -> list[RuntimeRow]:
        """The project's runtimes by name."""
        query = sa.select(runtimes).where(runtimes.c.project == project).order_by(runtimes.c.name)
        return await self._executor.read(lambda connection: [_row(row) for row in connection.execute(query)])


def _row(row: sa.Row[Any]) -> RuntimeRow:
    values = dict(row._mapping)
    return RuntimeRow(**values | {name: orjson.loads(values[name]) for name in ("headers", "max_tokens")})
