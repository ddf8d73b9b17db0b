"""Projects that are known, their settings, and the audit log."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from heddle.store.control.mapping import Indexed, Integer, Key, Mapped, Repository
from heddle.store.control.schema import metadata
from heddle.wire import times


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """A known project, what it was said to be, and how many days its calls are kept (None: for ever)."""

    project: Key[str]
    created_at: int
    description: str | None
    retention_days: Integer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Who did what."""

    number: Key[Integer] = 0
    at: Indexed[int]
    user: str
    action: str
    project: Indexed[str | None]
    details: dict[str, Any]


_projects, _audit = Mapped(ProjectRow, "projects"), Mapped(AuditRow, "audit_log")
projects, audit_log = _projects.table, _audit.table


def audit(
    connection: sa.Connection, at: int, user: str, action: str, project: str | None, details: dict[str, Any]
) -> None:
    """Note in the caller's transaction that `user` did `action`; `at` in microseconds, `project` internal or None."""
    _audit.insert(connection, AuditRow(at=at, user=user, action=action, project=project, details=details))


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

    async def exists(self, project: str) -> bool:
        """True once the project was made known, or holds an object."""
        return await self._executor.read(
            lambda connection: bool(connection.execute(_KNOWN, {"project": project}).scalar_one())
        )

    async def stored_bytes(self, project: str) -> StoredBytes:
        """How much the project holds beside its calls and tables."""
        return await self._executor.read(
            lambda connection: StoredBytes(*connection.execute(_SIZES, {"project": project}).one())
        )

    async def description(self, project: str) -> str | None:
        """What the project was said to be, if anything."""
        found = await self._first(_projects, projects.c.project == project)
        return None if found is None else found.description

    async def make(self, project: str, description: str | None) -> str | None:
        """Make the project known; returns its description (the old one where none is given now)."""

        def work(connection: sa.Connection) -> str | None:
            known = _find(connection, project)
            if known is None:
                _projects.insert(connection, ProjectRow(project, times.now(), description, None))
                return description
            if description is None:
                return known.description
            change = projects.update().where(projects.c.project == project).values(description=description)
            connection.execute(change)
            return description

        return await self._executor.write(work)

    async def retention(self, project: str) -> int | None:
        """How many days calls are kept; None: for ever."""
        found = await self._first(_projects, projects.c.project == project)
        return None if found is None else found.retention_days

    async def set_retention(self, project: str, days: int | None, user: str) -> None:
        """Keep calls for so many days from now on; None: for ever."""

        def work(connection: sa.Connection) -> None:
            known = _find(connection, project)
            if known is None:
                _projects.insert(connection, ProjectRow(project, times.now(), None, days))
            else:
                change = projects.update().where(projects.c.project == project).values(retention_days=days)
                connection.execute(change)
            before = None if known is None else known.retention_days
            audit(connection, times.now(), user, "retention.update", project, {"before": before, "after": days})

        await self._executor.write(work)

    async def beat(self) -> None:
        """Commit a tiny write; raises what any other write would."""

        def work(connection: sa.Connection) -> None:
            change = heartbeat.update().where(heartbeat.c.number == 0).values(at=times.now())
            if not connection.execute(change).rowcount:
                connection.execute(heartbeat.insert().values(number=0, at=times.now()))

        await self._executor.write(work)

    async def with_retention(self) -> list[tuple[str, int]]:
        """Every project whose calls are deleted some day, and after how many days."""
        found = await self._all(_projects, _projects.select(projects.c.retention_days.is_not(None)))
        return [(row.project, row.retention_days or 0) for row in found]

    async def note(self, user: str, action: str, project: str | None, details: dict[str, Any]) -> None:
        """Add one line to the audit log."""
        await self._executor.write(lambda connection: audit(connection, times.now(), user, action, project, details))

    async def audited(self, project: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """The audit log, newest first; of one project, or of all."""
        query = sa.select(audit_log).order_by(audit_log.c.number.desc()).limit(limit)
        if project is not None:
            query = query.where(audit_log.c.project == project)
        return [{**row._mapping, "at": times.to_iso(row.at)} for row in await self._tuples(query)]


def _find(connection: sa.Connection, project: str) -> ProjectRow | None:
    return _projects.first(connection, _projects.select(projects.c.project == project))
