"""The one thread that writes: what waits together is one transaction."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from heddle.errors import Busy, Damaged, HeddleError, Unavailable
from heddle.store.control.repository import WriteStats
from heddle.store.sqlite.database import Readers, Session, empty_log, explain
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.row_checksums import find_damage

T = TypeVar("T")
Work = Callable[[Session], Any]

logger = logging.getLogger("heddle.store")

MAX_GROUP_ITEMS = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024
LOG_SECONDS = 2.0
"""After so long without a write the write-ahead log is emptied into the file, and memory for its pages given back."""


@dataclass(slots=True)
class _Item:
    work: Work
    size: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    joint: "Callable[[Session, list[Any]], None] | None" = None
    """Does the work of several such items together, of what each of them brings."""
    brought: Any = None
    is_alone: bool = False
    """Runs by itself, outside of a transaction."""
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Group commit over one session; `names` is told what became durable and what was undone."""

    def __init__(self, session: Session, queue_bytes: int, names: Names) -> None:
        self.stats = WriteStats()
        self._session = session
        self._queue_bytes = queue_bytes
        self._names = names
        self._items: deque[_Item] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="heddle-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[Session], T], size: int = 0) -> T:
        """Run `work` in the next group and return its result after the commit.

        Raises what `work` raises, Busy when more than the setting write_queue_bytes waits, StorageFull on a full disk.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        item = _Item(lambda session: context.run(work, session), size, loop, loop.create_future())
        result: T = await self._put(item)
        return result

    async def write_jointly(self, joint: Callable[[Session, list[T]], None], brought: T, size: int) -> None:
        """As `write`; what several bring to the same work is written by one run of it where they wait together."""
        loop = asyncio.get_running_loop()
        item = _Item(lambda session: joint(session, [brought]), size, loop, loop.create_future(), joint, brought)
        await self._put(item)

    async def write_alone(self, work: Callable[[Session], T]) -> T:
        """Run `work` outside of a transaction, between two groups; failures are explained."""
        loop = asyncio.get_running_loop()
        result: T = await self._put(_Item(work, 0, loop, loop.create_future(), is_alone=True))
        return result

    async def _put(self, item: _Item) -> Any:
        size = item.size
        with self._wake:
            if self._closing:
                raise Unavailable("The server is stopping")
            if self._items and self.stats.waiting_bytes + size > self._queue_bytes:
                raise Busy("Too many writes are pending; try again")
            self.stats.waiting_bytes += size
            self._items.append(item)
            self._wake.notify()
        return await item.future

    def close(self) -> None:
        """Write what waits, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        has_log = True
        while (group := self._take(LOG_SECONDS if has_log else None)) is not None:
            if group:
                self._commit(group)
                self._report(group)
            has_log = bool(group) or self._has_log()

    def _has_log(self) -> bool:
        """Empty the log; true where a reader still needs it."""
        try:
            self._session.raw.execute("PRAGMA shrink_memory")
            return not empty_log(self._session)
        except sqlite3.Error as error:
            logger.warning("the write-ahead log was not truncated: %s", error)
            return False

    def _take(self, patience: float | None) -> list[_Item] | None:
        """What waits to be written; empty when nothing came for so many seconds, None at the end."""
        with self._wake:
            if not self._wake.wait_for(lambda: self._items or self._closing, patience):
                return []
            if not self._items:
                return None
            group: list[_Item] = []
            size = 0
            while (
                self._items
                and len(group) < MAX_GROUP_ITEMS
                and (not group or size + self._items[0].size <= MAX_GROUP_BYTES)
                and not (group and (group[0].is_alone or self._items[0].is_alone))
            ):
                item = self._items.popleft()
                size += item.size
                group.append(item)
            self.stats.waiting_bytes -= size
            return group

    def _commit(self, group: list[_Item]) -> None:
        raw, began = self._session.raw, time.monotonic()
        if group[0].is_alone:
            try:
                group[0].result = group[0].work(self._session)
            except Exception as error:  # whatever it is, who waits is told
                group[0].error = explain(error) or error
            return
        try:
            raw.execute("BEGIN IMMEDIATE")
            if not all(self._apply(run) for run in _joined(group)):
                raw.execute("ROLLBACK")
                self._names.forget()
                raw.execute("BEGIN IMMEDIATE")
                for item in group:
                    self._apply_alone(item)
            raw.execute("COMMIT")
            self._names.committed()
        except Exception as error:  # whatever it is, the whole group is undone and every waiter is told
            self._undo(group, error)
        else:
            sizes = [item.size for item in group if item.error is None]
            self.stats.count_group(len(sizes), sum(sizes), time.monotonic() - began)

    def _apply(self, item: _Item) -> bool:
        """Do one work; false when it failed behind its first change, which only the whole group can undo.

        Inside a savepoint SQLite walks the saved pages of all that was written before at the end of each statement.
        """
        before = self._session.raw.total_changes
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error.with_traceback(None)  # which would lead back to the item
        return item.error is None or (item.joint is None and self._session.raw.total_changes == before)

    def _apply_alone(self, item: _Item) -> None:
        """Do one work again, which is undone alone when it fails."""
        raw = self._session.raw
        item.result, item.error = None, None
        raw.execute("SAVEPOINT item")
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error.with_traceback(None)
            raw.execute("ROLLBACK TO item")
            self._names.forget()
        raw.execute("RELEASE item")

    def _undo(self, group: list[_Item], error: Exception) -> None:
        known = explain(error) or self._explain_by_damage(error)
        if known is None:
            logger.exception("a group of %d writes was rolled back", len(group))
        if self._session.raw.in_transaction:
            self._session.raw.execute("ROLLBACK")
        self._names.forget()
        if known is None and len(group) > 1:
            # One faulty work must not fail its neighbours: each gets a transaction of its own.
            for item in group:
                item.result, item.error = None, None
                self._commit([item])
            return
        for item in group:
            item.error = known or error

    def _explain_by_damage(self, error: Exception) -> HeddleError | None:
        """What failed in a way that nobody knows did so on what is no more what was written, where something is."""
        damage = find_damage(Path(self._session.raw.execute("PRAGMA database_list").fetchone()[2]))
        if damage:
            logger.error("writes were rolled back because stored data is damaged (%s): %r", damage, error)
        return Damaged(damage) if damage else None

    @staticmethod
    def _report(group: list[_Item]) -> None:
        for loop in {id(item.loop): item.loop for item in group}.values():
            mine = [item for item in group if item.loop is loop]
            try:
                loop.call_soon_threadsafe(_resolve, mine)
            except RuntimeError:
                logger.warning("%d writes were committed after their event loop had closed", len(mine))


def _joined(group: list[_Item]) -> Iterator[_Item]:
    """The items in order, those as one that follow each other and may be written jointly."""
    for joint, items in groupby(group, lambda item: item.joint):
        several = list(items)
        if joint is None or len(several) == 1:
            yield from several
        else:
            first = several[0]
            brought = [item.brought for item in several]
            yield _Item(partial(_do_jointly, joint, brought), 0, first.loop, first.future, joint)


def _do_jointly(joint: Callable[[Session, list[Any]], None], brought: list[Any], session: Session) -> None:
    joint(session, brought)


def _resolve(items: list[_Item]) -> None:
    for item in items:
        if item.future.done():
            continue
        if item.error is not None:
            item.future.set_exception(item.error)
        else:
            item.future.set_result(item.result)


class SqliteExecutor:
    """An Executor (see control/repository.py) over the embedded store."""

    def __init__(self, writer: Writer, readers: Readers, long_readers: Readers) -> None:
        self._writer = writer
        self._readers = readers
        self._long_readers = long_readers

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        return await self._writer.write(lambda session: work(session.control), size)

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        readers = self._long_readers if is_long else self._readers
        return await readers.read(lambda session: work(session.control))
