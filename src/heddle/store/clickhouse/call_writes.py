"""The writing verbs of calls on ClickHouse, deletions among them."""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from heddle.store.clickhouse.assembly import Change, Position, Row, Versions, at_spots, find_spots, hidden_row
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.flush import Flush, Flusher, FlusherStats, Watched
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, listed
from heddle.store.control import call_halves
from heddle.store.control.agents import spans as agent_index
from heddle.store.control.call_halves import Key
from heddle.store.control.ended_calls import EndedCalls
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.calls import End, Ending, Start
from heddle.wire.spans import AgentSpan

_SPOTS = 5000
_TRACES = 1000
_NOWHERE = Position(0, "")


class Live(NamedTuple):
    """A live call: where it lies, and below which one."""

    position: Position
    parent_id: str | None


class Reached(NamedTuple):
    """What a deletion takes away: the ids that were asked for and those of all descendants, and their traces."""

    traces: set[str]
    ids: list[str]
    positions: dict[str, Position]


async def reach(clickhouse: Clickhouse, project: str, ids: Sequence[str]) -> Reached:
    """The calls with all their descendants; nothing where none of them is live."""
    requested = await _live_at(clickhouse, project, ids)
    traces = {call.position.trace_id for call in requested.values()}
    if not traces:
        return Reached(set(), [], {})
    live = requested | await _live_in(clickhouse, project, traces)
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
    return Reached(traces, sorted(reached), {key: live[key].position for key in reached if key in live})


def hiding_rows(
    project: str, reached: Reached, waiting: Collection[str], deleted_at: int, versions: Versions
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


async def _live_at(clickhouse: Clickhouse, project: str, ids: Sequence[str]) -> dict[str, Live]:
    spots = await find_spots(clickhouse, ((project, call_id) for call_id in ids))
    found: dict[str, Live] = {}
    for part in batched(spots, _SPOTS):
        found |= await _read(clickhouse, at_spots(part), project)
    return found


async def _live_in(clickhouse: Clickhouse, project: str, traces: Iterable[str]) -> dict[str, Live]:
    found: dict[str, Live] = {}
    for part in batched(traces, _TRACES):
        found |= await _read(clickhouse, f"trace_id IN {listed(part)}", project)
    return found


async def _read(clickhouse: Clickhouse, condition: str, project: str) -> dict[str, Live]:
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
    def figures(self) -> FlusherStats:
        """What was written since the start."""
        return self._flusher.figures

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Store halves of calls, in any order, and the index rows of agent spans among them.

        Returns once both databases have them; after a failure all of it may be written again.
        """
        size = sum(start.size for start in starts) + sum(end.size for end in ends) + 200
        await self._flusher.add(Change(starts, ends, agents), size + _AGENT_SPAN_BYTES * len(agents))

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        """Give a call its display name; nothing happens for an unknown call."""
        await self._flusher.add(Change(names=[((project, call_id), display_name)]), 200)

    async def _write_group(self, group: Sequence[Change]) -> None:
        if await self._flush.write(group):
            self.has_endings.set()

    def watch(self, projects: Collection[str], seen: int) -> None:
        """Note from now on the calls of these projects (internal ids) that end; replaces what was watched before.

        Once the monitors were changed more often than `seen` says, the calls of every project are noted.
        """
        self._flush.watched = Watched(frozenset(projects), seen)

    async def take_endings(self, limit: int, skipping: Collection[str] = ()) -> list[Ending]:
        """The oldest noted endings of one project as a batch; the same again until it is dropped."""
        return await self._ended.take(limit, skipping)

    async def count_endings(self) -> int:
        """How many noted endings wait."""
        return await self._ended.count()

    async def drop_endings(self, project: str) -> None:
        """Forget the batch of a project that was taken."""
        await self._ended.drop(project)

    async def delete(self, project: str, ids: Sequence[str], user: str) -> int:
        """Hide calls and their descendants; returns how many. The audit log names them before they are hidden."""
        reached = await reach(self._clickhouse, project, ids)
        if not reached.ids:
            return 0
        at = times.now()

        def work(connection: sa.Connection) -> list[str]:
            waiting = call_halves.read(connection, ((project, call_id) for call_id in reached.ids))
            call_halves.remove(connection, project, [key[1] for key in waiting])
            agent_index.hide(connection, project, reached.traces, reached.ids)
            details = {"call_ids": list(ids), "deleted": len(reached.ids)}
            audit(connection, at, user, "calls.delete", project, details)
            return [key[1] for key in waiting]

        waiting = await self._control.write(work)
        rows = hiding_rows(project, reached, waiting, at, self._flush.versions)
        for part in batched(rows, _HIDDEN_ROWS):
            await self._flush.insert(part)
        return len(reached.ids)

    async def purge_older(self, project: str, before: int) -> int:
        """Remove the calls that started before an instant for good; returns how many."""
        total = await purge_older(self._clickhouse, project, before)

        def work(connection: sa.Connection) -> int:
            call_halves.purge_older(connection, project, before)
            return agent_index.purge_older(connection, project, before, _PURGED_SPANS)

        while await self._control.write(work) == _PURGED_SPANS:
            pass
        return total

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
        while True:
            after, keys = await self._oldest(after, before)
            if not keys:
                return total
            stored = {(project, call_id) for project, _, call_id in await find_spots(self._clickhouse, keys)}
            known = {key: revision for key, revision in keys.items() if key in stored}
            await self._control.write(lambda connection, known=known: call_halves.take(connection, known))  # type: ignore[misc]
            total += len(known)

    async def _oldest(self, after: int, before: int) -> tuple[int, dict[Key, int]]:
        return await self._control.read(lambda connection: call_halves.oldest(connection, after, before, _SWEPT))

    async def close(self) -> None:
        """Write what waits."""
        await self._flusher.close()
