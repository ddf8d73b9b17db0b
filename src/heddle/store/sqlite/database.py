"""The one SQLite file: its connections, the threads that read, and the one that writes."""

import asyncio
import hashlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from heddle import aio
from heddle.errors import Busy, HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.store.control.repository import WriteStats
from heddle.store.data_folder import explain_disk
from heddle.store.sqlite import body_sums, search, span_dumps
from heddle.wire import refs

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
_NO_TEXT = "Could not decode to UTF-8"
_DAMAGED = (_NO_TEXT, "malformed JSON")


@dataclass(slots=True)
class Session:
    """One thread's connection: raw for the call tables, and wrapped for the control tables (same transaction)."""

    raw: sqlite3.Connection
    control: sa.Connection

    def close(self) -> None:
        """Close both."""
        self.control.close()
        self.raw.close()


def open_writer(path: Path, durability: str, max_bytes: int) -> Session:
    """The single read-write connection; `durability` full survives power loss, normal a crash of the process."""
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    raw.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
    raw.execute("PRAGMA wal_autocheckpoint = 4000")
    raw.execute("PRAGMA journal_size_limit = 67108864")
    raw.execute("PRAGMA cache_size = -16384")
    raw.execute("PRAGMA temp_store = MEMORY")
    if max_bytes:
        raw.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_SIZE)}")
    return _session(raw)


def open_reader(path: Path) -> Session:
    """A connection that cannot write."""
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    raw.execute("PRAGMA query_only = ON")
    raw.execute("PRAGMA cache_size = -8192")
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.create_function("unicode_lower", 1, _lower, deterministic=True)
    return _session(raw)


def open_scratch() -> Session:
    """A private database that is gone when it is closed; what little memory does not hold is in a temporary file."""
    raw = sqlite3.connect("", isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "cache_size = -16384"):
        raw.execute(f"PRAGMA {pragma}")
    raw.create_function("unicode_lower", 1, _lower, deterministic=True)
    return _session(raw)


def _lower(value: str | int | float | None) -> str | int | float | None:
    return value.lower() if isinstance(value, str) else value


def _session(raw: sqlite3.Connection) -> Session:
    search.add_functions(raw)
    span_dumps.add_functions(raw)
    body_sums.add_functions(raw)
    raw.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    # Mapped pages would count as this process's memory once per connection, for less than a tenth of CPU.
    raw.execute("PRAGMA mmap_size = 0")
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: raw,
        poolclass=sa.pool.StaticPool,
        isolation_level="AUTOCOMMIT",
        query_cache_size=500,
    )
    return Session(raw, engine.connect())


def explain(error: Exception) -> HeddleError | None:
    """What a failure of SQLite means to the caller, or None when it is no known kind."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, OSError):
        return explain_disk(original)
    if isinstance(original, OverflowError):
        return InvalidRequest("A number of the request does not fit into 64 bits")
    if not isinstance(original, sqlite3.Error):
        return None
    if str(original).startswith(_DAMAGED):
        return Unavailable(f"What is stored is damaged (heddle check names it): {original}")
    code = getattr(original, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_ERROR and str(original).startswith(_TOO_COMPLEX):
        return InvalidRequest(f"The query is too complex: {original}")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFull(
            "The database is full (disk, or setting max_database_bytes); nothing of this request was stored"
        )
    if primary == sqlite3.SQLITE_INTERRUPT:
        return QueryTimeout("The query ran longer than the setting query_timeout allows")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("The database is locked by another process; try again")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Unavailable(
            f"The database {DATABASE} is damaged ({original}): `heddle check` says where, `heddle restore` brings back "
            "the last backup"
        )
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return Unavailable(f"The database cannot be used at the moment: {original}")
    return None


T = TypeVar("T")
P = ParamSpec("P")

_STEPS_BETWEEN_CHECKS = 20_000


class SessionReads(Protocol):
    """Runs what reads from a database."""

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in another thread; raises QueryTimeout after a deadline."""


class Readers:
    """A pool of `count` reader threads; `timeout` in seconds bounds each piece of work."""

    def __init__(self, path: Path, count: int, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._local = threading.local()
        self._sessions: list[Session] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="heddle-reader")

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a reader thread; raises QueryTimeout after the deadline."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, work)

    def _run(self, work: Callable[[Session], T]) -> T:
        return run_in(self._session(), work, self._timeout)

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = open_reader(self._path)
            with self._lock:
                self._sessions.append(session)
        return session

    def close(self) -> None:
        """Wait for the work that runs, then close the connections."""
        self._pool.shutdown(wait=True)
        for session in self._sessions:
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


def _read_leniently(session: Session, work: Callable[[Session], T]) -> T:
    """Run `work` with what is no text in texts replaced: one damaged row must not keep the others from readers."""
    session.raw.text_factory = lambda content: content.decode(errors="replace")
    try:
        return work(session)
    finally:
        session.raw.text_factory = str


_MAX_CACHED = 200_000


_ERASED = "erased:"


def _erased(text: str) -> str:
    return _ERASED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Names:
    """The writer's view of the table `names`; entries of an undone transaction are forgotten by `forget`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._new: list[str] = []
        self._used: set[int] = set()

    def number(self, raw: sqlite3.Connection, text: str) -> int:
        """The number of a text, made when it is new."""
        known = self._numbers.get(text)
        if known is not None:
            return known
        row = raw.execute("SELECT k, v FROM names WHERE v IN (?, ?)", (text, _erased(text))).fetchone()
        label = refs.operation_name(text)
        if row is None:
            number = raw.execute("INSERT INTO names (v, label) VALUES (?, ?)", (text, label)).lastrowid
            assert number is not None
            self._new.append(text)
        else:
            number = int(row[0])
            if row[1] != text:
                raw.execute("UPDATE names SET v = ?, label = ? WHERE k = ?", (text, label, number))
                self._new.append(text)
        self._used.add(number)
        if len(self._numbers) >= _MAX_CACHED:
            self._numbers.clear()
        self._numbers[text] = number
        return number

    def watch(self) -> None:
        """Note from now on which numbers are used, for `erase`."""
        self._numbers.clear()
        self._used.clear()

    def erase(self, raw: sqlite3.Connection, unused: Iterable[int]) -> None:
        """Erase the texts of numbers that no row had when it was looked, unless they were used since `watch`.

        A digest takes the place of a text: numbers that readers remember stay those of their texts for ever.
        """
        for number in set(unused) - self._used:
            (text,) = raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()
            if not text.startswith(_ERASED):
                raw.execute("UPDATE names SET v = ?, label = '' WHERE k = ?", (_erased(text), number))
                self._numbers.pop(text, None)

    def committed(self) -> None:
        """What was made is durable now."""
        self._new.clear()

    def forget(self) -> None:
        """The transaction was undone: drop every number that it made."""
        for text in self._new:
            self._numbers.pop(text, None)
        self._new.clear()


class NameReader:
    """The readers' view: numbers to texts and back; entries never change, so they are cached."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def text(self, raw: sqlite3.Connection, number: int | None) -> str | None:
        """The text of a number."""
        if number is None:
            return None
        text = self._texts.get(number)
        if text is None:
            text = str(raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()[0])
            if len(self._texts) >= _MAX_CACHED:
                self._texts.clear()
            self._texts[number] = text
        return text

    def number(self, raw: sqlite3.Connection, text: str) -> int | None:
        """The number of a text, None when no row uses it."""
        number = self._numbers.get(text)
        if number is None:
            row = raw.execute("SELECT k FROM names WHERE v = ?", (text,)).fetchone()
            if row is None:
                return None
            number = int(row[0])
            if len(self._numbers) >= _MAX_CACHED:
                self._numbers.clear()
            self._numbers[text] = number
        return number

    def numbers(self, raw: sqlite3.Connection, texts: Iterable[str]) -> list[int]:
        """The numbers of exact texts and of `...:*` wildcards; texts that no row uses are left out."""
        found: set[int] = set()
        for text in texts:
            if text.endswith(":*"):
                prefix = text[:-1]
                rows = raw.execute("SELECT k FROM names WHERE v >= ? AND v < ?", (prefix, prefix[:-1] + ";"))
                found.update(int(row[0]) for row in rows)
            elif (number := self.number(raw, text)) is not None:
                found.add(number)
        return sorted(found)


Work = Callable[[Session], Any]

logger = logging.getLogger("heddle.store")

MAX_GROUP_ITEMS = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024
LOG_SECONDS = 2.0
"""After so long without a write the write-ahead log is emptied into the file."""


@dataclass(slots=True)
class _Item:
    work: Work
    size: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    joint: "Callable[[Session, list[Any]], None] | None" = None
    """Does the work of several such items together, of what each of them brings."""
    brought: Any = None
    is_alone: bool = False
    """Runs by itself, outside of a transaction."""
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Group commit over one session; `names` is told what became durable and what was undone."""

    def __init__(self, session: Session, queue_bytes: int, names: Names) -> None:
        self.stats = WriteStats()
        self._session = session
        self._queue_bytes = queue_bytes
        self._names = names
        self._items: deque[_Item] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="heddle-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[Session], T], size: int = 0) -> T:
        """Run `work` in the next group and return its result after the commit.

        Raises what `work` raises, Busy when more than the setting write_queue_bytes waits, StorageFull on a full disk.
        """
        loop = asyncio.get_running_loop()
        result: T = await self._put(_Item(partial(_run_in, copy_context(), work), size, loop, loop.create_future()))
        return result

    async def write_jointly(self, joint: Callable[[Session, list[T]], None], brought: T, size: int) -> None:
        """As `write`; what several bring to the same work is written by one run of it where they wait together."""
        loop = asyncio.get_running_loop()
        item = _Item(lambda session: joint(session, [brought]), size, loop, loop.create_future(), joint, brought)
        await self._put(item)

    async def write_alone(self, work: Callable[[Session], T]) -> T:
        """Run `work` outside of a transaction, between two groups; failures are explained."""
        loop = asyncio.get_running_loop()
        result: T = await self._put(_Item(work, 0, loop, loop.create_future(), is_alone=True))
        return result

    async def _put(self, item: _Item) -> Any:
        size = item.size
        with self._wake:
            if self._closing:
                raise Unavailable("The server is stopping")
            if self._items and self.stats.waiting_bytes + size > self._queue_bytes:
                raise Busy("Too much waits to be written; try again")
            self.stats.waiting_bytes += size
            self._items.append(item)
            self._wake.notify()
        # A caller that goes away must not make the commit's outcome unknown to the others of the group.
        return await aio.shield(item.future)

    def close(self) -> None:
        """Write what waits, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        has_log = True
        while (group := self._take(LOG_SECONDS if has_log else None)) is not None:
            if group:
                self._commit(group)
                self._report(group)
            has_log = bool(group) or self._has_log()

    def _has_log(self) -> bool:
        """Empty the log; true where a reader still needs it."""
        try:
            return not empty_log(self._session)
        except sqlite3.Error as error:
            logger.warning("the write-ahead log was not emptied: %s", error)
            return False

    def _take(self, patience: float | None) -> list[_Item] | None:
        """What waits to be written; empty when nothing came for so many seconds, None at the end."""
        with self._wake:
            if not self._wake.wait_for(lambda: self._items or self._closing, patience):
                return []
            if not self._items:
                return None
            group: list[_Item] = []
            size = 0
            while (
                self._items
                and len(group) < MAX_GROUP_ITEMS
                and (not group or size + self._items[0].size <= MAX_GROUP_BYTES)
                and not (group and (group[0].is_alone or self._items[0].is_alone))
            ):
                item = self._items.popleft()
                size += item.size
                group.append(item)
            self.stats.waiting_bytes -= size
            return group

    def _commit(self, group: list[_Item]) -> None:
        raw, began = self._session.raw, time.monotonic()
        if group[0].is_alone:
            try:
                group[0].result = group[0].work(self._session)
            except Exception as error:  # whatever it is, who waits is told
                group[0].error = explain(error) or error
            return
        try:
            raw.execute("BEGIN IMMEDIATE")
            if not all(self._apply(run) for run in _joined(group)):
                raw.execute("ROLLBACK")
                self._names.forget()
                raw.execute("BEGIN IMMEDIATE")
                for item in group:
                    self._apply_alone(item)
            raw.execute("COMMIT")
            self._names.committed()
        except Exception as error:  # whatever it is, the whole group is undone and every waiter is told
            self._undo(group, error)
        else:
            sizes = [item.size for item in group if item.error is None]
            self.stats.count_group(len(sizes), sum(sizes), time.monotonic() - began)

    def _apply(self, item: _Item) -> bool:
        """Do one work; false when it failed behind its first change, which only the whole group can undo.

        Inside a savepoint SQLite walks the saved pages of all that was written before at the end of each statement.
        """
        before = self._session.raw.total_changes
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error
        return item.error is None or (item.joint is None and self._session.raw.total_changes == before)

    def _apply_alone(self, item: _Item) -> None:
        """Do one work again, which is undone alone when it fails."""
        raw = self._session.raw
        item.result, item.error = None, None
        raw.execute("SAVEPOINT item")
        try:
            item.result = item.work(self._session)
        except HeddleError as error:
            item.error = error
            raw.execute("ROLLBACK TO item")
            self._names.forget()
        raw.execute("RELEASE item")

    def _undo(self, group: list[_Item], error: Exception) -> None:
        known = explain(error)
        if known is None:
            logger.exception("a group of %d writes was undone", len(group))
        if self._session.raw.in_transaction:
            self._session.raw.execute("ROLLBACK")
        self._names.forget()
        if known is None and len(group) > 1:
            # One faulty work must not fail its neighbours: each gets a transaction of its own.
            for item in group:
                item.result, item.error = None, None
                self._commit([item])
            return
        for item in group:
            item.error = known or error

    @staticmethod
    def _report(group: list[_Item]) -> None:
        for loop in {id(item.loop): item.loop for item in group}.values():
            mine = [item for item in group if item.loop is loop]
            try:
                loop.call_soon_threadsafe(_resolve, mine)
            except RuntimeError:
                logger.warning("%d writes were committed after their event loop had closed", len(mine))


def empty_log(session: Session) -> bool:
    """Bring what the log holds into the file; false where a reader still needs the log. Raises sqlite3.Error."""
    raw = session.raw
    try:
        raw.execute("PRAGMA busy_timeout = 0")
        return not raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        raw.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")


def _run_in(context: Context, work: Callable[[Session], T], session: Session) -> T:
    return context.run(work, session)


def _joined(group: list[_Item]) -> Iterator[_Item]:
    """The items in order, those as one that follow each other and may be written jointly."""
    for joint, items in groupby(group, lambda item: item.joint):
        several = list(items)
        if joint is None or len(several) == 1:
            yield from several
        else:
            first = several[0]
            brought = [item.brought for item in several]
            yield _Item(partial(_do_jointly, joint, brought), 0, first.loop, first.future, joint)


def _do_jointly(joint: Callable[[Session, list[Any]], None], brought: list[Any], session: Session) -> None:
    joint(session, brought)


def _resolve(items: list[_Item]) -> None:
    for item in items:
        if item.future.done():
            continue
        if item.error is not None:
            item.future.set_exception(item.error)
        else:
            item.future.set_result(item.result)


class SqliteExecutor:
    """An Executor (see control/repository.py) over the embedded store."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        return await self._writer.write(lambda session: work(session.control), size)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        return await self._readers.read(lambda session: work(session.control))
