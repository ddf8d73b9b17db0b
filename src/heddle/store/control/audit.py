"""The audit log: who did what in which project, when and from where."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import sqlalchemy as sa

from heddle.store.control.repository import Indexed, Integer, Key, Mapped, Repository, begins_with, writes
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.keys import ADDRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Who did what."""

    number: Key[Integer] = 0
    at: Indexed[int]
    user: str
    action: str
    project: Indexed[str | None]
    details: dict[str, Any]
    address: Annotated[str, sa.text("''")] = ""
    """Where the request came from; empty for what the server did by itself."""


_audit = Mapped(AuditRow, "audit_log")
audit_log = _audit.table
_c = audit_log.c
_NOTED = 500


def audit(
    connection: sa.Connection, at: int, user: str, action: str, project: str | None, details: dict[str, Any]
) -> None:
    """Note in the caller's transaction that `user` did `action`; `at` in microseconds, `project` internal or None."""
    row = AuditRow(at=at, user=user, action=action, project=project, details=details, address=ADDRESS.get())
    _audit.insert(connection, row)


def purge(connection: sa.Connection, table: sa.Table, project: str, ids: Sequence[str], user: str, action: str) -> int:
    """Delete rows of a table by their ids and say so in the audit log; returns how many there were."""
    deleted = 0
    for part in batched(ids):
        deleted += connection.execute(sa.delete(table).where(table.c.project == project, table.c.id.in_(part))).rowcount
    if deleted:
        audit(connection, times.now(), user, action, project, {"ids": list(ids[:_NOTED]), "deleted": deleted})
    return deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which rows: of these projects (internal; None: of all, and of none), this user, an action or its beginning."""

    projects: Sequence[str] | None = None
    user: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None
    before: int | None = None
    """Rows with smaller numbers: those after the last one of a page."""

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The WHERE clause."""
        given: list[tuple[object, sa.ColumnElement[bool]]] = [
            (self.projects, _c.project.in_(self.projects or ())),
            (self.user, _c.user == self.user),
            (self.action, begins_with(_c.action, self.action or "")),
            (self.since, _c.at >= (self.since or 0)),
            (self.until, _c.at < (self.until or 0)),
            (self.before, _c.number < (self.before or 0)),
        ]
        return [condition for value, condition in given if value is not None]


class AuditLog(Repository):
    """What can be done with the audit log."""

    async def note(self, user: str, action: str, project: str | None, details: dict[str, Any]) -> None:
        """Add a row."""
        await self._executor.write(lambda connection: audit(connection, times.now(), user, action, project, details))

    @writes
    def add(self, connection: sa.Connection, rows: Sequence[AuditRow]) -> None:
        """Add rows."""
        for row in rows:
            _audit.insert(connection, row)

    async def query(self, wanted: AuditQuery, limit: int) -> list[AuditRow]:
        """Rows, newest first."""
        return await self._all(_audit, _audit.select(*wanted.conditions()).order_by(_c.number.desc()).limit(limit))

    async def projects(self) -> list[str]:
        """Every project that a row is about."""
        return await self._scalars(sa.select(_c.project).where(_c.project.is_not(None)).distinct())

    async def purge_older(self, before: int) -> int:
        """Delete rows from before an instant; returns how many."""
        return await self._execute(audit_log.delete().where(_c.at < before))


class _Kind(NamedTuple):
    """What is counted together."""

    action: str
    user: str
    what: str
    address: str


class Tally:
    """What happens too often for a row each: one row a minute for each kind, with how many times."""

    SECONDS = 60.0
    MOST_KINDS = 1000
    """Beyond that, what others do is counted together."""

    def __init__(self) -> None:
        self._counts: dict[_Kind, list[int]] = {}
        self._since = time.monotonic()

    def count(self, action: str, user: str, what: str) -> None:
        """Count one more action of somebody (empty: nobody known), from where the request at work came."""
        kind, now = _Kind(action, user, what, ADDRESS.get()), times.now()
        if kind not in self._counts and len(self._counts) >= self.MOST_KINDS:
            kind = _Kind(action, "", "others", "")
        entry = self._counts.setdefault(kind, [0, now, now])
        entry[0] += 1
        entry[2] = now

    def take(self, is_end: bool = False) -> list[AuditRow]:
        """The rows of the last minute, once it is over or at the end."""
        if not self._counts or not (is_end or time.monotonic() - self._since >= self.SECONDS):
            return []
        counts, self._counts, self._since = self._counts, {}, time.monotonic()
        return [
            AuditRow(
                at=first,
                user=kind.user,
                action=kind.action,
                project=None,
                details={"what": kind.what, "count": count, "until": times.to_iso(last)},
                address=kind.address,
            )
            for kind, (count, first, last) in counts.items()
        ]
