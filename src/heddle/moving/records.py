"""Records of control tables on their way into a store."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.errors import HeddleError
from heddle.moving import plan
from heddle.moving.foreign import Foreign
from heddle.moving.plan import Moved
from heddle.moving.report import Report
from heddle.store.base import Store
from heddle.store.control.object_rows import object_versions
from heddle.trace.alerts import webhook

Row = dict[str, Any]
_PARAMETERS = 10_000
"""The most values of one statement."""
_v = object_versions.c


class RecordWriter:
    """Stores records that are not there yet, by what identifies them everywhere."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self.foreign = Foreign(store)

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        """Store records of the table of a name; raises HeddleError for an unknown table."""
        moved = plan.BY_NAME.get(name)
        if moved is None:
            raise HeddleError(f"The archive holds records of {name}, which this heddle does not know")
        known = [column.name for column in moved.columns]
        chosen = [{key: value for key, value in row.items() if key in known} for row in rows]
        if secret := plan.SECRETS.get(name):
            if name == "alert_rules" and chosen:
                self._note_secrets(name)
            chosen = [{**row, secret: _MADE_ANEW[name](given)} for row, given in zip(chosen, rows, strict=True)]
        ours = await self.foreign.ours(name, chosen)
        self._report.add(_shown(name), 0, len(chosen) - len(ours))
        await self._store_rows(moved, ours)
        await self.foreign.note(name, ours)

    async def _store_rows(self, moved: Moved, chosen: list[Row]) -> None:
        at_a_time = max(1, _PARAMETERS // len(moved.columns))
        for first in range(0, len(chosen), at_a_time):
            work = _adding(moved, chosen[first : first + at_a_time])
            part = chosen[first : first + at_a_time]
            try:
                new = await self._store.control.write(work, sum(_size(row) for row in part))
            except sa.exc.DBAPIError as error:
                raise HeddleError(f"Records of {moved.table.name} cannot be stored: {error.orig}") from error
            self._report.add(_shown(moved.table.name), new, len(part) - new)

    def _note_secrets(self, name: str) -> None:
        note = f"{name.replace('_', ' ')} have new secrets: make the rules again to read them, if messages are checked"
        if note not in self._report.notes:
            self._report.notes.append(note)


def _nobody(row: Row) -> str:
    """Who asked for a job that was moved, without what their key allowed there."""
    return orjson.dumps(
        {"user": plan.author_of(row), "scopes": [], "entity": None, "project": row.get("project_id"), "key_id": None}
    ).decode()


_MADE_ANEW: dict[str, Callable[[Row], str]] = {
    "alert_rules": lambda _row: webhook.new_secret(),
    "eval_jobs": _nobody,
}


def _shown(name: str) -> str:
    return name.replace("_", " ")


def _adding(moved: Moved, rows: list[Row]) -> Callable[[sa.Connection], int]:
    """Work that stores the rows that are not there; it returns how many they were."""

    def work(connection: sa.Connection) -> int:
        if moved.table is not object_versions:
            return _insert(connection, moved, rows)
        # A version is placed among those before it, so they come one by one.
        return sum(_insert(connection, moved, [_placed(connection, row)]) for row in rows)

    return work


def _insert(connection: sa.Connection, moved: Moved, rows: list[Row]) -> int:
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(moved.table).values(rows).on_conflict_do_nothing()
    # Not every driver counts the rows of such a statement.
    return len(connection.execute(statement.returning(moved.table.c[moved.identity[0]])).all())


def _placed(connection: sa.Connection, row: Row) -> Row:
    """A version with its index and mark where the object may have other versions here already."""
    mine = sa.and_(_v.project == row["project"], _v.object_id == row["object_id"])
    others = sa.and_(mine, _v.digest != row["digest"])
    taken = sa.and_(others, _v.kind == row["kind"], _v.version_index == row["version_index"])
    placed = dict(row)
    if connection.execute(sa.select(_v.number).where(taken)).first() is not None:
        same = sa.select(sa.func.count()).select_from(object_versions).where(mine, _v.kind == row["kind"])
        placed["version_index"] = connection.execute(same).scalar_one()
    if row["is_latest"] and connection.execute(sa.select(_v.number).where(others, _v.is_latest == 1)).first():
        placed["is_latest"] = 0
    return placed


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str) else 10 for value in row.values())
