"""Group commit: all the work that waits is written together, and only then is anybody told.

No timer: a group forms while the last one is written. Small parts of several servers are joined by ClickHouse itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from heddle.errors import Busy, HeddleError, QueryTimeout, StorageFull, Unavailable
from heddle.store.clickhouse.assembly import Change

logger = logging.getLogger("heddle.store")

MAX_GROUP_ITEMS = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class FlusherStats:
    """What was written since the start, for the metrics."""

    groups: int = 0
    items: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True)
class _Item:
    change: Change
    size: int
    future: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Flusher:
    """Collects changes and gives them to `flush` in groups, one group at a time."""

    def __init__(self, flush: Callable[[Sequence[Change]], Awaitable[None]], queue_bytes: int) -> None:
        self.figures = FlusherStats()
        self._flush = flush
        self._queue_bytes = queue_bytes
        self._items: deque[_Item] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def add(self, change: Change, size: int) -> None:
        """Have a change of `size` bytes written; returns once it is durable.

        Raises Busy when more than the setting write_queue_bytes waits, and what hinders the writing.
        """
        if self._is_closing:
            raise Unavailable("The server is stopping")
        if self._items and self.figures.waiting_bytes + size > self._queue_bytes:
            raise Busy("Too much waits to be written; try again")
        item = _Item(change, size)
        self.figures.waiting_bytes += size
        self._items.append(item)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        # A caller that goes away must not make the outcome unknown to the others of the group.
        await asyncio.shield(item.future)

    async def close(self) -> None:
        """Write what waits, and take nothing more."""
        self._is_closing = True
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        """Write until nothing waits."""
        try:
            while self._items:
                await self._write(self._take())
        finally:
            self._task = None

    def _take(self) -> list[_Item]:
        group: list[_Item] = []
        size = 0
        while self._items and len(group) < MAX_GROUP_ITEMS:
            if group and size + self._items[0].size > MAX_GROUP_BYTES:
                break
            item = self._items.popleft()
            size += item.size
            group.append(item)
        self.figures.waiting_bytes -= size
        return group

    async def _write(self, group: list[_Item]) -> None:
        problem: Exception | None = None
        try:
            await self._flush([item.change for item in group])
        except (Unavailable, Busy, StorageFull) as error:
            problem = error
        except QueryTimeout:
            # Each alone would take as long: the queue would stand still for hours.
            problem = Unavailable("What is stored of the calls could not be read in time", retry_after=2)
        except Exception as error:  # whatever it is, everybody who waits is told
            if len(group) > 1:
                # One faulty change must not fail its neighbours: each is written alone.
                for item in group:
                    await self._write([item])
                return
            if not isinstance(error, HeddleError):
                logger.exception("a change of calls was not written")
            problem = error
        else:
            self.figures.groups += 1
            self.figures.items += len(group)
        _report(group, problem)


def _report(group: list[_Item], error: Exception | None) -> None:
    for item in group:
        if item.future.done():
            continue
        if error is None:
            item.future.set_result(None)
        else:
            item.future.set_exception(error)
            # Looked at here, so that one whose caller has gone is no error of the event loop.
            item.future.exception()
