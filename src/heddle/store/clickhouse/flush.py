"""Writing changes of calls in groups: halves that meet are put together, calls go to ClickHouse, then all else follows.

No timer: a group forms while the last one is written, and only then is anybody told. Everything may be repeated after a
failure: rows of one call replace each other, and a half waits in the control tables until the whole call is written.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from heddle.errors import Busy, HeddleError, QueryTimeout, StorageFull, Unavailable
from heddle.store.clickhouse.assembly import (
    COLUMNS,
    Assembly,
    Batch,
    Change,
    Outcome,
    Position,
    Row,
    Versions,
    find_stored,
)
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALLS
from heddle.store.control import call_halves, ended_calls
from heddle.store.control.agents import spans as agent_index
from heddle.store.control.call_halves import Key, Met
from heddle.store.control.changes import MONITORS, number_of
from heddle.store.control.schema import Executor
from heddle.wire.calls import Start
from heddle.wire.spans import AgentSpan

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


_NOTHING_MET = Met({}, {}, {})


class Watched(NamedTuple):
    """Projects (internal ids) with monitors, and the number of changes of monitors by which they are known."""

    projects: frozenset[str]
    seen: int

    def among(self, connection: sa.Connection, keys: Sequence[Key]) -> Sequence[Key]:
        """The calls that a monitor may be about: all, once another server has changed one."""
        if number_of(connection, MONITORS) != self.seen:
            return keys
        return [key for key in keys if key[0] in self.projects]


class Flush:
    """Writes groups; notes the ended calls that are `watched`, nothing while that is None."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self.watched: Watched | None = None
        self.versions = Versions()
        self._clickhouse = clickhouse
        self._control = control

    async def write(self, group: Sequence[Change]) -> bool:
        """Write the changes; returns once all is durable, with whether ended calls were noted."""
        batch = Batch()
        for change in group:
            batch.add(change)
        has_noted = False
        left: Mapping[Key, Position] = {}
        while True:
            outcome, met = await self._put_together(batch, left)
            await self.insert(outcome.rows)
            changed, noted = await self._follow(outcome, batch.agents)
            has_noted = has_noted or noted > 0
            # Another server changed the half that was met: once more, with what waits now.
            again = [key for key in changed if key in met.before]
            if not again:
                return has_noted
            left = {key: outcome.positions[key] for key in again if key in outcome.positions}
            batch = batch.only(again)

    async def insert(self, found: Sequence[Row]) -> None:
        """Write rows of calls."""
        if found:
            await self._clickhouse.insert(CALLS, COLUMNS, found)

    async def _put_together(self, batch: Batch, left: Mapping[Key, Position]) -> tuple[Outcome, Met]:
        keys = batch.keys()
        first = self.versions.reserve(len(keys))
        met = await self._meet(batch, {key: number for number, key in enumerate(keys, first)})
        # An end that met its start needs no look at what is stored.
        doubtful = [key for key in keys if key in batch.starts or key in batch.names or not _has_start(met, key)]
        found = await find_stored(self._clickhouse, doubtful) if doubtful else {}
        return Assembly(batch, met, found, left, first).assemble(self.versions), met

    async def _meet(self, batch: Batch, now: Mapping[Key, int]) -> Met:
        halves, names = batch.single(), dict(batch.names)
        if not halves and not names:
            return _NOTHING_MET
        return await self._control.write(lambda connection: call_halves.bring(connection, halves, names, now))

    async def _follow(self, outcome: Outcome, agents: Sequence[AgentSpan]) -> tuple[list[Key], int]:
        """What is to be done behind the rows: the calls whose waiting half changed meanwhile, how many were noted."""
        watched = self.watched if outcome.whole else None
        if not (outcome.settled or watched or agents):
            return [], 0

        def work(connection: sa.Connection) -> tuple[list[Key], int]:
            changed = call_halves.take(connection, outcome.settled)
            noted = watched.among(connection, outcome.whole) if watched is not None else ()
            ended_calls.note(connection, noted)
            if agents:
                agent_index.write(connection, agents)
            return changed, len(noted)

        return await self._control.write(work)


def _has_start(met: Met, key: Key) -> bool:
    return key in met.before and isinstance(met.before[key].half, Start)
