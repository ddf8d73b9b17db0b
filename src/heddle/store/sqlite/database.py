"""The one SQLite file: its connections, and the threads that read."""

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from heddle.errors import Damaged, HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.store.data_folder import explain_disk
from heddle.store.sqlite import call_bodies, search
from heddle.store.sqlite.connection import connect

DATABASE = "heddle.db"
"""The file in the data folder."""
PAGE_SIZE = 8192
BUSY_MILLISECONDS = 10_000
MINIMUM_VERSION = (3, 38, 0)
_TOO_COMPLEX: tuple[str, ...] = (
    "parser stack overflow",
    "Expression tree is too large",
    "too many SQL variables",
    "too many columns",
)
_TOO_COMPLEX += ("too many terms in ORDER BY", "at most 64 tables in a join")
logger = logging.getLogger("heddle.store")
_NO_TEXT = "Could not decode to UTF-8"
_DAMAGED = (_NO_TEXT, "malformed JSON")


@dataclass(slots=True)
class Session:
    """A connection of one thread at a time: raw for the call tables, wrapped for control tables (one transaction)."""

    raw: sqlite3.Connection
    control: sa.Connection

    def close(self) -> None:
        """Close both."""
        self.control.close()
        self.raw.close()


def open_writer(path: Path, durability: str, max_bytes: int) -> Session:
    """The single read-write connection; `durability` full survives power loss, normal a crash of the process."""
    raw = connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    raw.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
    raw.execute("PRAGMA wal_autocheckpoint = 4000")
    raw.execute("PRAGMA journal_size_limit = 67108864")
    raw.execute("PRAGMA cache_size = -8192")
    raw.execute("PRAGMA temp_store = MEMORY")
    if max_bytes:
        raw.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_SIZE)}")
    return _session(raw)


def open_reader(path: Path) -> Session:
    """A connection that cannot write."""
    raw = connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    raw.execute("PRAGMA query_only = ON")
    raw.execute("PRAGMA cache_size = -1024")
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.create_function("unicode_lower", 1, _lower, deterministic=True)
    return _session(raw)


def open_scratch() -> Session:
    """A private database that is gone when it is closed; what little memory does not hold is in a temporary file."""
    raw = sqlite3.connect("", isolation_level=None, check_same_thread=False, cached_statements=128)
    for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "cache_size = -16384"):
        raw.execute(f"PRAGMA {pragma}")
    raw.create_function("unicode_lower", 1, _lower, deterministic=True)
    return _session(raw)


def _lower(value: str | int | float | None) -> str | int | float | None:
    return value.lower() if isinstance(value, str) else value


_given = threading.local()
"""The connection that the engine is to wrap next, in this thread."""


@cache
def _engine() -> sa.Engine:
    """Wraps connections; there is one, so that a statement is compiled once for all of them."""
    return sa.create_engine(
        "sqlite://",
        creator=lambda: vars(_given).pop("raw"),
        poolclass=sa.pool.NullPool,
        isolation_level="AUTOCOMMIT",
        query_cache_size=1000,
    )


def _session(raw: sqlite3.Connection) -> Session:
    search.add_functions(raw)
    call_bodies.add_functions(raw)
    raw.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    # Mapped pages would count as this process's memory once per connection, for less than a tenth of CPU.
    raw.execute("PRAGMA mmap_size = 0")
    # Else a damaged page whose cells lie beyond it is read as whatever is in memory there.
    raw.execute("PRAGMA cell_size_check = ON")
    _given.raw = raw
    return Session(raw, _engine().connect())


def explain(error: Exception) -> HeddleError | None:
    """What a failure of SQLite means to the caller, or None when it is no known kind."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, OSError):
        return explain_disk(original)
    if isinstance(original, OverflowError):
        return InvalidRequest("A number in the request does not fit in 64 bits")
    if isinstance(original, json.JSONDecodeError | UnicodeDecodeError):
        return Damaged(original)
    if not isinstance(original, sqlite3.Error):
        return None
    if str(original).startswith(_DAMAGED):
        return Damaged(original)
    code = getattr(original, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_ERROR and str(original).startswith(_TOO_COMPLEX):
        return InvalidRequest(f"The query is too complex: {original}")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFull(
            "The database is full (disk, or setting max_database_bytes); nothing of this request was stored"
        )
    if primary == sqlite3.SQLITE_INTERRUPT:
        return QueryTimeout()
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("The database is locked by another process; try again")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Unavailable(
            f"The database {DATABASE} is damaged ({original}): `heddle check` says where, `heddle restore` brings back "
            "the last backup"
        )
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return Unavailable(f"The database {DATABASE} is currently unavailable: {original}")
    return None


T = TypeVar("T")
P = ParamSpec("P")

_STEPS_BETWEEN_CHECKS = 20_000
_UNUSED_SECONDS = 10.0


class SessionReads(Protocol):
    """Runs what reads from a database."""

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in another thread; raises QueryTimeout after a deadline."""


class Readers:
    """A pool of `count` reader threads; `timeout` in seconds bounds each piece of work.

    A connection that is not used for ten seconds is closed: its statements and pages may take megabytes.
    """

    def __init__(self, path: Path, count: int, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._unused: list[tuple[Session, float]] = []
        """Those that no work has, each with when it was put back, the last one at the end."""
        self._open = 0
        self._is_watched = False
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="heddle-reader")

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a reader thread; raises QueryTimeout after the deadline."""
        loop = asyncio.get_running_loop()
        if not self._is_watched:
            self._is_watched = True
            loop.call_later(_UNUSED_SECONDS, self._close_unused, loop)
        return await loop.run_in_executor(self._pool, self._run, work)

    def _run(self, work: Callable[[Session], T]) -> T:
        with self._lock:
            session = self._unused.pop()[0] if self._unused else None
        if session is None:
            session = open_reader(self._path)
            with self._lock:
                self._open += 1
        try:
            return run_in(session, lambda session: _read_snapshot(session, work), self._timeout)
        finally:
            with self._lock:
                self._unused.append((session, time.monotonic()))

    def _close_unused(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that nothing has used for long, and look again as long as there are any."""
        before = time.monotonic() - _UNUSED_SECONDS
        with self._lock:
            old = [session for session, since in self._unused if since <= before]
            del self._unused[: len(old)]
            self._open -= len(old)
            self._is_watched = self._open > 0
        for session in old:
            loop.run_in_executor(None, session.close)
        if self._is_watched:
            loop.call_later(_UNUSED_SECONDS, self._close_unused, loop)

    def close(self) -> None:
        """Wait for the work that runs, then close the connections."""
        self._pool.shutdown(wait=True)
        with self._lock:
            unused, self._unused, self._open = self._unused, [], 0
        for session, _ in unused:
            session.close()


class _Reading(Protocol):
    @property
    def _readers(self) -> SessionReads: ...


S = TypeVar("S", bound=_Reading)


def reads(work: Callable[Concatenate[S, Session, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method one piece of work of its readers, whose session it is called without."""

    @wraps(work)
    async def run(self: S, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._readers.read(lambda session: work(self, session, *args, **named))

    return run


def run_in(session: Session, work: Callable[[Session], T], timeout: float) -> T:
    """Run `work` in this thread, within `timeout` seconds; failures are explained."""
    deadline = time.monotonic() + timeout
    session.raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        try:
            return work(session)
        except Exception as error:
            if not str(getattr(error, "orig", None) or error).startswith(_NO_TEXT):
                raise
            logger.warning("a text in the database is damaged (heddle check names it): %s", error)
            return _read_leniently(session, work)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error


def _read_snapshot(session: Session, work: Callable[[Session], T]) -> T:
    """Run `work` in one transaction: all its statements see the same commits."""
    session.raw.execute("BEGIN")
    try:
        return work(session)
    finally:
        session.raw.commit()  # where an error has not ended it


def _read_leniently(session: Session, work: Callable[[Session], T]) -> T:
    """Run `work` with what is no text in texts replaced: one damaged row must not keep the others from readers."""
    session.raw.text_factory = lambda content: content.decode(errors="replace")
    try:
        return work(session)
    finally:
        session.raw.text_factory = str


def empty_log(session: Session) -> bool:
    """Bring what the log holds into the file; false where a reader still needs the log. Raises sqlite3.Error."""
    raw = session.raw
    try:
        raw.execute("PRAGMA busy_timeout = 0")
        return not raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        raw.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
