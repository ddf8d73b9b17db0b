"""The writing verbs of calls on ClickHouse."""

import asyncio
import time
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from heddle.store.clickhouse import call_deletes
from heddle.store.clickhouse.assembly import Change
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.flush import Flush, Watched
from heddle.store.clickhouse.flusher import Flusher, FlusherStats
from heddle.store.clickhouse.stored_calls import find_spots
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
        reached = await call_deletes.reach(self._clickhouse, project, ids)
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
        hiding = call_deletes.hiding(project, reached, waiting, at, self._flush.versions)
        for part in batched(hiding, _HIDDEN_ROWS):
            await self._flush.insert(part)
        return len(reached.ids)

    async def purge_older(self, project: str, before: int) -> int:
        """Remove the calls that started before an instant for good; returns how many."""
        total = await call_deletes.purge_older(self._clickhouse, project, before)

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
