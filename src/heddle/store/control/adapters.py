"""Versions of LoRA adapters: which exist, where they came from, and the folder that holds each."""

from dataclasses import dataclass

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.changes import ADAPTERS, count_change
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

adapter_names = sa.Table(
    "adapter_names",
    metadata,
    sa.Column("entity", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("latest", sa.BigInteger, nullable=False),
)
"""The names of trainable models, and which step each one means."""

Name = tuple[str, str, str]
"""Entity, project, name."""


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
            count_change(connection, ADAPTERS)
            audit(connection, row.created_at, row.created_by, "adapter.create", None, _named(row))

        await self._executor.write(work)

    async def remove(self, row: AdapterRow, at: int, user: str) -> None:
        """Forget a version; a no-op when it is gone."""

        def work(connection: sa.Connection) -> None:
            connection.execute(adapters.delete().where(*_version(row)))
            count_change(connection, ADAPTERS)
            audit(connection, at, user, "adapter.delete", None, _named(row))

        await self._executor.write(work)

    async def point(self, name: Name, step: int) -> None:
        """Let a trainable name mean a step from now on."""

        def work(connection: sa.Connection) -> None:
            changed = connection.execute(adapter_names.update().where(*_name(name)).values(latest=step))
            if not changed.rowcount:
                values = dict(zip(("entity", "project", "name"), name, strict=True))
                connection.execute(adapter_names.insert().values(values | {"latest": step}))
            count_change(connection, ADAPTERS)

        await self._executor.write(work)

    async def forget(self, name: Name) -> None:
        """A trainable name ends; its versions are removed one by one."""

        def work(connection: sa.Connection) -> None:
            connection.execute(adapter_names.delete().where(*_name(name)))
            count_change(connection, ADAPTERS)

        await self._executor.write(work)

    async def pointers(self) -> dict[Name, int]:
        """The step that every trainable name means."""

        def work(connection: sa.Connection) -> dict[Name, int]:
            rows = connection.execute(sa.select(adapter_names))
            return {(row.entity, row.project, row.name): row.latest for row in rows}

        return await self._executor.read(work)

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


def _name(name: Name) -> tuple[sa.ColumnElement[bool], ...]:
    columns = adapter_names.c
    return (columns.entity == name[0], columns.project == name[1], columns.name == name[2])


def _values(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in AdapterRow.__slots__}


def _named(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("entity", "project", "name", "step")}
