"""Calls on their way, where calls are kept in another database: halves that wait, and an outbox of calls that ended.

A row of `call_halves` holds one half. Whoever brings the other one finds it, writes the whole call, and takes the row
away, unless it was changed meanwhile: then the call is put together anew.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from heddle.store.control.repository import Prepared, Repository, Upsert, metadata, writes
from heddle.store.control.row_queries import Listed
from heddle.wire.batched import group_pairs
from heddle.wire.calls import End, Ending, Start, Usage

Key = tuple[str, str]
"""Project (internal id) and id of a call."""
Half = Start | End

call_halves = sa.Table(
    "call_halves",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("half", sa.LargeBinary, nullable=False),
    sa.Column("is_end", sa.SmallInteger, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("inserted_at", sa.BigInteger, nullable=False, index=True),
    sa.Column("has_files", sa.SmallInteger, nullable=False),
    sa.Index("call_halves_by_start", "project", "started_at"),
)
_c = call_halves.c
_MARK = "\U0010ffff"
"""No character of any text, by the Unicode standard; ids with a zero, which JSON lists lack, are written with it."""
_COLUMNS = ("project", "id", "half", "is_end", "started_at", "revision", "inserted_at", "has_files")
_write = Upsert(call_halves, _COLUMNS, ("project", "id"))
_mine = sa.and_(_c.project == sa.bindparam("of_project"), Listed(_c.id, "ids"))
_read = Prepared(sa.select(_c.id, _c.half, _c.is_end, _c.revision, _c.inserted_at).where(_mine))
_read_revisions = Prepared(sa.select(_c.id, _c.revision).where(_mine))
_remove = Prepared(sa.delete(call_halves).where(_mine))


class Waiting(NamedTuple):
    """A half that waits, the instant (microseconds) at which it came, and that at which the first of its call did.

    The former is its revision: no two halves of a call have the same.
    """

    half: Half
    revision: int
    inserted_at: int


@dataclass(frozen=True, slots=True)
class FoundHalves:
    """What the halves that were brought met: those that waited before; the revisions of what waits now, and since when.

    Halves of the same kind were replaced by those that were brought.
    """

    before: Mapping[Key, Waiting]
    revisions: Mapping[Key, int]
    inserted_at: Mapping[Key, int]


def put_halves(
    connection: sa.Connection, halves: Mapping[Key, Half], names: Mapping[Key, str], now: Mapping[Key, int]
) -> FoundHalves:
    """Let halves wait, except where the other half waits already; a half of the same kind is replaced.

    Starts that wait also take the display names in `names`. `now` is the instant (microseconds) for each call.
    """
    before = read_halves(connection, dict.fromkeys((*halves, *names)))
    revisions = {key: waiting.revision for key, waiting in before.items()}
    since = {key: before[key].inserted_at if key in before else now[key] for key in halves}
    rows: list[tuple[Any, ...]] = []

    def add(key: Key, half: Half) -> None:
        revisions[key] = max(now[key], revisions.get(key, 0) + 1)
        started_at = half.started_at if isinstance(half, Start) else None
        is_end = int(isinstance(half, End))
        place = key[0], _name(key[1]), orjson.dumps(half, default=tuple), is_end, started_at
        rows.append((*place, revisions[key], since[key], int(bool(half.files))))

    for key, half in halves.items():
        if key not in before or type(before[key].half) is type(half):
            add(key, half)
    for key, name in names.items():
        found = before.get(key)
        if found is not None and isinstance(found.half, Start):
            found.half.display_name = name
            since[key] = found.inserted_at
            add(key, found.half)
    _write(connection, rows)
    return FoundHalves(before, revisions, since)


def read_halves(connection: sa.Connection, keys: Iterable[Key]) -> dict[Key, Waiting]:
    """The halves that wait, of these calls."""
    found: dict[Key, Waiting] = {}
    for project, ids in group_pairs(keys).items():
        for name, half, is_end, revision, since in _read(connection, of_project=project, ids=list(map(_name, ids))):
            found[project, _call_id(name)] = Waiting(_unpack(half, bool(is_end)), revision, since)
    return found


def remove_settled(connection: sa.Connection, done: Mapping[Key, int | None]) -> list[Key]:
    """Remove the halves of calls that are whole now; returns those that were changed since the given revision.

    Without a revision the half is removed as it is.
    """
    changed: list[Key] = []
    for project, ids in group_pairs(done).items():
        rows = _read_revisions(connection, of_project=project, ids=list(map(_name, ids))).all()
        gone = []
        for call_id, revision in ((_call_id(name), revision) for name, revision in rows):
            if done[project, call_id] in (None, revision):
                gone.append(call_id)
            else:
                changed.append((project, call_id))
        remove_halves(connection, project, gone)
    return changed


def remove_halves(connection: sa.Connection, project: str, ids: Sequence[str]) -> None:
    """Remove the halves of calls."""
    if ids:
        _remove(connection, of_project=project, ids=list(map(_name, ids)))


def purge_halves(connection: sa.Connection, project: str, before: int) -> None:
    """Remove the starts of calls that started before an instant."""
    connection.execute(sa.delete(call_halves).where(_c.project == project, _c.started_at < before))


def halves_of(project: str, ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """The condition for the halves of some calls."""
    return sa.and_(_c.project == project, Listed(_c.id, [_name(call_id) for call_id in ids]))


def find_waiting(connection: sa.Connection, project: str, is_wanted: Callable[[Half], bool]) -> list[str]:
    """The ids of a project's calls of which a half that is wanted waits."""
    rows = connection.execute(sa.select(_c.half, _c.is_end).where(_c.project == project))
    return [half.id for half in (_unpack(content, bool(is_end)) for content, is_end in rows) if is_wanted(half)]


def has_half(connection: sa.Connection, project: str, call_id: str) -> bool:
    """True while a half of the call waits."""
    query = sa.select(sa.literal(1)).where(_c.project == project, _c.id == _name(call_id))
    return connection.execute(query).first() is not None


def read_oldest(connection: sa.Connection, after: int, before: int, limit: int) -> tuple[int, dict[Key, int]]:
    """The revisions of the first `limit` halves that came between two instants, and when the last of them came."""
    query = sa.select(_c.project, _c.id, _c.revision, _c.inserted_at)
    query = query.where(_c.inserted_at > after, _c.inserted_at < before).order_by(_c.inserted_at).limit(limit)
    rows = connection.execute(query).all()
    return (rows[-1].inserted_at if rows else after), {(row.project, _call_id(row.id)): row.revision for row in rows}


def read_blobs(connection: sa.Connection) -> set[str]:
    """The blobs that hold large fields of the halves that wait."""
    rows = connection.execute(sa.select(_c.half, _c.is_end).where(_c.has_files == 1))
    return {blob for half, is_end in rows for blob in _unpack(half, bool(is_end)).files.values()}


def _unpack(content: bytes, is_end: bool) -> Half:
    values = orjson.loads(content)
    if not is_end:
        return Start(**values)
    values["usage"] = [Usage(*entry) for entry in values["usage"]]
    return End(**values)


def _name(call_id: str) -> str:
    return call_id.replace(_MARK, _MARK + "1").replace("\0", _MARK + "0")


def _call_id(name: str) -> str:
    return name.replace(_MARK + "0", "\0").replace(_MARK + "1", _MARK) if _MARK in name else name


ended_calls = sa.Table(
    "ended_calls",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("is_taken", sa.SmallInteger, nullable=False),
    sa.Index("ended_calls_by_project", "project", "seq"),
    sqlite_autoincrement=True,
)
_ended = ended_calls.c


_of_project = _ended.project == sa.bindparam("of_project")
_not_skipped = sa.not_(Listed(_ended.project, "skipped"))
_oldest_project = Prepared(sa.select(_ended.project).where(_not_skipped).order_by(_ended.seq).limit(1))
_taken = sa.select(_ended.seq, _ended.project, _ended.call).where(_of_project, _ended.is_taken == 1)
_read_taken = Prepared(_taken.order_by(_ended.seq))
_first = sa.select(_ended.seq).where(_of_project).order_by(_ended.seq).limit(sa.bindparam("most")).subquery()
_take_first = Prepared(ended_calls.update().where(_ended.seq.in_(sa.select(_first.c.seq))).values(is_taken=1))


def note_ended(connection: sa.Connection, keys: Iterable[tuple[str, str]]) -> None:
    """Add calls (project, id) that are whole now."""
    rows = [{"project": project, "call": call_id, "is_taken": 0} for project, call_id in keys]
    if rows:
        connection.execute(ended_calls.insert(), rows)


class EndedCalls(Repository):
    """What reads the outbox."""

    @writes
    def take(self, connection: sa.Connection, limit: int, skipping: Collection[str]) -> list[Ending]:
        """The oldest endings of one project as a batch; the same again until it is dropped."""
        project = _oldest_project(connection, skipped=list(skipping)).scalar_one_or_none()
        if project is None:
            return []
        rows = _read_taken(connection, of_project=project).all()
        if not rows:
            _take_first(connection, of_project=project, most=limit)
            rows = _read_taken(connection, of_project=project).all()
        return [Ending(*row) for row in rows]

    async def count(self) -> int:
        """How many endings wait."""
        return await self._count(ended_calls)

    async def drop(self, endings: Sequence[Ending]) -> None:
        """Forget endings that were taken; those of another server's batch stay."""
        await self._execute(sa.delete(ended_calls).where(_ended.seq.in_([ending.seq for ending in endings])))
