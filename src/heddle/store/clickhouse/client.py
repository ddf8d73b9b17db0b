"""The way to a ClickHouse server: blocking clients in threads, its failures in words of ours, what statements bind."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from heddle.errors import HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.extras import install_command
from heddle.store.base import Looked
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, TABLE_ROWS, TYPES, Place, listed, quoted

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client as Client
else:
    Client = Any

T = TypeVar("T")
Row = tuple[Any, ...]

_RETRY_SECONDS = 2
_NAMED_BLOBS = f"SELECT DISTINCT arrayJoin(mapValues(files)) FROM {CALLS}"
_TIMEOUT, _TOO_COMPLEX = (159, 160, 209), (167, 168, 306, 572, 718)
"""Codes of ClickHouse: what ran too long, and what is too deep or too big to be parsed."""
_REFUSED = (192, 193, 194, 497, 516)
_NO_CLUSTER = (170, 701)
_BROKEN = ("OperationalError", "HTTPError", "ProtocolError", "MaxRetryError")
_FULL = 243
_LATER = (3, 76, 173, 202, 203, 210, 225, 236, 241, 242, 252, 254, 279, 285, 286, 319, 394, 439, 745, 999)
"""Codes of what may go well a little later: too much at once, memory, parts, replicas, nodes that stop or are away."""
_SETTINGS = {
    # A row never changes its month, so no part of another one needs to be looked at.
    "do_not_merge_across_partitions_select_final": 1,
    "throw_on_max_partitions_per_insert_block": 0,
    "max_query_size": 64 * 1024 * 1024,
    "max_ast_elements": 1_000_000,
    "max_expanded_ast_elements": 1_000_000,
    # JSON below a path is read as it was written.
    "output_format_json_escape_forward_slashes": 0,
    # A subquery over all shards is run once for all of them; otherwise clusters of several shards refuse it.
    "distributed_product_mode": "global",
}
_INSERT_SETTINGS = {"async_insert": 1, "wait_for_async_insert": 1}
"""Small batches of many servers become one part, and the answer comes once it is written."""
_CLUSTER_SETTINGS = {**_INSERT_SETTINGS, "distributed_foreground_insert": 1}
"""On a cluster also: once the shards have written it."""
_REPEATABLE = {"insert_deduplicate": 0, "async_insert_deduplicate": 0, "deduplicate_insert": "disable"}
"""Equal rows that come again are written again: those of before may have been purged. Servers know some of these."""


class Clickhouse:
    """One database, on a cluster where one is named; `threads` queries run at once, each at most `timeout` seconds.

    `place` is where its tables are.
    """

    def __init__(self, address: str, threads: int, timeout: float, cluster: str | None = None) -> None:
        self.database = unquote(urlsplit(address).path.strip("/")) or "default"
        self.timeout = timeout
        self.place = Place(self.database, cluster)
        self._address = address
        self._cluster = cluster
        self._client: Client | None = None
        self._connecting = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heddle-clickhouse")
        self._inserts = ThreadPoolExecutor(2, thread_name_prefix="heddle-clickhouse-insert")

    async def read(self, work: Callable[["Client"], T]) -> T:
        """Run `work` in a thread; raises QueryTimeout, InvalidRequest (too complex) and Unavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run, work)

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a SELECT; parameters are bound by the server (`{name:Type}` in the text)."""
        return await self.read(lambda client: rows_of(client, sql, parameters))

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows; returns once the server has written them. Raises Unavailable while it cannot, and StorageFull."""
        types = [TYPES[table][column] for column in columns]
        how = _CLUSTER_SETTINGS if self._cluster else _INSERT_SETTINGS

        def work(client: "Client") -> None:
            known = {name: value for name, value in _REPEATABLE.items() if name in client.server_settings}
            client.insert(table, rows, column_names=columns, column_type_names=types, settings=how | known)

        try:
            await asyncio.get_running_loop().run_in_executor(self._inserts, self.run, work)
        except QueryTimeout as error:
            raise Unavailable("The store of calls did not write in time", retry_after=_RETRY_SECONDS) from error

    async def command(self, statement: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that answers nothing; returns once it is done."""
        await self.read(lambda client: client.command(statement, parameters=dict(parameters or {})))

    async def delete(self, table: str, condition: str, parameters: Mapping[str, Any]) -> None:
        """Write the parts of a table anew without some rows; returns once every node has done it."""
        if await self.rows(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", parameters):
            local = f"{self.place.local(table)}{self.place.on_cluster}"
            await self.command(f"ALTER TABLE {local} DELETE WHERE {condition}", parameters)
            await self._mutated(table)

    async def apply_deletes(self, table: str) -> None:
        """Write the parts of a table anew without the rows that are only marked as deleted."""
        await self.command(f"ALTER TABLE {self.place.local(table)}{self.place.on_cluster} APPLY DELETED MASK")
        await self._mutated(table)

    async def wait_for_removal(self, tables: Sequence[str]) -> None:
        """Return once the disks of all nodes hold no part that these tables have given up until now.

        ClickHouse keeps them for its setting `old_parts_lifetime`. Raises Unavailable when it takes too long.
        """
        [(now,)] = await self.rows("SELECT toUnixTimestamp(now())")
        mine = " OR ".join(f"({self._of(table)})" for table in tables)
        old = f"SELECT name FROM {self._everywhere('parts')} WHERE ({mine}) AND NOT active AND remove_time <= {now}"
        await self._until(lambda found: not found, old, pause=1.0)

    async def _mutated(self, table: str) -> None:
        open_ones = f"SELECT mutation_id, latest_fail_reason FROM {self._everywhere('mutations')}"
        await self._until(lambda found: not found, f"{open_ones} WHERE {self._of(table)} AND NOT is_done")

    async def _until(self, is_done: Callable[[list[Row]], bool], query: str, pause: float = 0.2) -> None:
        """Wait for what ClickHouse does in the background; raises Unavailable when that takes too long."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_done(found := await self.rows(query)):
            if time.monotonic() > deadline:
                raise Unavailable(f"ClickHouse has not removed rows in time: {str(found[0])[:200]}")
            await asyncio.sleep(pause)

    def _everywhere(self, table: str) -> str:
        """A system table of this server, or of all nodes."""
        return f"clusterAllReplicas({quoted(self._cluster)}, system.{table})" if self._cluster else f"system.{table}"

    def _of(self, table: str) -> str:
        return f"database = {quoted(self.database)} AND table = {quoted(self.place.local(table))}"

    def run(self, work: Callable[["Client"], T]) -> T:
        """Run `work` in this thread, with failures explained."""
        with explained():
            return work(self._connected())

    def make_database(self) -> None:
        """Make the database where there is none yet, in this thread."""
        with explained(), closing(connect(self._address, self.timeout, "default")) as client:
            if not rows_of(client, f"SELECT 1 FROM system.databases WHERE name = {quoted(self.database)}"):
                name = self.database.replace("`", "``")
                client.command(f"CREATE DATABASE IF NOT EXISTS `{name}`{self.place.on_cluster}")

    def look(self) -> tuple[str, bool]:
        """The server's version and the database in words, and whether its tables are there, in this thread."""
        with explained(), closing(connect(self._address, self.timeout, "default")) as client:
            made = rows_of(client, f"SELECT 1 FROM system.databases WHERE name = {quoted(self.database)}")
            told = f"ClickHouse {client.server_version}, database {self.database}"
            there = f"SELECT 1 FROM system.tables WHERE database = {quoted(self.database)} AND name = {quoted(CALLS)}"
            return told if made else f"{told} (will be created)", bool(rows_of(client, there))

    def check_tables(self) -> Looked:
        """The stored parts of the tables that are there, in this thread."""
        names = listed(self.place.local(name) for name in (CALLS, CALL_KEYS, TABLE_ROWS))
        there = f"SELECT name FROM system.tables WHERE database = {quoted(self.database)} AND name IN {names}"
        tables = [name for (name,) in self.run(lambda client: rows_of(client, there))]
        asked = "CHECK TABLE {} SETTINGS check_query_single_value_result = 1"
        damaged = [
            f"the table {table} has damaged parts"
            for table in tables
            if not self.run(lambda client, table=table: rows_of(client, asked.format(table)))[0][0]  # type: ignore[misc]
        ]
        return Looked(len(tables), len(tables), damaged)

    def named_blobs(self) -> list[str]:
        """The keys of all blobs that calls name, in this thread."""
        return [key for (key,) in self.run(lambda client: rows_of(client, _NAMED_BLOBS))]

    def _connected(self) -> "Client":
        """The client; it holds no session, so any number of threads may use it."""
        with self._connecting:
            if self._client is None:
                self._client = connect(self._address, self.timeout)
            return self._client

    def close(self) -> None:
        """Wait for what runs, then close the connections."""
        self._inserts.shutdown(wait=True)
        self._pool.shutdown(wait=True)
        if self._client is not None:
            self._client.close()


def connect(address: str, timeout: float, database: str | None = None) -> "Client":
    """A client for `clickhouse[s]://user:password@host:port/database?setting=value`; raises what the driver raises."""
    try:
        import clickhouse_connect
    except ImportError:
        raise HeddleError(
            f"store = clickhouse://... requires another package: {install_command('clickhouse')}"
        ) from None
    parts = urlsplit(address)
    return clickhouse_connect.get_client(
        interface="https" if parts.scheme == "clickhouses" else "http",
        host=parts.hostname or "localhost",
        port=parts.port or (8443 if parts.scheme == "clickhouses" else 8123),
        username=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        database=database if database is not None else unquote(parts.path.strip("/")) or "default",
        settings={**_SETTINGS, "max_execution_time": timeout, **dict(parse_qsl(parts.query))},
        autogenerate_session_id=False,
        connect_timeout=5,
        send_receive_timeout=timeout + 5,
        query_retries=1,
    )


@contextmanager
def explained() -> Iterator[None]:
    """Raise failures of ClickHouse and of the way to it as ours."""
    try:
        yield
    except HeddleError:
        raise
    except Exception as error:  # the driver's own, of which some are not of its tree
        known = explain(error)
        if known is None:
            raise
        raise known from error


def rows_of(client: "Client", sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows of a SELECT, in the thread of the caller."""
    return [tuple(row) for row in client.query(sql, parameters=dict(parameters or {})).result_rows]


def explain(error: Exception) -> HeddleError | None:
    """What a failure of ClickHouse or of the way to it means to the caller, or None when it is no known kind."""
    code = getattr(error, "code", None)
    name = type(error).__name__
    if code in _TIMEOUT:
        return QueryTimeout()
    if code in _TOO_COMPLEX:
        return InvalidRequest(f"The query is too complex: {str(error)[:200]}")
    if code in _REFUSED:
        return HeddleError(f"ClickHouse rejected the user of the setting store: {str(error)[:200]}")
    if code in _NO_CLUSTER:
        return HeddleError(f"ClickHouse does not know the cluster of the setting store_cluster: {str(error)[:200]}")
    if code == _FULL:
        return StorageFull("The disk of the store of calls is full; nothing of this request was stored")
    if code in _LATER:
        return Unavailable(f"The store of calls is overloaded: {str(error)[:200]}", retry_after=_RETRY_SECONDS)
    # An error of the database without a code comes from something between: a proxy that finds no server.
    is_between = name == "DatabaseError" and code is None
    if is_between or isinstance(error, OSError) or name in _BROKEN:
        return Unavailable(f"The store of calls cannot be reached: {_reason(error)}", retry_after=_RETRY_SECONDS)
    return None


def _reason(error: BaseException) -> str:
    """What the system says is the matter; the driver's own words carry the address with the whole query."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return str(error).partition(" with url")[0][:200]


_PATIENCE_SECONDS = 3600.0

_PARAMETER_BYTES = 3000
"""Parameters are part of the address of a request, of which servers and what is before them allow some KiB."""


class Bound:
    """Gathers what a statement binds; the same constant is bound once, so that equal expressions stay equal."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self._definitions: dict[str, str] = {}
        self._tables: list[str] = []
        self._known: dict[tuple[str, str], str] = {}
        self._size = 0

    def value(self, value: str | int | float) -> str:
        if isinstance(value, str):
            return self._bound("String", value, quoted(value))
        return self._bound("Int64" if isinstance(value, int) else "Float64", value, repr(value))

    def values(self, values: Sequence[str | int | float]) -> str:
        """The SQL of a list, as it stands behind IN; not empty."""
        kind = "String" if isinstance(values[0], str) else "Int64"
        return self._bound(f"Array({kind})", list(values), listed(values))

    def _bound(self, kind: str, value: Any, literal: str) -> str:
        """A parameter, while there is room for one, else the literal."""
        key = (kind, literal)
        # An address spells what is not ASCII with three characters a byte.
        size = 20 + (len(literal) if literal.isascii() else 12 * len(literal))
        if key not in self._known and self._size + size <= _PARAMETER_BYTES:
            self._size += size
            name = f"p{len(self.parameters)}"
            self.parameters[name] = value
            self._known[key] = f"{{{name}:{kind}}}"
        return self._known.get(key, literal)

    def table(self, columns: tuple[tuple[str, str], ...], rows: Sequence[tuple[str | int, ...]]) -> str:
        """The name of a table of the statement alone; `columns` are pairs of name and type."""
        name = f"sent_{len(self._tables)}"
        kinds = ", ".join(kind for _, kind in columns)
        row = ", ".join(f"t.{number} AS {column}" for number, (column, _) in enumerate(columns, 1))
        content = f"CAST([{listed(rows)[1:-1]}], 'Array(Tuple({kinds}))')"
        self._tables.append(f"{name} AS (SELECT {row} FROM (SELECT arrayJoin({content}) AS t))")
        return name

    def define(self, expression: str) -> str:
        """The name of an expression, which may be a query of one row."""
        return self._definitions.setdefault(expression, f"defined_{len(self._definitions)}")

    def with_clause(self) -> str:
        """The tables and definitions, as a statement begins."""
        definitions = (f"{expression} AS {name}" for expression, name in self._definitions.items())
        items = ", ".join([*self._tables, *definitions])
        return f"WITH {items} " if items else ""


def columns_of(client: "Client", sql: str, bound: Bound) -> Iterator[Sequence[Sequence[Any]]]:
    """The columns of a SELECT, block by block, in the thread of the caller."""
    with client.query_column_block_stream(sql, parameters=bound.parameters) as stream:
        yield from stream
