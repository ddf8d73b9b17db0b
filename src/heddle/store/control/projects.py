"""Projects that are known, their settings and runtimes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from heddle.store.control.audit import audit
from heddle.store.control.repository import (
    Executor,
    Instance,
    Integer,
    Key,
    Mapped,
    Prepared,
    ProjectCache,
    Repository,
    metadata,
    reads,
    upsert,
    writes,
)
from heddle.wire import times


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """A known project, what it was said to be, and how many days its calls are kept (None: for ever)."""

    project: Key[str]
    created_at: int
    description: str | None
    retention_days: Integer | None
    redaction: dict[str, Any] | None = None
    """The kinds of secrets and the paths that are taken out of what it is sent; None: as the setting says."""


_projects = Mapped(ProjectRow, "projects")
projects = _projects.table
_read_retention = Prepared(sa.select(projects.c.retention_days).where(projects.c.project == sa.bindparam("of_project")))

heartbeat = sa.Table(
    "heartbeat",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
)

_SIZES = sa.text(
    "SELECT (SELECT COALESCE(SUM(size), 0) FROM object_versions WHERE project = :project AND deleted_at IS NULL),"
    " (SELECT COALESCE(SUM(size), 0) FROM files WHERE project = :project)"
)
_KNOWN = sa.text(
    "SELECT EXISTS (SELECT 1 FROM projects WHERE project = :project)"
    " OR EXISTS (SELECT 1 FROM object_versions WHERE project = :project)"
)


class StoredBytes(NamedTuple):
    """What a project holds beside its calls and tables, in bytes."""

    objects: int
    files: int


class Projects(Repository):
    """The project table."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        super().__init__(executor, instance)
        self._retention: ProjectCache[int | None] = ProjectCache(self.instance)

    @reads
    def exists(self, connection: sa.Connection, project: str) -> bool:
        """True once the project was made known, or holds an object."""
        return bool(connection.execute(_KNOWN, {"project": project}).scalar_one())

    @reads
    def stored_bytes(self, connection: sa.Connection, project: str) -> StoredBytes:
        """How much the project holds beside its calls and tables."""
        return StoredBytes(*connection.execute(_SIZES, {"project": project}).one())

    async def description(self, project: str) -> str | None:
        """What the project was said to be, if anything."""
        found = await self._first(_projects, projects.c.project == project)
        return None if found is None else found.description

    @writes
    def make(self, connection: sa.Connection, project: str, description: str | None) -> str | None:
        """Make the project known; returns its description (the old one where none is given now)."""
        known = _find(connection, project)
        if known is None:
            _projects.insert(connection, ProjectRow(project, times.now(), description, None))
            return description
        if description is None:
            return known.description
        connection.execute(projects.update().where(projects.c.project == project).values(description=description))
        return description

    async def retention(self, project: str) -> int | None:
        """How many days calls are kept, from memory where no other server writes; None: for ever."""

        def read(connection: sa.Connection) -> int | None:
            days: int | None = _read_retention(connection, of_project=project).scalar()
            return days

        return await self._retention.get(project, lambda: self._executor.read(read))

    def forget(self, project: str) -> None:
        """Read the retention of a project anew, as it has changed."""
        self._retention.forget(project)

    async def set_retention(self, project: str, days: int | None, user: str) -> None:
        """Keep calls for so many days from now on; None: for ever."""
        try:
            await self._set_retention(project, days, user)
        finally:
            self.forget(project)

    @writes
    def _set_retention(self, connection: sa.Connection, project: str, days: int | None, user: str) -> None:
        known = _find(connection, project)
        if known is None:
            _projects.insert(connection, ProjectRow(project, times.now(), None, days))
        else:
            connection.execute(projects.update().where(projects.c.project == project).values(retention_days=days))
        before = None if known is None else known.retention_days
        audit(connection, times.now(), user, "retention.update", project, {"before": before, "after": days})

    @writes
    def write_heartbeat(self, connection: sa.Connection) -> None:
        """Commit a tiny write; raises what any other write would."""
        change = heartbeat.update().where(heartbeat.c.number == 0).values(at=times.now())
        if not connection.execute(change).rowcount:
            connection.execute(heartbeat.insert().values(number=0, at=times.now()))

    async def with_retention(self) -> list[tuple[str, int]]:
        """Every project whose calls are deleted some day, and after how many days."""
        found = await self._all(_projects, _projects.select(projects.c.retention_days.is_not(None)))
        return [(row.project, row.retention_days or 0) for row in found]


def _find(connection: sa.Connection, project: str) -> ProjectRow | None:
    return _projects.first(connection, _projects.select(projects.c.project == project))


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

    @writes
    def apply(self, connection: sa.Connection, row: RuntimeRow) -> None:
        """Store a runtime in place of the one of its name."""
        upsert(connection, runtimes, ("project", "name"), _runtimes.values(row))
        said = {"name": row.name, "base_url": row.base_url, "models": list(row.max_tokens)[:100]}
        audit(connection, row.updated_at, row.updated_by, "runtime.apply", row.project, said)

    async def read(self, project: str, name: str) -> RuntimeRow | None:
        """A runtime by its name."""
        return await self._first(_runtimes, runtimes.c.project == project, runtimes.c.name == name)

    async def all(self, project: str) -> list[RuntimeRow]:
        """The project's runtimes by name."""
        return await self._all(_runtimes, _runtimes.select(runtimes.c.project == project).order_by(runtimes.c.name))


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A provider that somebody entered; of its key only the last characters can be shown."""

    name: Key[str]
    base_url: str
    secret: str = field(repr=False)
    """The key, encrypted; empty for none."""
    hint: str
    updated_at: int
    updated_by: str


_providers = Mapped(ProviderRow, "providers")
providers = _providers.table


class Providers(Repository):
    """Providers of models that were entered while the server runs."""

    async def all(self) -> list[ProviderRow]:
        """Every provider, by name."""
        return await self._all(_providers, _providers.select().order_by(providers.c.name))

    @writes
    def save(self, connection: sa.Connection, row: ProviderRow) -> None:
        """Store a provider in place of the one of its name, and say so in the audit log."""
        upsert(connection, providers, ["name"], _providers.values(row))
        audit(connection, row.updated_at, row.updated_by, "provider.save", None, {"name": row.name})

    @writes
    def delete(self, connection: sa.Connection, name: str, user: str, at: int) -> bool:
        """Forget a provider and its key; false for an unknown one."""
        found = connection.execute(providers.delete().where(providers.c.name == name)).rowcount > 0
        if found:
            audit(connection, at, user, "provider.delete", None, {"name": name})
        return found
