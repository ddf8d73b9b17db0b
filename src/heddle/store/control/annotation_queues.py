"""Annotation queues: calls that wait for people, and how far each person is with each of them.

Contract: trace-evals, section 11.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.store.control.expressions import CodePoints, Containing
from heddle.store.control.schema import Executor, metadata
from heddle.wire import times

UNSTARTED, IN_PROGRESS, COMPLETED, SKIPPED = "unstarted", "in_progress", "completed", "skipped"
DONE = (COMPLETED, SKIPPED)
_CHUNK = 500
Order = Sequence[tuple[str, bool]]
"""Pairs of field and descending."""

annotation_queues = sa.Table(
    "annotation_queues",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("scorer_refs", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("deleted_at", sa.BigInteger, nullable=True),
    sa.Index("annotation_queues_by_time", "project", "created_at"),
)
annotation_queue_items = sa.Table(
    "annotation_queue_items",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("queue_id", sa.Text, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("call_started_at", sa.BigInteger, nullable=False),
    sa.Column("call_ended_at", sa.BigInteger, nullable=True),
    sa.Column("call_op_name", sa.Text, nullable=False),
    sa.Column("call_trace_id", sa.Text, nullable=False),
    sa.Column("display_fields", sa.Text, nullable=False),
    sa.Column("added_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("annotation_state", sa.Text, nullable=False),
    sa.Column("annotator_user_id", sa.Text, nullable=False),
    sa.Column("done", sa.Integer, nullable=False),
    sa.UniqueConstraint("queue_id", "call_id", name="annotation_queue_items_once"),
    sa.Index("annotation_queue_items_by_call", "project", "call_id"),
)
"""`annotation_state` and `annotator_user_id` repeat the newest progress of any annotator, `done` that one has ended."""

annotation_progress = sa.Table(
    "annotation_progress",
    metadata,
    sa.Column("item_id", sa.Text, primary_key=True),
    sa.Column("annotator", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)
QUEUE_TABLES = (annotation_queues, annotation_queue_items, annotation_progress)
_queues, _items, _progress = annotation_queues.c, annotation_queue_items.c, annotation_progress.c
_QUEUE_SORT: Mapping[str, sa.ColumnElement[Any]] = {
    "id": _queues.id, "name": CodePoints(_queues.name),
    "created_at": _queues.created_at, "updated_at": _queues.updated_at,
}  # fmt: skip
_ITEM_SORT: Mapping[str, sa.ColumnElement[Any]] = {
    "call_started_at": _items.call_started_at, "call_op_name": CodePoints(_items.call_op_name),
    "created_at": _items.created_at, "updated_at": _items.updated_at,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue; instants are microseconds, refs internal."""

    id: str
    project: str
    name: str
    description: str
    scorer_refs: list[str]
    created_at: int
    created_by: str
    updated_at: int
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One call in a queue, as it was when it was added, with the newest progress on it."""

    id: str
    project: str
    queue_id: str
    call_id: str
    call_started_at: int
    call_ended_at: int | None
    call_op_name: str
    call_trace_id: str
    display_fields: list[str]
    added_by: str
    created_at: int
    updated_at: int
    annotation_state: str = UNSTARTED
    annotator_user_id: str = ""


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Which items: all conditions together; `equal` by column, `states` any of them."""

    equal: Mapping[str, str]
    states: Collection[str] | None = None


Move = Callable[[str | None], bool]
"""Told the annotator's present state (None: no record); True when it is to change. Raises what forbids it."""


class AnnotationQueues:
    """What can be done with queues; projects are internal ids."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def create(self, row: QueueRow) -> None:
        """Store a new queue."""
        values = {name: getattr(row, name) for name in QueueRow.__slots__} | {"scorer_refs": _text(row.scorer_refs)}
        await self._executor.write(lambda connection: connection.execute(annotation_queues.insert().values(values)))

    async def read(self, project: str, queue_id: str) -> QueueRow | None:
        """A queue, a deleted one included."""
        query = sa.select(annotation_queues).where(_queues.project == project, _queues.id == queue_id)
        return await self._executor.read(lambda connection: _one(connection, query))

    async def live(self, project: str, queue_ids: Collection[str]) -> set[str]:
        """Those of the ids that are queues of the project and not deleted."""

        def work(connection: sa.Connection) -> set[str]:
            found: set[str] = set()
            for part in _parts(list(queue_ids)):
                mine = sa.and_(_queues.project == project, _queues.deleted_at.is_(None), _queues.id.in_(part))
                found |= set(connection.execute(sa.select(_queues.id).where(mine)).scalars())
            return found

        return await self._executor.read(work)

    async def query(
        self, project: str, name: str | None, sort: Order, limit: int | None = None, offset: int = 0
    ) -> list[QueueRow]:
        """Queues that are not deleted; `name` is a part of the name in any case. Unknown sort fields do not count."""
        query = sa.select(annotation_queues).where(_queues.project == project, _queues.deleted_at.is_(None))
        if name:
            query = query.where(Containing(_queues.name, name))
        terms = _ordered(_QUEUE_SORT, sort) or [_queues.created_at.desc()]
        query = query.order_by(*terms, _queues.id.asc()).limit(limit).offset(offset or None)
        return await self._executor.read(lambda connection: [_queue(row) for row in connection.execute(query)])

    async def update(self, project: str, queue_id: str, changes: Mapping[str, Any]) -> QueueRow | None:
        """Change fields of a live queue (none: nothing happens); None when there is no such queue."""
        values = {name: _text(value) if name == "scorer_refs" else value for name, value in changes.items()}
        if values:
            values["updated_at"] = times.now()
        return await self._executor.write(lambda connection: _changed(connection, project, queue_id, values), 500)

    async def delete(self, project: str, queue_id: str) -> QueueRow | None:
        """Mark a live queue as deleted; its items stay. None when there is no such queue."""
        at = times.now()
        values = {"deleted_at": at, "updated_at": at}
        return await self._executor.write(lambda connection: _changed(connection, project, queue_id, values))

    async def add(self, rows: Sequence[ItemRow]) -> int:
        """Queue calls, each once per queue; returns how many were not there yet."""
        if not rows:
            return 0

        def work(connection: sa.Connection) -> int:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            once = insert(annotation_queue_items).on_conflict_do_nothing(index_elements=["queue_id", "call_id"])
            new = once.returning(_items.id)
            added = (connection.execute(new, [_item_values(row) for row in part]) for part in _parts(rows))
            return sum(len(found.all()) for found in added)

        return await self._executor.write(work, 400 * len(rows))

    async def items(
        self, project: str, queue_id: str, wanted: ItemFilter, sort: Order, limit: int | None = None, offset: int = 0
    ) -> list[ItemRow]:
        """Items of a queue, in the order they were added unless asked otherwise. Unknown sort fields do not count."""
        query = sa.select(annotation_queue_items).where(_items.project == project, _items.queue_id == queue_id)
        query = query.where(*(_items[name] == value for name, value in wanted.equal.items()))
        if wanted.states is not None:
            query = query.where(_items.annotation_state.in_(wanted.states))
        terms = _ordered(_ITEM_SORT, sort) or [_items.created_at.asc()]
        query = query.order_by(*terms, _items.id.asc()).limit(limit).offset(offset or None)
        return await self._executor.read(lambda connection: [_item(row) for row in connection.execute(query)])

    async def stats(self, project: str, queue_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """How many items each queue has, and how many of them somebody completed or skipped; no entry for none."""

        def work(connection: sa.Connection) -> dict[str, tuple[int, int]]:
            found: dict[str, tuple[int, int]] = {}
            for part in _parts(queue_ids):
                query = sa.select(_items.queue_id, sa.func.count(), sa.func.sum(_items.done)).group_by(_items.queue_id)
                query = query.where(_items.project == project, _items.queue_id.in_(part))
                found |= {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(query)}
            return found

        return await self._executor.read(work)

    async def progress(
        self, project: str, queue_id: str, item_id: str, annotator: str, state: str, move: Move
    ) -> ItemRow | None:
        """Bring one annotator's progress on an item to a state, if `move` says so; None when there is no such item."""

        def work(connection: sa.Connection) -> ItemRow | None:
            mine = sa.and_(_items.project == project, _items.queue_id == queue_id, _items.id == item_id)
            query = sa.select(annotation_queue_items).where(mine)
            # Locked where rows can be: two requests of one annotator must not both find no record.
            if connection.execute(query.with_for_update()).first() is None:
                return None
            held = sa.and_(_progress.item_id == item_id, _progress.annotator == annotator)
            present = connection.execute(sa.select(_progress.state).where(held)).scalar_one_or_none()
            if move(present):
                _note(connection, item_id, annotator, state, present is None)
            return _item(connection.execute(query).one())

        return await self._executor.write(work)


def _note(connection: sa.Connection, item_id: str, annotator: str, state: str, is_new: bool) -> None:
    at = times.now()
    key = {"item_id": item_id, "annotator": annotator}
    if is_new:
        values = {**key, "state": state, "created_at": at, "updated_at": at}
        connection.execute(annotation_progress.insert().values(values))
    else:
        held = sa.and_(_progress.item_id == item_id, _progress.annotator == annotator)
        connection.execute(annotation_progress.update().where(held).values(state=state, updated_at=at))
    shown: dict[str, Any] = {"annotation_state": state, "annotator_user_id": annotator}
    if state in DONE:
        shown["done"] = 1
    connection.execute(annotation_queue_items.update().where(_items.id == item_id).values(shown))


def _changed(connection: sa.Connection, project: str, queue_id: str, values: Mapping[str, Any]) -> QueueRow | None:
    mine = sa.and_(_queues.project == project, _queues.id == queue_id)
    live = sa.and_(mine, _queues.deleted_at.is_(None))
    if values:
        found = connection.execute(annotation_queues.update().where(live).values(**values)).rowcount
        return _one(connection, sa.select(annotation_queues).where(mine)) if found else None
    return _one(connection, sa.select(annotation_queues).where(live))


def _ordered(known: Mapping[str, sa.ColumnElement[Any]], sort: Order) -> list[sa.ColumnElement[Any]]:
    return [sa.desc(known[field]) if down else sa.asc(known[field]) for field, down in sort if field in known]


def _one(connection: sa.Connection, query: sa.Select[Any]) -> QueueRow | None:
    row = connection.execute(query).first()
    return None if row is None else _queue(row)


def _queue(row: sa.Row[Any]) -> QueueRow:
    return QueueRow(**{**row._mapping, "scorer_refs": orjson.loads(row.scorer_refs)})


def _item(row: sa.Row[Any]) -> ItemRow:
    values = {name: getattr(row, name) for name in ItemRow.__slots__}
    return ItemRow(**values | {"display_fields": orjson.loads(row.display_fields)})


def _item_values(row: ItemRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in ItemRow.__slots__}
    return values | {"display_fields": _text(row.display_fields), "done": 0}


def _text(value: Sequence[str]) -> str:
    return orjson.dumps(list(value)).decode()


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
