"""Versions of LoRA adapters: which exist, where they came from, and the folder that holds each."""

from dataclasses import dataclass

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.changes import ADAPTERS, count_change
from heddle.store.control.mapping import Key, Mapped, Repository, Unique, upsert
from heddle.store.control.projects import audit

Name = tuple[str, str, str]
"""Entity, project, name."""


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One immutable version; entity and project are empty for adapters of the whole server."""

    entity: Key[str]
    project: Key[str]
    name: Key[str]
    step: Key[int]
    base_model: str
    folder: Unique[str]
    """Relative to the data folder."""
    created_at: int
    """Microseconds."""
    created_by: str


@dataclass(frozen=True, slots=True)
class AdapterName:
    """The name of a trainable model, and which step it means."""

    entity: Key[str]
    project: Key[str]
    name: Key[str]
    latest: int


_versions, _names = Mapped(AdapterRow, "adapters"), Mapped(AdapterName, "adapter_names")
adapters, adapter_names = _versions.table, _names.table
_IDENTITY = ("entity", "project", "name")


class Adapters(Repository):
    """The table of adapter versions."""

    async def add(self, row: AdapterRow) -> None:
        """Make a version known; raises InvalidRequest when it exists."""

        def work(connection: sa.Connection) -> None:
            if _versions.first(connection, _versions.select(*_version(row))) is not None:
                raise InvalidRequest(f"The adapter {row.name}@{row.step} exists already")
            _versions.insert(connection, row)
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
            upsert(connection, adapter_names, _IDENTITY, _names.values(AdapterName(*name, step)))
            count_change(connection, ADAPTERS)

        await self._executor.write(work)

    async def forget(self, name: Name) -> None:
        """A trainable name ends; its versions are removed one by one."""

        def work(connection: sa.Connection) -> None:
            mine = (_names.c[column] == value for column, value in zip(_IDENTITY, name, strict=True))
            connection.execute(adapter_names.delete().where(*mine))
            count_change(connection, ADAPTERS)

        await self._executor.write(work)

    async def pointers(self) -> dict[Name, int]:
        """The step that every trainable name means."""
        return {(row.entity, row.project, row.name): row.latest for row in await self._all(_names, _names.select())}

    async def all(self) -> list[AdapterRow]:
        """Every version, oldest first."""
        return await self._all(_versions, _versions.select().order_by(adapters.c.created_at, adapters.c.step))


def _version(row: AdapterRow) -> list[sa.ColumnElement[bool]]:
    return [adapters.c[name] == value for name, value in _named(row).items()]


def _named(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in (*_IDENTITY, "step")}
