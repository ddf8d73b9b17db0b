"""Writing a group of changes: halves that meet are put together, calls go to ClickHouse, then all else follows.

Everything may be repeated after a failure: rows of one call replace each other, and a half waits in the control tables
until the row of the whole call is written.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from heddle.store.clickhouse import rows
from heddle.store.clickhouse.assembly import Assembly, Batch, Change, Outcome
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.rows import Position, Row, Versions
from heddle.store.clickhouse.schema import CALLS
from heddle.store.clickhouse.stored_calls import find_stored
from heddle.store.control import call_halves, ended_calls
from heddle.store.control.agents import spans as agent_index
from heddle.store.control.call_halves import Key, Met
from heddle.store.control.changes import MONITORS, number_of
from heddle.store.control.schema import Executor
from heddle.wire.calls import Start
from heddle.wire.spans import AgentSpan

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
            await self._clickhouse.insert(CALLS, rows.COLUMNS, found)

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
