"""Versions of LoRA adapters: which exist, where they came from, and the folder that holds each."""

from dataclasses import dataclass

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata

adapters = sa.Table(
    "adapters",
    metadata,
    sa.Column("entity", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("base_model", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One immutable version; entity and project are empty for adapters of the whole server."""

    entity: str
    project: str
    name: str
    step: int
    base_model: str
    folder: str
    """Relative to the data folder."""
    created_at: int
    """Microseconds."""
    created_by: str


class Adapters:
    """The table of adapter versions."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def add(self, row: AdapterRow) -> None:
        """Make a version known; raises InvalidRequest when it exists."""

        def work(connection: sa.Connection) -> None:
            if connection.execute(sa.select(adapters.c.step).where(*_version(row))).first() is not None:
                raise InvalidRequest(f"The adapter {row.name}@{row.step} exists already")
            connection.execute(adapters.insert().values(_values(row)))
            audit(connection, row.created_at, row.created_by, "adapter.create", None, _named(row))

        await self._executor.write(work)

    async def remove(self, row: AdapterRow, at: int, user: str) -> None:
        """Forget a version; a no-op when it is gone."""

        def work(connection: sa.Connection) -> None:
            connection.execute(adapters.delete().where(*_version(row)))
            audit(connection, at, user, "adapter.delete", None, _named(row))

        await self._executor.write(work)

    async def all(self) -> list[AdapterRow]:
        """Every version, oldest first."""

        def work(connection: sa.Connection) -> list[AdapterRow]:
            ordered = sa.select(adapters).order_by(adapters.c.created_at, adapters.c.step)
            return [AdapterRow(**row._mapping) for row in connection.execute(ordered)]

        return await self._executor.read(work)


def _version(row: AdapterRow) -> tuple[sa.ColumnElement[bool], ...]:
    columns = adapters.c
    key = ((columns.entity, row.entity), (columns.project, row.project), (columns.name, row.name))
    return (*(column == value for column, value in key), columns.step == row.step)


def _values(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in AdapterRow.__slots__}


def _named(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("entity", "project", "name", "step")}
