"""The way to a ClickHouse server: blocking clients in threads, with its failures in words of ours."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from heddle.errors import HeddleError, InvalidRequest, QueryTimeout, Unavailable

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

T = TypeVar("T")
Row = tuple[Any, ...]

_RETRY_SECONDS = 2
_TIMEOUT, _TOO_COMPLEX = (159, 160, 209), (167, 168, 306, 572)
"""Codes of ClickHouse: what ran too long, and what is too deep or too big to be parsed."""
_SETTINGS = {
    # A row never changes its month, so no part of another one needs to be looked at.
    "do_not_merge_across_partitions_select_final": 1,
    "throw_on_max_partitions_per_insert_block": 0,
    "max_query_size": 64 * 1024 * 1024,
    "max_ast_elements": 1_000_000,
    "max_expanded_ast_elements": 1_000_000,
}
_INSERT_SETTINGS = {"async_insert": 1, "wait_for_async_insert": 1}
"""Small batches of many servers become one part, and the answer comes once it is written."""


class Clickhouse:
    """One database; `threads` queries run at the same time, each at most `timeout` seconds."""

    def __init__(self, address: str, threads: int, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._client: Client | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heddle-clickhouse")
        self._inserts = ThreadPoolExecutor(2, thread_name_prefix="heddle-clickhouse-insert")

    @property
    def database(self) -> str:
        """The name of the database."""
        return unquote(urlsplit(self._address).path.strip("/")) or "default"

    async def read(self, work: Callable[["Client"], T]) -> T:
        """Run `work` in a thread; raises QueryTimeout, InvalidRequest (too complex) and Unavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run, work)

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a SELECT; parameters are bound by the server (`{name:Type}` in the text)."""
        return await self.read(lambda client: rows_of(client, sql, parameters))

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows; returns once the server has written them."""

        def work(client: "Client") -> None:
            client.insert(table, rows, column_names=columns, settings=_INSERT_SETTINGS)

        await asyncio.get_running_loop().run_in_executor(self._inserts, self.run, work)

    def run(self, work: Callable[["Client"], T]) -> T:
        """Run `work` in this thread, with failures explained."""
        try:
            return work(self._connected())
        except HeddleError:
            raise
        except Exception as error:  # the driver's own, of which some are not of its tree
            known = explain(error)
            if known is None:
                raise
            raise known from error

    def _connected(self) -> "Client":
        """The client; it holds no session, so any number of threads may use it."""
        if self._client is None:
            self._client = connect(self._address, self._timeout)
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
            "store = clickhouse://... needs one more package; install it with: pip install 'heddle[clickhouse]'"
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


def rows_of(client: "Client", sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows of a SELECT, in the thread of the caller."""
    return [tuple(row) for row in client.query(sql, parameters=dict(parameters or {})).result_rows]


def explain(error: Exception) -> HeddleError | None:
    """What a failure of ClickHouse or of the way to it means to the caller, or None when it is no known kind."""
    code = getattr(error, "code", None)
    name = type(error).__name__
    if code in _TIMEOUT:
        return QueryTimeout("The query ran longer than the setting query_timeout allows")
    if code in _TOO_COMPLEX:
        return InvalidRequest(f"The query is too complex: {str(error)[:200]}")
    if isinstance(error, OSError) or name in ("OperationalError", "HTTPError", "ProtocolError", "MaxRetryError"):
        return Unavailable(f"The store of calls cannot be reached: {str(error)[:200]}", retry_after=_RETRY_SECONDS)
    return None
