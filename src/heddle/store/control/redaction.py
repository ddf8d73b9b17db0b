"""What projects are sent and is not stored: what their rules take out before, what exports held that was rejected.

Both are counted by project, signal and cause.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from heddle.store.control.audit import audit
from heddle.store.control.projects import projects
from heddle.store.control.repository import Executor, Instance, Key, Mapped, Repository, dialect_insert, upsert
from heddle.wire import times
from heddle.wire.redaction import RedactionRules, Redactor

T = TypeVar("T")
_BELIEVED_SECONDS = 1.0
SIGNAL = "redaction"
"""What counts of redacted values stand under among those of rejections."""


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """How many items were rejected, when the last of them came (microseconds), and why that was."""

    project: Key[str]
    signal: Key[str]
    cause: Key[str]
    count: int
    last_at: int
    message: str


_rejections = Mapped(RejectionRow, "rejections")
rejections = _rejections.table


class Rejections(Repository):
    """What can be done with these counts; projects are internal ids, empty where none was named."""

    async def add(self, rows: Sequence[RejectionRow]) -> None:
        """Add to the counts; time and message are those of the last."""
        if rows:
            await self._executor.write(lambda connection: _count(connection, rows), 500 * len(rows))

    async def of_project(self, project: str, since: int) -> list[RejectionRow]:
        """What was rejected last at or after an instant, the newest first."""
        query = _rejections.select(rejections.c.project == project, rejections.c.last_at >= since)
        return await self._all(_rejections, query.order_by(rejections.c.last_at.desc(), rejections.c.cause))


def _count(connection: sa.Connection, rows: Sequence[RejectionRow]) -> None:
    for row in rows:
        upsert(connection, rejections, ("project", "signal", "cause"), _rejections.values(row), added=["count"])


class Redaction(Repository):
    """The rules; those of other servers hold here within a second. Projects are internal ids."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.default = RedactionRules()
        self._own: dict[str, RedactionRules] = {}
        self._read_at = 0.0
        self._changes = 0
        self._reading = asyncio.Lock()

    def set_default(self, kinds: str) -> None:
        """Say which detectors look at projects without rules of their own: the value of the setting `redaction`."""
        self.default = RedactionRules(tuple(kinds.split(",")) if kinds != "none" else ())

    async def of(self, projects: Iterable[str]) -> dict[str, Redactor]:
        """What takes out of the content of one request, by project; projects without rules are left out."""
        rules = {project: await self.rules(project) for project in set(projects)}
        return {project: Redactor(found) for project, found in rules.items() if found.kinds or found.paths}

    async def is_on(self) -> bool:
        """Whether any project has rules."""
        rules = await self.rules("")
        return bool(rules.kinds or self._own)

    def has_rules(self, project: str) -> bool:
        """Whether anything is taken out of a project's content, as was known when it was asked last."""
        rules = self._own.get(project, self.default)
        return bool(rules.kinds or rules.paths)

    async def rules(self, project: str) -> RedactionRules:
        """The rules that hold for a project."""
        if time.monotonic() - self._read_at > _BELIEVED_SECONDS:
            await self._read()
        return self._own.get(project, self.default)

    async def _read(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at <= _BELIEVED_SECONDS:
                return  # who came before has read them
            began, changes = time.monotonic(), self._changes
            query = sa.select(projects.c.project, projects.c.redaction).where(projects.c.redaction.is_not(None))
            rows = await self._tuples(query)
            self._own = {row[0]: RedactionRules(tuple(row[1]["kinds"]), tuple(row[1]["paths"])) for row in rows}
            self._read_at = began if changes == self._changes else 0.0

    async def is_own(self, project: str) -> bool:
        """Whether a project has rules of its own."""
        await self.rules(project)
        return project in self._own

    async def set(self, project: str, rules: RedactionRules | None, user: str) -> None:
        """Give a project rules of its own, or (None) those of the setting."""
        stored = None if rules is None else {"kinds": list(rules.kinds), "paths": list(rules.paths)}

        def work(connection: sa.Connection) -> None:
            row = {"project": project, "created_at": times.now(), "redaction": stored}
            insert = dialect_insert(connection, projects).values(row)
            connection.execute(insert.on_conflict_do_update(index_elements=["project"], set_={"redaction": stored}))
            audit(connection, times.now(), user, "redaction.update", project, {"rules": stored})

        await self._executor.write(work)
        self.forget()

    def forget(self) -> None:
        """Read the rules anew, as they have changed."""
        self._changes += 1
        self._read_at = 0.0

    async def note(self, redactors: Mapping[str, Redactor]) -> None:
        """Count what was taken out."""
        now = times.now()
        found = [
            RejectionRow(project, SIGNAL, kind, count, now, "")
            for project, redactor in redactors.items()
            for kind, count in redactor.found.items()
            if count
        ]
        await self.add(found)

    async def add(self, rows: Sequence[RejectionRow]) -> None:
        """Add to the counts of what was taken out."""
        await Rejections(self._executor).add(rows)

    async def counts(self, project: str | None = None) -> Counter[str]:
        """How many values were taken out of a project, or of all, by kind."""
        c = rejections.c
        query = sa.select(c.cause, sa.func.sum(c.count)).where(c.signal == SIGNAL).group_by(c.cause)
        rows = await self._tuples(query if project is None else query.where(c.project == project))
        return Counter({row[0]: int(row[1]) for row in rows})

    async def each(
        self, items: Sequence[T], project_of: Callable[[T], str], change: Callable[[T, Redactor], T]
    ) -> Sequence[T]:
        """The items, those of projects with rules as `change` makes them; what is taken out is counted."""
        redactors = await self.of(map(project_of, items))
        if not redactors:
            return items
        given = [(item, redactors.get(project_of(item))) for item in items]
        changed = await asyncio.to_thread(
            lambda: [item if redactor is None else change(item, redactor) for item, redactor in given]
        )
        await self.note(redactors)
        return changed

    async def value(self, project: str, value: Any) -> Any:
        """A JSON value of a project without what the detectors of its rules find."""
        redactors = await self.of([project])
        if not redactors:
            return value
        changed = await asyncio.to_thread(redactors[project].value, value)
        await self.note(redactors)
        return changed

    async def texts(self, project: str, name: str, texts: Sequence[str]) -> list[str]:
        """JSON texts of a project, fields of that name, without what its rules say."""
        redactors = await self.of([project])
        if not redactors:
            return list(texts)
        changed = await asyncio.to_thread(lambda: [redactors[project].json(text, name) for text in texts])
        await self.note(redactors)
        return changed


class RedactedRepository(Repository):
    """A repository that does not store what the rules of a project take out."""

    def __init__(
        self, executor: Executor, instance: Instance | None = None, redaction: Redaction | None = None
    ) -> None:
        super().__init__(executor, instance)
        self._redaction = redaction or Redaction(executor)
