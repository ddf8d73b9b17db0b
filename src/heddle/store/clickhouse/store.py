"""The store that grows: calls and rows of tables on ClickHouse, everything small in control tables beside it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from heddle.errors import HeddleError, Unavailable
from heddle.settings import Settings
from heddle.store.base import ORPHAN_SECONDS, TIDY_SECONDS, Store, named_blobs
from heddle.store.blobs.open import open_blobs
from heddle.store.clickhouse.aggregates import CallAggregates
from heddle.store.clickhouse.assembly import at_spots
from heddle.store.clickhouse.calls import Calls
from heddle.store.clickhouse.client import Clickhouse, Client, Row, rows_of
from heddle.store.clickhouse.schema import (
    CALL_KEYS,
    CALLS,
    STEPS,
    TABLE_ROWS,
    TYPES,
    Place,
    add_error_group,
    add_kind,
    listed,
    make_calls,
    make_table_rows,
    steps_table,
)
from heddle.store.clickhouse.search import add_words
from heddle.store.clickhouse.trace_spans import TraceSpans
from heddle.store.clickhouse.trials import Trials
from heddle.store.control import pending_calls
from heddle.store.control.repository import Executor, WriteStats
from heddle.store.data_folder import Sizes
from heddle.store.sqlite import store as sqlite
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl
from heddle.wire.batched import batched
from heddle.wire.call_summary import read_error

ERROR_GROUPS = 3
"""The step after which failed calls of earlier versions get their error group."""
MIGRATIONS = (
    (1, "calls and their keys", make_calls),
    (2, "rows of tables", make_table_rows),
    (ERROR_GROUPS, "which failed calls have the same error", add_error_group),
    (4, "words of calls", add_words),
    (5, "what each call is: of a model, an agent, a tool", add_kind),
)
CURRENT = MIGRATIONS[-1][0]


if TYPE_CHECKING:
    from heddle.store.postgres.control import PostgresControl


_PART = 1000
_GROUPED_AT_ONCE = 500
_IS_STORED_COLUMN = f"database = currentDatabase() AND table = '{CALLS}' AND default_kind IN ('', 'DEFAULT')"
_PART_BYTES = 8 * 1024 * 1024


class TableRows:
    """RowTexts (see control/row_texts.py); the same row may be stored twice until ClickHouse merges."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def put(self, project: str, rows: Mapping[str, str]) -> Callable[[sa.Connection], None]:
        """Store the rows that are not there; nothing is left to be done in the control database."""
        known = await self.stored(project, rows.keys())
        pending: list[Row] = []
        size = 0
        for digest, val in rows.items():
            if digest in known:
                continue
            if pending and size + len(val) > _PART_BYTES:
                await self._insert(pending)
                pending, size = [], 0
            pending.append((project, digest, val))
            size += len(val)
        await self._insert(pending)
        return lambda _connection: None

    async def _insert(self, rows: list[Row]) -> None:
        if rows:
            await self._clickhouse.insert(TABLE_ROWS, ("project", "digest", "val"), rows)

    async def texts(self, project: str, digests: Collection[str]) -> dict[str, str]:
        return {row[0]: row[1] async for row in self._select("digest, any(val)", project, digests)}

    async def sizes(self, project: str, digests: Collection[str]) -> dict[str, int]:
        return {row[0]: int(row[1]) async for row in self._select("digest, any(length(val))", project, digests)}

    async def stored(self, project: str, digests: Collection[str]) -> set[str]:
        return {row[0] async for row in self._select("digest", project, digests)}

    async def purge(self, project: str, digests: Collection[str] | None) -> int:
        total = 0
        for part in [None] if digests is None else batched(digests, _PART):
            mine = "project = {project:String}" + ("" if part is None else f" AND digest IN {listed(part)}")
            given = {"project": project}
            found = await self._clickhouse.rows(f"SELECT uniqExact(digest) FROM {TABLE_ROWS} WHERE {mine}", given)
            total += int(found[0][0])
            await self._clickhouse.delete(TABLE_ROWS, mine, given)
        return total

    async def total_size(self, project: str) -> int:
        each = f"SELECT any(length(val)) AS size FROM {TABLE_ROWS} WHERE project = {{project:String}} GROUP BY digest"
        found = await self._clickhouse.rows(f"SELECT sum(size) FROM ({each})", {"project": project})
        return int(found[0][0])

    async def _select(self, columns: str, project: str, digests: Iterable[str]) -> AsyncIterator[Row]:
        for part in batched(digests, _PART):
            query = (
                f"SELECT {columns} FROM {TABLE_ROWS} WHERE project = {{project:String}} AND digest IN {listed(part)}"
            )
            for row in await self._clickhouse.rows(f"{query} GROUP BY digest", {"project": project}):
                yield row


_TIDYING = "tidy the store"
_READ_ONLY = "SELECT count() FROM system.replicas WHERE database = currentDatabase() AND is_readonly"
_NAMED = f"SELECT DISTINCT arrayJoin(mapValues(files)) AS blob FROM {CALLS} FINAL WHERE blob IN {{keys:Array(String)}}"

_HAS_TEXT_INDEX = "SELECT 1 FROM system.functions WHERE name = 'hasAllTokens'"

_LOCK = 0x686564646C65
"""The number by which servers that share PostgreSQL agree on who changes the tables."""
_LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


class ScaleStore(Store):
    """Everything that is kept, on engines that other servers share."""

    schema = CURRENT
    calls: Calls

    def __init__(self, settings: Settings, clickhouse: Clickhouse, control: "SqliteControl | PostgresControl") -> None:
        is_shared = settings.control != "sqlite"
        super().__init__(control.executor, control.keys, control.spans, TableRows(clickhouse), is_shared)
        self._clickhouse = clickhouse
        self._control = control
        self.blobs = open_blobs(settings)
        self.redaction.set_default(settings.redaction)
        given = (clickhouse, control.executor)
        self.calls = self._calls = Calls(*given, settings.write_queue_bytes, self._read_text)
        self.trials = Trials(clickhouse, self._read_text)
        self.call_aggregates = CallAggregates(*given)
        self.trace_spans = TraceSpans(clickhouse)
        self._tidied_at = time.monotonic()
        self._upkeep = asyncio.create_task(self._keep_up())

    @property
    def stats(self) -> WriteStats:
        return self._calls.stats

    async def sizes(self) -> Sizes:
        return await self._control.sizes()

    async def find_damage(self) -> str:
        return await self._control.find_damage()

    async def ping(self) -> None:
        """Commit a tiny write to the control tables, and see that the two other stores would take one."""
        await super().ping()
        if (await self._clickhouse.rows(_READ_ONLY))[0][0]:
            raise Unavailable("The store of calls is currently read-only")
        await asyncio.to_thread(self.blobs.ping)

    async def named_blobs(self, keys: Sequence[str]) -> set[str]:
        def work(connection: sa.Connection) -> set[str]:
            return named_blobs(connection, keys) | set(pending_calls.read_blobs(connection))

        of_control = await self._control.executor.read(work)
        return of_control | {row[0] for row in await self._clickhouse.rows(_NAMED, {"keys": list(keys)})}

    async def compact(self) -> None:
        await self._control.compact()
        purged = (CALLS, CALL_KEYS, TABLE_ROWS)
        for table in purged:
            await self._clickhouse.apply_deletes(table)
        await self._clickhouse.wait_for_removal(purged)

    async def close(self) -> None:
        await self._stop_upkeep()
        await self._calls.close()
        await asyncio.to_thread(self._clickhouse.close)
        await self._control.close()

    async def _do_upkeep(self) -> None:
        """Finish what a crash left between the two databases; now and then one server for all collects files."""
        await self._calls.keep_up()
        if time.monotonic() - self._tidied_at > TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            if await self.leases.take(_TIDYING, TIDY_SECONDS):
                await self.collect_files()


async def open_store(settings: Settings) -> ScaleStore:
    """Connect to both databases and bring them to the current schema; raises HeddleError when that cannot be done."""
    control = await _open_control(settings)
    cluster = None if settings.store_cluster == "none" else settings.store_cluster
    clickhouse = Clickhouse(settings.store, settings.readers, settings.query_timeout, cluster)
    try:
        await migrate(clickhouse, clickhouse.place, control.executor)
        store = ScaleStore(settings, clickhouse, control)
        await asyncio.to_thread(store.blobs.sweep, ORPHAN_SECONDS)
    except BaseException:
        await asyncio.to_thread(clickhouse.close)
        await control.close()
        raise
    return store


async def _open_control(settings: Settings) -> "SqliteControl | PostgresControl":
    if settings.control == "sqlite":
        path = Path(settings.data) / DATABASE
        return SqliteControl(settings, path, sqlite.open_file(settings, path))
    # The packages of PostgreSQL are an extra.
    from heddle.store.postgres.control import open_control

    return await open_control(settings)


async def migrate(clickhouse: Clickhouse, place: Place, control: Executor) -> list[str]:
    """Make the database where it is missing and take the pending steps; returns what they are about.

    Raises HeddleError where a newer heddle has been, and Unavailable while ClickHouse does not answer.
    """

    def work(connection: sa.Connection) -> list[str]:
        if connection.dialect.name == "postgresql":
            # The first server may take long, as every node of a cluster makes its tables; the others wait for it.
            for limit in _LIMITS:
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        clickhouse.make_database()
        return clickhouse.run(lambda client: _take_steps(client, place))

    return await control.write(work)


def _take_steps(client: Client, place: Place) -> list[str]:
    for statement in steps_table(place):
        client.command(statement)
    found = int(rows_of(client, f"SELECT max(number) FROM {STEPS}")[0][0])
    if found > CURRENT:
        raise HeddleError(
            f"The database {place.database} was written by a newer heddle"
            f" (schema {found}; this version supports {CURRENT}); upgrade heddle"
        )
    place = replace(place, has_text_index=bool(rows_of(client, _HAS_TEXT_INDEX)))
    taken: list[str] = []
    for number, title, statements in MIGRATIONS:
        if number > found:
            for statement in statements(place):
                client.command(statement)
            if found and number == ERROR_GROUPS:
                _fill_error_groups(client)
            client.insert(STEPS, [(number, title)], list(TYPES[STEPS]), column_type_names=list(TYPES[STEPS].values()))
            taken.append(title)
    return taken


def _fill_error_groups(client: Client) -> None:
    """Write the failed calls of earlier versions again, with their error groups and a higher version."""
    # Later steps have not added theirs yet.
    found = rows_of(client, f"SELECT name FROM system.columns WHERE {_IS_STORED_COLUMN}")
    columns = [name for (name,) in found if name not in ("error_group", "version")]
    spot = ("", -(2**63), "")
    while True:
        rows = rows_of(
            client,
            f"""SELECT project, started_at, id, exception FROM {CALLS} FINAL WHERE exception <> ''
                AND (project, started_at, id) > {listed(spot)}
                ORDER BY project, started_at, id LIMIT {_GROUPED_AT_ONCE}""",
        )
        if not rows:
            return
        ids = listed(f"{row[0]}/{row[2]}" for row in rows)
        groups = listed(read_error(row[3]).group for row in rows)
        client.command(
            f"""INSERT INTO {CALLS} ({", ".join(columns)}, error_group, version)
                SELECT {", ".join(columns)}, transform(concat(project, '/', id), [{ids[1:-1]}], [{groups[1:-1]}], ''),
                version + 1 FROM {CALLS} FINAL WHERE {at_spots([(row[0], row[1], row[2]) for row in rows])}"""
        )
        spot = rows[-1][:3]
