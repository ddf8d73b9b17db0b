"""Finding calls by id, whole as they are stored, for what is to be changed about them."""

from collections.abc import Iterable, Sequence

from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.rows import COLUMNS, Stored, stored
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, listed, quoted
from heddle.store.control.call_halves import Key, by_project
from heddle.wire.batched import batched

_KEYS = 2000
_BODIES = 200
Spot = tuple[str, int, str]
"""Project, start (microseconds) and id: the order in which calls lie."""


async def find_spots(clickhouse: Clickhouse, keys: Iterable[Key]) -> list[Spot]:
    """Everywhere that the calls lie or have lain, also those that were deleted."""
    found: list[Spot] = []
    for project, ids in by_project(keys).items():
        for part in batched(ids, _KEYS):
            query = f"SELECT DISTINCT project, started_at, id FROM {CALL_KEYS}"
            query += f" WHERE project = {quoted(project)} AND id IN {listed(part)}"
            found.extend((row[0], row[1], row[2]) for row in await clickhouse.rows(query))
    return found


def at_spots(spots: Sequence[Spot]) -> str:
    """The condition that reads these spots of the calls and hardly anything else."""
    starts = [spot[1] for spot in spots]
    return f"(project, started_at, id) IN {listed(spots)} AND started_at BETWEEN {min(starts)} AND {max(starts)}"


async def find_stored(clickhouse: Clickhouse, keys: Iterable[Key]) -> dict[Key, list[Stored]]:
    """The rows of the calls, more than one where a call has moved; unknown calls are left out."""
    found: dict[Key, list[Stored]] = {}
    for part in batched(await find_spots(clickhouse, keys), _BODIES):
        query = f"SELECT {', '.join(COLUMNS)} FROM {CALLS} FINAL WHERE {at_spots(part)}"
        for values in await clickhouse.rows(query):
            key, row = stored(values)
            found.setdefault(key, []).append(row)
    return found
