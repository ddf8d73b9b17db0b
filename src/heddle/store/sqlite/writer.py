"""The one writer thread: it takes all the work that waits, commits it in one transaction, and only then reports.

No timer: a group forms while the last commit runs. Work that fails is undone alone: the group is begun again, then with
a savepoint around each work. Work may therefore run twice, and leaves nothing behind but what is in the database.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from heddle.errors import Busy, HeddleError, Unavailable
from heddle.store.sqlite.connection import Session, explain
from heddle.store.sqlite.names import Names

T = TypeVar("T")
Work = Callable[[Session], Any]

logger = logging.getLogger("heddle.store")

MAX_GROUP_ITEMS = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024


def _looked_at(future: "asyncio.Future[Any]") -> None:
    """Look at a failure, so that one whose caller has gone is no error of the event loop."""
    if not future.cancelled():
        future.exception()


@dataclass(slots=True)
class WriterStats:
    """What the writer did since it started, for the metrics."""

    groups: int = 0
    items: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True)
class _Item:
    work: Work
    size: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Group commit over one session; `names` is told what became durable and what was undone."""

    def __init__(self, session: Session, queue_bytes: int, names: Names) -> None:
        self.figures = WriterStats()
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
        loop = asyncio.get_running_loop()
        item = _Item(work, size, loop, loop.create_future())
        with self._wake:
            if self._closing:
                raise Unavailable("The server is stopping")
            if self._items and self.figures.waiting_bytes + size > self._queue_bytes:
                raise Busy("Too much waits to be written; try again")
            self.figures.waiting_bytes += size
            self._items.append(item)
            self._wake.notify()
        item.future.add_done_callback(_looked_at)
        # A caller that goes away must not make the commit's outcome unknown to the others of the group.
        result: T = await asyncio.shield(item.future)
        return result

    def close(self) -> None:
        """Write what waits, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._take():
            self._commit(group)
            self._report(group)

    def _take(self) -> list[_Item]:
        with self._wake:
            while not self._items and not self._closing:
                self._wake.wait()
            group: list[_Item] = []
            size = 0
            while (
                self._items
                and len(group) < MAX_GROUP_ITEMS
                and (not group or size + self._items[0].size <= MAX_GROUP_BYTES)
            ):
                item = self._items.popleft()
                size += item.size
                group.append(item)
            self.figures.waiting_bytes -= size
            return group

    def _commit(self, group: list[_Item]) -> None:
        raw = self._session.raw
        try:
            raw.execute("BEGIN IMMEDIATE")
            if not all(self._apply(item) for item in group):
                raw.execute("ROLLBACK")
                self._names.forget()
                raw.execute("BEGIN IMMEDIATE")
                for item in group:
                    self._apply_alone(item)
            raw.execute("COMMIT")
            self._names.committed()
        except Exception as error:  # whatever it is, the whole group is undone and every waiter is told
            self._undo(group, error)
        self.figures.groups += 1
        self.figures.items += len(group)

    def _apply(self, item: _Item) -> bool:
        """Do one work; false when it failed behind its first change, which only the whole group can undo.

        Inside a savepoint SQLite walks the saved pages of all that was written before at the end of each statement.
        """
        before = self._session.raw.total_changes
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error
        return item.error is None or self._session.raw.total_changes == before

    def _apply_alone(self, item: _Item) -> None:
        """Do one work again, which is undone alone when it fails."""
        raw = self._session.raw
        item.result, item.error = None, None
        raw.execute("SAVEPOINT item")
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error
            raw.execute("ROLLBACK TO item")
            self._names.forget()
        raw.execute("RELEASE item")

    def _undo(self, group: list[_Item], error: Exception) -> None:
        known = explain(error)
        if known is None:
            logger.exception("a group of %d writes was undone", len(group))
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

    @staticmethod
    def _report(group: list[_Item]) -> None:
        for loop in {id(item.loop): item.loop for item in group}.values():
            mine = [item for item in group if item.loop is loop]
            try:
                loop.call_soon_threadsafe(_resolve, mine)
            except RuntimeError:
                logger.warning("%d writes were committed after their event loop had closed", len(mine))


def _resolve(items: list[_Item]) -> None:
    for item in items:
        if item.future.done():
            continue
        if item.error is not None:
            item.future.set_exception(item.error)
        else:
            item.future.set_result(item.result)
