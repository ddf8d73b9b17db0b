"""Writing and deleting calls on ClickHouse: in groups, whose halves are put together before anything is written.

No timer: a group forms while the last one is written, and only then is anybody told. Everything may be repeated after a
failure: rows of one call replace each other, and a half waits in the control tables until the whole call is written.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from heddle.errors import Busy, HeddleError, QueryTimeout, StorageFull, Unavailable
from heddle.store.base import GoesOn, go_on
from heddle.store.clickhouse.assembly import (
    COLUMNS,
    Assembly,
    Batch,
    Change,
    Outcome,
    Position,
    Row,
    Versions,
    at_spots,
    find_spots,
    find_stored,
    hidden_row,
)
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, listed
from heddle.store.control import pending_calls
from heddle.store.control.agents import spans as agent_index
from heddle.store.control.audit import audit
from heddle.store.control.coordination import MONITORS, number_of
from heddle.store.control.log_records import remove_of_spans
from heddle.store.control.pending_calls import EndedCalls, FoundHalves, Key
from heddle.store.control.repository import Executor, WriteStats
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.calls import End, Ending, Start
from heddle.wire.spans import AgentSpan

logger = logging.getLogger("heddle.store")

MAX_GROUP_ITEMS = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class _Item:
    change: Change
    size: int
    future: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Flusher:
    """Collects changes and gives them to `flush` in groups, one group at a time."""

    def __init__(self, flush: Callable[[Sequence[Change]], Awaitable[None]], queue_bytes: int) -> None:
        self.stats = WriteStats()
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
        if self._items and self.stats.waiting_bytes + size > self._queue_bytes:
            raise Busy("Too many writes are pending; try again")
        item = _Item(change, size)
        self.stats.waiting_bytes += size
        self._items.append(item)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await item.future

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
        self.stats.waiting_bytes -= size
        return group

    async def _write(self, group: list[_Item]) -> None:
        problem: Exception | None = None
        began = time.monotonic()
        try:
            await self._flush([item.change for item in group])
        except (Unavailable, Busy, StorageFull) as error:
            problem = error
        except QueryTimeout:
            # Each alone would take as long: the queue would stand still for hours.
            problem = Unavailable("The stored calls could not be read in time", retry_after=2)
        except Exception as error:  # whatever it is, everybody who waits is told
            if len(group) > 1:
                # One faulty change must not fail its neighbours: each is written alone.
                for item in group:
                    await self._write([item])
                return
            if not isinstance(error, HeddleError):
                logger.exception("changes to calls were not written")
            problem = error
        else:
            self.stats.count_group(len(group), sum(item.size for item in group), time.monotonic() - began)
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


_NOTHING_MET = FoundHalves({}, {}, {})


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
            if not change.is_missing_only:
                batch.add(change)
        await self._add_missing(batch, [change for change in group if change.is_missing_only])
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

    async def _add_missing(self, batch: Batch, changes: Sequence[Change]) -> None:
        halves = (half for change in changes for part in (change.starts, change.ends) for half in part)
        keys = dict.fromkeys((half.project, half.id) for half in halves)
        if not keys:
            return
        waiting = await self._control.read(lambda connection: pending_calls.read_halves(connection, keys))
        found = await find_stored(self._clickhouse, keys)
        for change in changes:
            batch.add_missing(change, found, waiting)

    async def _put_together(self, batch: Batch, left: Mapping[Key, Position]) -> tuple[Outcome, FoundHalves]:
        keys = batch.keys()
        first = self.versions.reserve(len(keys))
        met = await self._meet(batch, {key: number for number, key in enumerate(keys, first)})
        # An end that met its start needs no look at what is stored.
        with_start = {key for key, waiting in met.before.items() if isinstance(waiting.half, Start)}
        doubtful = [key for key in keys if key in batch.starts or key in batch.names or key not in with_start]
        found = await find_stored(self._clickhouse, doubtful) if doubtful else {}
        return Assembly(batch, met, found, left, first).assemble(self.versions), met

    async def _meet(self, batch: Batch, now: Mapping[Key, int]) -> FoundHalves:
        halves, names = batch.single(), dict(batch.names)
        if not halves and not names:
            return _NOTHING_MET
        return await self._control.write(lambda connection: pending_calls.put_halves(connection, halves, names, now))

    async def _follow(self, outcome: Outcome, agents: Sequence[AgentSpan]) -> tuple[list[Key], int]:
        """What is to be done behind the rows: the calls whose waiting half changed meanwhile, how many were noted."""
        watched = self.watched if outcome.whole else None
        if not (outcome.settled or watched or agents):
            return [], 0

        def work(connection: sa.Connection) -> tuple[list[Key], int]:
            changed = pending_calls.remove_settled(connection, outcome.settled)
            noted = watched.among(connection, outcome.whole) if watched is not None else ()
            pending_calls.note_ended(connection, noted)
            if agents:
                agent_index.write(connection, agents)
            return changed, len(noted)

        return await self._control.write(work)


_SPOTS = 5000
_TRACES = 1000
_NOWHERE = Position(0, "")


class Live(NamedTuple):
    """A live call: where it lies, and below which one."""

    position: Position
    parent_id: str | None


class Deletion(NamedTuple):
    """What a deletion takes away: the ids that were asked for and those of all descendants, and their traces."""

    traces: set[str]
    ids: list[str]
    positions: dict[str, Position]


async def reach(clickhouse: Clickhouse, project: str, ids: Sequence[str]) -> Deletion:
    """The calls with all their descendants; nothing where none of them is live."""
    live: dict[str, Live] = {}
    for part in batched(await find_spots(clickhouse, ((project, call_id) for call_id in ids)), _SPOTS):
        live |= await _read_live(clickhouse, at_spots(part), project)
    traces = {call.position.trace_id for call in live.values()}
    if not traces:
        return Deletion(set(), [], {})
    for some in batched(traces, _TRACES):
        live |= await _read_live(clickhouse, f"trace_id IN {listed(some)}", project)
    children: dict[str, list[str]] = {}
    for call_id, call in live.items():
        if call.parent_id is not None and call.position.trace_id in traces:
            children.setdefault(call.parent_id, []).append(call_id)
    reached, pending = set(ids), list(ids)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in reached:
                reached.add(child)
                pending.append(child)
    return Deletion(traces, sorted(reached), {key: live[key].position for key in reached if key in live})


def hiding_rows(
    project: str, reached: Deletion, waiting: Collection[str], deleted_at: int, versions: Versions
) -> Iterable[Row]:
    """The rows that hide what was reached; also ids of ends that wait, so that their starts stay hidden."""
    nowhere = {call_id: _NOWHERE for call_id in waiting if call_id not in reached.positions}
    for call_id, position in (reached.positions | nowhere).items():
        yield hidden_row((project, call_id), position, deleted_at, versions.of_deletion())


async def purge_older(clickhouse: Clickhouse, project: str, before: int) -> int:
    """Remove the calls that started before an instant; returns how many. Returns once all nodes have done it."""
    given = {"project": project, "before": before}
    older = "project = {project:String} AND started_at < {before:Int64}"
    counted = await clickhouse.rows(f"SELECT count() FROM {CALLS} FINAL WHERE {older} AND deleted_at >= 0", given)
    # Keys are removed also where no call is counted: an earlier removal may have stopped between the two.
    for table in (CALLS, CALL_KEYS):
        if await clickhouse.rows(f"SELECT 1 FROM {table} WHERE {older} LIMIT 1", given):
            place = clickhouse.place
            statement = f"DELETE FROM {place.local(table)}{place.on_cluster} WHERE {older}"
            await clickhouse.command(f"{statement} SETTINGS lightweight_deletes_sync = 2", given)
    return int(counted[0][0])


async def purge(clickhouse: Clickhouse, project: str, ids: Sequence[str] | None) -> int:
    """Remove the rows of calls of a project, or of all without ids; returns how many calls. Parts keep them a while."""
    given, total = {"project": project}, 0
    mine = "project = {project:String}"
    parts: list[str] = [mine] if ids is None else [f"{mine} AND id IN {listed(part)}" for part in batched(ids, _SPOTS)]
    for condition in parts:
        counted = await clickhouse.rows(f"SELECT uniqExact(id) FROM {CALLS} WHERE {condition}", given)
        total += int(counted[0][0])
        for table in (CALLS, CALL_KEYS):
            await clickhouse.delete(table, condition, given)
    return total


async def _read_live(clickhouse: Clickhouse, condition: str, project: str) -> dict[str, Live]:
    query = f"SELECT id, started_at, trace_id, parent_id FROM {CALLS} FINAL WHERE {condition}"
    query += " AND project = {project:String} AND deleted_at = 0"
    found = await clickhouse.rows(query, {"project": project})
    return {row[0]: Live(Position(row[1], row[2]), row[3]) for row in found}


_AGENT_SPAN_BYTES = 600
_HIDDEN_ROWS = 5000
_PURGED_SPANS = 2000
_SWEEP_SECONDS = 3600
_OPEN_SECONDS = 24 * 3600
_SWEPT = 1000


class CallWrites:
    """Calls are written in groups; halves wait in the control tables, whatever server brings the other half."""

    def __init__(self, clickhouse: Clickhouse, control: Executor, queue_bytes: int) -> None:
        self._clickhouse = clickhouse
        self._control = control
        self._flush = Flush(clickhouse, control)
        self._flusher = Flusher(self._write_group, queue_bytes)
        self._ended = EndedCalls(control)
        self._swept = time.monotonic()
        self.has_endings = asyncio.Event()

    @property
    def stats(self) -> WriteStats:
        """What was written since the start."""
        return self._flusher.stats

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Store halves of calls, in any order, and the index rows of agent spans among them.

        Returns once both databases have them; after a failure all of it may be written again.
        """
        await self._add(Change(starts, ends, agents))
        self.stats.calls += len(starts)

    async def add_missing(self, starts: Sequence[Start], ends: Sequence[End]) -> int:
        change = Change(starts, ends, is_missing_only=True)
        await self._add(change)
        self.stats.calls += sum((start.project, start.id) in change.added for start in starts)
        return len(change.added)

    async def _add(self, change: Change) -> None:
        size = sum(half.size for part in (change.starts, change.ends) for half in part) + 200
        await self._flusher.add(change, size + _AGENT_SPAN_BYTES * len(change.agents))

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        await self._flusher.add(Change(names=[((project, call_id), display_name)]), 200)

    async def _write_group(self, group: Sequence[Change]) -> None:
        if await self._flush.write(group):
            self.has_endings.set()

    def watch(self, projects: Collection[str], seen: int) -> None:
        self._flush.watched = Watched(frozenset(projects), seen)

    async def take_endings(self, limit: int, skipping: Collection[str] = ()) -> list[Ending]:
        return await self._ended.take(limit, skipping)

    async def count_endings(self) -> int:
        return await self._ended.count()

    async def drop_endings(self, endings: Sequence[Ending]) -> None:
        await self._ended.drop(endings)

    async def delete(self, project: str, ids: Sequence[str], user: str) -> int:
        """Hide calls and their descendants; returns how many. The audit log names them before they are hidden."""
        reached = await reach(self._clickhouse, project, ids)
        if not reached.ids:
            return 0
        at = times.now()

        def work(connection: sa.Connection) -> list[str]:
            waiting = pending_calls.read_halves(connection, ((project, call_id) for call_id in reached.ids))
            pending_calls.remove_halves(connection, project, [key[1] for key in waiting])
            agent_index.hide(connection, project, reached.traces, reached.ids)
            remove_of_spans(connection, project, reached.traces, reached.ids)
            details = {"call_ids": list(ids), "deleted": len(reached.ids)}
            audit(connection, at, user, "calls.delete", project, details)
            return [key[1] for key in waiting]

        waiting = await self._control.write(work)
        rows = hiding_rows(project, reached, waiting, at, self._flush.versions)
        for part in batched(rows, _HIDDEN_ROWS):
            await self._flush.insert(part)
        return len(reached.ids)

    async def purge_older(self, project: str, before: int, goes_on: GoesOn = go_on) -> int:
        """Remove the calls that started before an instant for good, with one statement; returns how many."""
        total = await purge_older(self._clickhouse, project, before) if await goes_on() else 0

        def work(connection: sa.Connection) -> int:
            pending_calls.purge_halves(connection, project, before)
            return agent_index.purge_older(connection, project, before, _PURGED_SPANS)

        while await goes_on() and await self._control.write(work) == _PURGED_SPANS:
            pass
        return total

    async def purge(self, project: str, ids: Sequence[str]) -> int:
        return await purge(self._clickhouse, project, ids)

    async def purge_project(self, project: str) -> int:
        """Remove every call of a project for good; returns how many."""
        return await purge(self._clickhouse, project, None)

    async def keep_up(self) -> None:
        """Once an hour, forget halves that wait for a day though their call is stored; called every few seconds.

        An end that comes later finds the start among the stored calls.
        """
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept = time.monotonic()
        await self.sweep(times.now() - _OPEN_SECONDS * 1_000_000)

    async def sweep(self, before: int) -> int:
        """Forget halves that wait since before an instant (microseconds) and whose call is stored; returns how many."""
        total, after = 0, 0

        def oldest(connection: sa.Connection) -> tuple[int, dict[Key, int]]:
            return pending_calls.read_oldest(connection, after, before, _SWEPT)

        while True:
            after, keys = await self._control.read(oldest)
            if not keys:
                return total
            stored = {(project, call_id) for project, _, call_id in await find_spots(self._clickhouse, keys)}
            known = {key: revision for key, revision in keys.items() if key in stored}
            await self._control.write(lambda connection, known=known: pending_calls.remove_settled(connection, known))  # type: ignore[misc]
            total += len(known)

    async def close(self) -> None:
        """Write what waits."""
        await self._flusher.close()
