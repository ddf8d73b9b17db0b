"""The store that grows: calls and rows of tables on ClickHouse, everything small in control tables beside it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from heddle.errors import HeddleError, Unavailable
from heddle.settings import Settings
from heddle.store.base import ORPHAN_SECONDS, Store, StoreStats
from heddle.store.blobs.open import open_blobs
from heddle.store.clickhouse.calls import Calls
from heddle.store.clickhouse.client import Clickhouse, rows_of
from heddle.store.clickhouse.schema import CALLS, CURRENT, MIGRATIONS, STEPS, TYPES, Place, steps_table
from heddle.store.clickhouse.sums import Breakdowns, CallCounts, CallStats, Overviews, ProjectActivities, ThreadSums
from heddle.store.clickhouse.table_rows import TableRows
from heddle.store.clickhouse.trace_spans import TraceSpans
from heddle.store.clickhouse.trials import Trials
from heddle.store.control import call_halves
from heddle.store.control.groups import named_blobs
from heddle.store.control.schema import Executor
from heddle.store.sizes import Sizes
from heddle.store.sqlite import store as sqlite
from heddle.store.sqlite.store import SqliteControl

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from heddle.store.postgres.control import PostgresControl

logger = logging.getLogger("heddle.store")

_UPKEEP_SECONDS = 2.0
_TIDY_EVERY = 1800
_TIDYING = "tidy the store"
_READ_ONLY = "SELECT count() FROM system.replicas WHERE database = currentDatabase() AND is_readonly"
_NAMED = f"SELECT DISTINCT arrayJoin(mapValues(files)) AS blob FROM {CALLS} FINAL WHERE blob IN {{keys:Array(String)}}"

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
        given = (clickhouse, control.executor)
        self.calls = self._calls = Calls(*given, settings.write_queue_bytes, self._read_text)
        self.trials = Trials(clickhouse, self._read_text)
        self.call_counts = CallCounts(*given)
        self.call_stats = CallStats(*given)
        self.trace_spans = TraceSpans(clickhouse)
        self.breakdowns = Breakdowns(clickhouse)
        self.project_activity = ProjectActivities(*given)
        self.overviews = Overviews(clickhouse)
        self.thread_sums = ThreadSums(clickhouse)
        self._upkeep = asyncio.create_task(self._keep_up())

    @property
    def figures(self) -> StoreStats:
        """What the writer of calls did since the start."""
        return self._calls.figures

    async def sizes(self) -> Sizes:
        """How much room everything takes."""
        return await self._control.sizes()

    async def ping(self) -> None:
        """Commit a tiny write to the control tables, and see that the two other stores would take one."""
        await super().ping()
        if (await self._clickhouse.rows(_READ_ONLY))[0][0]:
            raise Unavailable("The store of calls can be read but not written to at the moment")
        await asyncio.to_thread(self.blobs.ping)

    async def _named_blobs(self, keys: Sequence[str]) -> set[str]:
        def work(connection: sa.Connection) -> set[str]:
            return named_blobs(connection, keys) | set(call_halves.blobs(connection))

        of_control = await self._control.executor.read(work)
        return of_control | {row[0] for row in await self._clickhouse.rows(_NAMED, {"keys": list(keys)})}

    async def close(self) -> None:
        """Write what waits and close every connection."""
        await self._stop_upkeep()
        await self._calls.close()
        await asyncio.to_thread(self._clickhouse.close)
        await self._control.close()

    async def _keep_up(self) -> None:
        """Finish what a crash left between the two databases; now and then one server for all collects files."""
        tidied = time.monotonic()
        while True:
            await asyncio.sleep(_UPKEEP_SECONDS)
            try:
                await self._calls.keep_up()
                if time.monotonic() - tidied > _TIDY_EVERY:
                    tidied = time.monotonic()
                    if await self.leases.take(_TIDYING, _TIDY_EVERY):
                        await self.collect_files()
            except Exception as error:  # whatever it is, upkeep goes on
                is_ours = not isinstance(error, HeddleError)
                logger.warning("upkeep of the store was put off: %s", error, exc_info=is_ours)


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
        path = Path(settings.data) / sqlite.DATABASE
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


def _take_steps(client: "Client", place: Place) -> list[str]:
    for statement in steps_table(place):
        client.command(statement)
    found = int(rows_of(client, f"SELECT max(number) FROM {STEPS}")[0][0])
    if found > CURRENT:
        raise HeddleError(
            f"The database {place.database} was written by a newer heddle"
            f" (schema {found}, this one knows {CURRENT}); upgrade heddle"
        )
    taken: list[str] = []
    for number, title, statements in MIGRATIONS:
        if number > found:
            for statement in statements(place):
                client.command(statement)
            client.insert(STEPS, [(number, title)], list(TYPES[STEPS]), column_type_names=list(TYPES[STEPS].values()))
            taken.append(title)
    return taken
