"""Group commit: durable before told, faults undone alone, back-pressure, a full disk."""

import _sqlite3
import asyncio
import ctypes
import gc
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.errors import Busy, HeddleError, InvalidRequest, StorageFull, Unavailable
from heddle.store.sqlite.database import Session, open_writer
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.writer import Writer
from tests.support.chat import until


class Bench:
    """A writer over a file with one table."""

    def __init__(self, folder: Path, queue_bytes: int = 1 << 20, max_bytes: int = 0) -> None:
        self.path = folder / "w.db"
        self.session = open_writer(self.path, "full", max_bytes)
        self.session.raw.execute("CREATE TABLE t (v TEXT)")
        self.writer = Writer(self.session, queue_bytes, Names())

    def rows(self) -> list[str]:
        """What another connection sees."""
        with sqlite3.connect(self.path) as other:
            return [row[0] for row in other.execute("SELECT v FROM t ORDER BY rowid")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.writer.close()
    bench.session.close()


def insert(text: str) -> Callable[[Session], int | None]:
    return lambda session: session.raw.execute("INSERT INTO t VALUES (?)", (text,)).lastrowid


def test_what_is_told_is_committed(bench: Bench) -> None:
    async def run() -> None:
        for number in range(5):
            assert await bench.writer.write(insert(str(number))) == number + 1
            assert bench.rows()[-1] == str(number)

    asyncio.run(run())


def test_work_that_waits_is_committed_together(bench: Bench) -> None:
    gate = threading.Event()

    async def run() -> None:
        def hold(session: Session) -> None:
            assert gate.wait(30)

        first = asyncio.create_task(bench.writer.write(hold))
        await asyncio.sleep(0)
        others = [asyncio.create_task(bench.writer.write(insert(str(number)))) for number in range(50)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(run())
    assert bench.rows() == [str(number) for number in range(50)]
    assert bench.writer.stats.items == 51
    assert bench.writer.stats.groups <= 3
    assert bench.writer.stats.waiting_bytes == 0


def test_a_caller_that_goes_away_takes_no_work_along(bench: Bench) -> None:
    gate = threading.Event()

    async def run() -> None:
        first = asyncio.create_task(bench.writer.write(lambda session: gate.wait(30)))
        await asyncio.sleep(0)
        gone, other = (asyncio.create_task(bench.writer.write(insert(text))) for text in ("gone", "other"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled()
        gate.set()
        assert await first and await other == 2

    asyncio.run(run())
    assert bench.rows() == ["gone", "other"]


def test_a_refused_work_is_undone_alone(bench: Bench) -> None:
    def refuse(session: Session) -> None:
        session.raw.execute("INSERT INTO t VALUES ('half')")
        raise InvalidRequest("no")

    async def run() -> list[object]:
        works = [insert("a"), refuse, insert("b")]
        return await asyncio.gather(*(bench.writer.write(work) for work in works), return_exceptions=True)

    results = asyncio.run(run())
    assert isinstance(results[1], InvalidRequest)
    assert bench.rows() == ["a", "b"]


def test_what_several_bring_to_the_same_work_is_written_by_one_run(bench: Bench) -> None:
    runs: list[list[str]] = []

    def insert_all(session: Session, brought: list[str]) -> None:
        runs.append(brought)
        if "refused" in brought:
            raise InvalidRequest("no")
        session.raw.executemany("INSERT INTO t VALUES (?)", [(text,) for text in brought])

    async def run(*texts: str) -> list[object]:
        gate = threading.Event()
        first = asyncio.create_task(bench.writer.write(lambda _: gate.wait(30)))
        await asyncio.sleep(0)
        jointly = [bench.writer.write_jointly(insert_all, text, 1) for text in texts]
        works = [*jointly[:2], bench.writer.write(insert("between")), *jointly[2:]]
        written = [asyncio.ensure_future(work) for work in works]
        await asyncio.sleep(0)
        gate.set()
        await first
        return await asyncio.gather(*written, return_exceptions=True)

    assert asyncio.run(run("a", "b", "c", "d"))[:2] == [None, None]
    assert bench.rows() == ["a", "b", "between", "c", "d"]
    assert runs == [["a", "b"], ["c", "d"]]
    runs.clear()
    answers = asyncio.run(run("e", "f", "refused", "g"))
    assert [isinstance(answer, InvalidRequest) for answer in answers] == [False, False, False, True, False]
    assert bench.rows() == ["a", "b", "between", "c", "d", "e", "f", "between", "g"]


def test_a_faulty_work_does_not_harm_its_neighbours(bench: Bench) -> None:
    gate = threading.Event()

    def broken(session: Session) -> None:
        session.raw.execute("INSERT INTO t VALUES ('half')")
        raise ZeroDivisionError

    async def run() -> list[object]:
        hold = asyncio.create_task(bench.writer.write(lambda session: gate.wait(30)))
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(bench.writer.write(work)) for work in (insert("a"), broken, insert("b"))]
        await asyncio.sleep(0)
        gate.set()
        await hold
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert isinstance(results[1], ZeroDivisionError)
    assert bench.rows() == ["a", "b"]


def test_too_much_waiting_is_refused_with_a_time_to_retry(tmp_path: Path) -> None:
    bench = Bench(tmp_path, queue_bytes=1000)
    gate = threading.Event()

    async def run() -> None:
        hold = asyncio.create_task(bench.writer.write(lambda session: gate.wait(30)))
        while bench.writer.stats.waiting_bytes or not bench.session.raw.in_transaction:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(bench.writer.write(insert("a"), 900))
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await bench.writer.write(insert("b"), 200)
        assert refused.value.headers == {"Retry-After": "1"}
        gate.set()
        await asyncio.gather(hold, waiting)

    asyncio.run(run())
    assert bench.rows() == ["a"]
    bench.writer.close()
    bench.session.close()


def test_a_full_database_refuses_and_keeps_what_was_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=40 * 8192)
    told: list[str] = []

    async def run() -> None:
        for number in range(1000):
            text = f"{number:04d}" + "x" * 4000
            await bench.writer.write(insert(text))
            told.append(text)

    with pytest.raises(StorageFull):
        asyncio.run(run())
    assert told and bench.rows() == told
    bench.writer.close()
    bench.session.close()


def test_closing_writes_what_waits_and_refuses_more(bench: Bench) -> None:
    async def run() -> None:
        tasks = [asyncio.create_task(bench.writer.write(insert(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(bench.writer.close)
        await asyncio.gather(*tasks)
        with pytest.raises(Unavailable):
            await bench.writer.write(insert("late"))

    asyncio.run(run())
    assert len(bench.rows()) == 20


def test_a_writer_with_nothing_to_do_keeps_no_pages_in_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_memory_used.restype = ctypes.c_int64
    monkeypatch.setattr("heddle.store.sqlite.writer.LOG_SECONDS", 0.01)
    # Only its own connection is taken into account where no other one is open.
    gc.collect()
    before = library.sqlite3_memory_used()
    held: list[int] = []

    def fill(session: Session) -> None:
        for _ in range(1000):
            insert("x" * 8000)(session)
        held.append(library.sqlite3_memory_used() - before)

    asyncio.run(bench.writer.write(fill))
    assert held[0] > 4 << 20
    until(lambda: library.sqlite3_memory_used() - before < 1 << 20, "pages are given back")


def test_names_of_an_undone_work_are_made_again(tmp_path: Path) -> None:
    session = open_writer(tmp_path / "n.db", "full", 0)
    session.raw.execute("CREATE TABLE names (k INTEGER PRIMARY KEY, v TEXT NOT NULL UNIQUE, label TEXT NOT NULL)")
    names = Names()
    writer = Writer(session, 1 << 20, names)

    def refuse(inner: Session) -> None:
        names.number(inner.raw, "op")
        raise HeddleError("undone")

    async def run() -> int:
        with pytest.raises(HeddleError):
            await writer.write(refuse)
        return await writer.write(lambda inner: names.number(inner.raw, "op"))

    number = asyncio.run(run())
    assert session.raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone() == ("op",)
    writer.close()
    session.close()
