"""Annotation queues: calls that wait for people, and how far each person is with each of them.

Contract: trace-evals, section 11.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.errors import NotFound
from heddle.store.control.audit import audit
from heddle.store.control.repository import Key, Mapped, Repository, dialect_insert, writes
from heddle.store.control.row_queries import CodePoints, Containing
from heddle.wire import times
from heddle.wire.batched import batched

UNSTARTED, IN_PROGRESS, COMPLETED, SKIPPED = "unstarted", "in_progress", "completed", "skipped"
DONE = (COMPLETED, SKIPPED)
Order = Sequence[tuple[str, bool]]
"""Pairs of field and descending."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue; instants are microseconds, refs internal."""

    id: Key[str]
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

    id: Key[str]
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
class ProgressRow:
    """How far one annotator is with an item."""

    item_id: Key[str]
    annotator: Key[str]
    state: str
    created_at: int
    updated_at: int


_QUEUES = Mapped(QueueRow, "annotation_queues", sa.Index("annotation_queues_by_time", "project", "created_at"))
_ITEMS = Mapped(
    ItemRow,
    "annotation_queue_items",
    sa.Column("done", sa.Integer, nullable=False),
    sa.UniqueConstraint("queue_id", "call_id", name="annotation_queue_items_once"),
    sa.Index("annotation_queue_items_by_call", "project", "call_id"),
)
"""`annotation_state` and `annotator_user_id` repeat the newest progress of any annotator, `done` that one has ended."""
_PROGRESS = Mapped(ProgressRow, "annotation_progress")
annotation_queues, annotation_queue_items, annotation_progress = _QUEUES.table, _ITEMS.table, _PROGRESS.table
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
class ItemFilter:
    """Which items: all conditions together; `equal` by column, `states` any of them."""

    equal: Mapping[str, str]
    states: Collection[str] | None = None


Move = Callable[[str | None], bool]
"""Told the annotator's present state (None: no record); True when it is to change. Raises what forbids it."""


class AnnotationQueues(Repository):
    """What can be done with queues; projects are internal ids."""

    async def create(self, row: QueueRow) -> None:
        """Store a new queue."""
        await self._executor.write(lambda connection: _QUEUES.insert(connection, row))

    async def read(self, project: str, queue_id: str) -> QueueRow | None:
        """A queue, a deleted one included."""
        return await self._first(_QUEUES, _queues.project == project, _queues.id == queue_id)

    async def is_live(self, project: str, queue_id: str) -> bool:
        """Whether an id is a queue of the project and not deleted."""
        return bool(await self._tuples(_live(project, [queue_id])))

    async def query(
        self, project: str, name: str | None, sort: Order, limit: int | None = None, offset: int = 0
    ) -> list[QueueRow]:
        """Queues that are not deleted; `name` is a part of the name in any case. Unknown sort fields do not count."""
        query = _QUEUES.select(_queues.project == project, _queues.deleted_at.is_(None))
        if name:
            query = query.where(Containing(_queues.name, name))
        terms = _ordered(_QUEUE_SORT, sort) or [_queues.created_at.desc()]
        query = query.order_by(*terms, _queues.id.asc()).limit(limit).offset(offset or None)
        return await self._all(_QUEUES, query)

    async def update(self, project: str, queue_id: str, changes: Mapping[str, Any]) -> QueueRow | None:
        """Change fields of a live queue (none: nothing happens); None when there is no such queue."""
        values = {**changes, "updated_at": times.now()} if changes else {}
        return await self._executor.write(lambda connection: _changed(connection, project, queue_id, values), 500)

    @writes
    def delete(self, connection: sa.Connection, project: str, queue_id: str, user: str) -> QueueRow | None:
        """Mark a live queue as deleted; its items stay. None when there is no such queue."""
        at = times.now()
        row = _changed(connection, project, queue_id, {"deleted_at": at, "updated_at": at})
        if row is not None:
            audit(connection, at, user, "annotation_queue.delete", project, {"id": queue_id, "name": row.name})
        return row

    async def add(self, project: str, queue_id: str, rows: Sequence[ItemRow]) -> int:
        """Queue calls, each once; returns how many were not there yet. Raises NotFound when no such queue is live."""

        def work(connection: sa.Connection) -> int:
            if not hold_live(connection, project, [queue_id]):
                raise no_queue(queue_id)
            once = dialect_insert(connection, annotation_queue_items)
            new = once.on_conflict_do_nothing(index_elements=["queue_id", "call_id"]).returning(_items.id)
            added = (
                connection.execute(new, [_ITEMS.values(row) | {"done": 0} for row in part]) for part in batched(rows)
            )
            return sum(len(found.all()) for found in added)

        return await self._executor.write(work, 400 * len(rows))

    async def items(
        self, project: str, queue_id: str, wanted: ItemFilter, sort: Order, limit: int | None = None, offset: int = 0
    ) -> list[ItemRow]:
        """Items of a queue, in the order they were added unless asked otherwise. Unknown sort fields do not count."""
        query = _ITEMS.select(_items.project == project, _items.queue_id == queue_id)
        query = query.where(*(_items[name] == value for name, value in wanted.equal.items()))
        if wanted.states is not None:
            query = query.where(_items.annotation_state.in_(wanted.states))
        terms = _ordered(_ITEM_SORT, sort) or [_items.created_at.asc()]
        query = query.order_by(*terms, _items.id.asc()).limit(limit).offset(offset or None)
        return await self._all(_ITEMS, query)

    async def stats(self, project: str, queue_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """How many items each queue has, and how many of them somebody completed or skipped; no entry for none."""

        found: dict[str, tuple[int, int]] = {}
        for part in batched(queue_ids):
            query = sa.select(_items.queue_id, sa.func.count(), sa.func.sum(_items.done)).group_by(_items.queue_id)
            query = query.where(_items.project == project, _items.queue_id.in_(part))
            found |= {row[0]: (int(row[1]), int(row[2])) for row in await self._tuples(query)}
        return found

    @writes
    def progress(
        self,
        connection: sa.Connection,
        project: str,
        queue_id: str,
        item_id: str,
        annotator: str,
        state: str,
        move: Move,
    ) -> ItemRow | None:
        """Bring one annotator's progress on an item to a state, if `move` says so; None when there is no such item.

        Raises NotFound when the queue is deleted.
        """
        queue = _QUEUES.select(_queues.project == project, _queues.id == queue_id)
        found = _QUEUES.first(connection, queue.with_for_update(read=True))
        if found is not None and found.deleted_at is not None:
            raise no_queue(queue_id)
        mine = sa.and_(_items.project == project, _items.queue_id == queue_id, _items.id == item_id)
        query = _ITEMS.select(mine)
        # Locked where rows can be: two requests of one annotator must not both find no record.
        if connection.execute(query.with_for_update()).first() is None:
            return None
        held = sa.and_(_progress.item_id == item_id, _progress.annotator == annotator)
        present = connection.execute(sa.select(_progress.state).where(held)).scalar_one_or_none()
        if move(present):
            _note(connection, item_id, annotator, state, present is None)
        return _ITEMS.first(connection, query)


def no_queue(queue_id: str) -> NotFound:
    """What is raised where there is no such queue, or none any more."""
    return NotFound(f"Queue {queue_id[:200]} not found")


def hold_live(connection: sa.Connection, project: str, queue_ids: Collection[str]) -> set[str]:
    """Those of the ids that are queues of the project and not deleted; none of them is until the write ends."""
    found: set[str] = set()
    for part in batched(queue_ids):
        found |= set(connection.execute(_live(project, part).with_for_update(read=True)).scalars())
    return found


def _live(project: str, queue_ids: Collection[str]) -> "sa.Select[str]":
    live = sa.and_(_queues.project == project, _queues.deleted_at.is_(None), _queues.id.in_(queue_ids))
    return sa.select(_queues.id).where(live).order_by(_queues.id)


def _note(connection: sa.Connection, item_id: str, annotator: str, state: str, is_new: bool) -> None:
    at = times.now()
    if is_new:
        _PROGRESS.insert(connection, ProgressRow(item_id, annotator, state, at, at))
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
        return _QUEUES.first(connection, _QUEUES.select(mine)) if found else None
    return _QUEUES.first(connection, _QUEUES.select(live))


def _ordered(known: Mapping[str, sa.ColumnElement[Any]], sort: Order) -> list[sa.ColumnElement[Any]]:
    return [sa.desc(known[field]) if down else sa.asc(known[field]) for field, down in sort if field in known]
