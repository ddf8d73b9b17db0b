"""Taking calls away: hiding them with their descendants, and removing for good what is older than a project keeps."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from heddle.store.clickhouse import rows
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.rows import Position, Row, Versions
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, listed
from heddle.store.clickhouse.stored_calls import at_spots, find_spots
from heddle.wire.batched import batched

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


def hiding(
    project: str, reached: Reached, waiting: Collection[str], deleted_at: int, versions: Versions
) -> Iterable[Row]:
    """The rows that hide what was reached; also ids of ends that wait, so that their starts stay hidden."""
    nowhere = {call_id: _NOWHERE for call_id in waiting if call_id not in reached.positions}
    for call_id, position in (reached.positions | nowhere).items():
        yield rows.hidden_row((project, call_id), position, deleted_at, versions.of_deletion())


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
