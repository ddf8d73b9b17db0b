"""Projects that are known, their settings, and the audit log."""

from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from heddle.store.control.schema import Executor, metadata
from heddle.wire import times

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("description", sa.Text, nullable=True),
    sa.Column("retention_days", sa.Integer, nullable=True),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=True, index=True),
    sa.Column("details", sa.Text, nullable=False),
)


def audit(
    connection: sa.Connection, at: int, user: str, action: str, project: str | None, details: dict[str, Any]
) -> None:
    """Note in the caller's transaction that `user` did `action`; `at` in microseconds, `project` internal or None."""
    row = {"at": at, "user": user, "action": action, "project": project, "details": orjson.dumps(details).decode()}
    connection.execute(audit_log.insert().values(row))


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


class Projects:
    """The project table."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

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
        found = await self._executor.read(lambda connection: _find(connection, project))
        return None if found is None else found.description

    async def make(self, project: str, description: str | None) -> str | None:
        """Make the project known; returns its description (the old one where none is given now)."""

        def work(connection: sa.Connection) -> str | None:
            known = _find(connection, project)
            if known is None:
                _insert(connection, project, description, None)
                return description
            if description is None:
                kept: str | None = known.description
                return kept
            change = projects.update().where(projects.c.project == project).values(description=description)
            connection.execute(change)
            return description

        return await self._executor.write(work)

    async def retention(self, project: str) -> int | None:
        """How many days calls are kept; None: for ever."""
        found = await self._executor.read(lambda connection: _find(connection, project))
        return None if found is None else found.retention_days

    async def set_retention(self, project: str, days: int | None, user: str) -> None:
        """Keep calls for so many days from now on; None: for ever."""

        def work(connection: sa.Connection) -> None:
            known = _find(connection, project)
            if known is None:
                _insert(connection, project, None, days)
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
        query = sa.select(projects.c.project, projects.c.retention_days).where(projects.c.retention_days.is_not(None))
        return await self._executor.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])

    async def note(self, user: str, action: str, project: str | None, details: dict[str, Any]) -> None:
        """Add one line to the audit log."""
        await self._executor.write(lambda connection: audit(connection, times.now(), user, action, project, details))

    async def audited(self, project: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """The audit log, newest first; of one project, or of all."""
        query = sa.select(audit_log).order_by(audit_log.c.number.desc()).limit(limit)
        if project is not None:
            query = query.where(audit_log.c.project == project)
        return await self._executor.read(lambda connection: [_audited(row) for row in connection.execute(query)])


def _find(connection: sa.Connection, project: str) -> Any:
    return connection.execute(sa.select(projects).where(projects.c.project == project)).first()


def _insert(connection: sa.Connection, project: str, description: str | None, days: int | None) -> None:
    row = {"project": project, "created_at": times.now(), "description": description, "retention_days": days}
    connection.execute(projects.insert().values(row))


def _audited(row: Any) -> dict[str, Any]:
    return {**row._mapping, "at": times.to_iso(row.at), "details": orjson.loads(row.details)}
