"""What one piece of reading sees, whoever writes meanwhile."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from heddle.errors import HeddleError, Unavailable
from heddle.store.control import table_rows
from heddle.store.sqlite import database
from heddle.store.sqlite.database import Readers, Session, open_reader, open_writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "r.db"
    session = open_writer(made, "full", 0)
    session.raw.execute("CREATE TABLE t (v TEXT)")
    session.close()
    return made


@pytest.fixture
def readers(path: Path) -> Iterator[Readers]:
    opened = Readers(path, 1, 10)
    yield opened
    opened.close()


def count(session: Session) -> int:
    return int(session.raw.execute("SELECT count(*) FROM t").fetchone()[0])


def test_all_statements_see_the_same_commits(path: Path, readers: Readers) -> None:
    def work(session: Session) -> list[int]:
        counts = [count(session)]
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("INSERT INTO t VALUES ('meanwhile')")
        counts.append(count(session))
        counts.append(int(session.control.exec_driver_sql("SELECT count(*) FROM t").scalar_one()))
        return counts

    assert asyncio.run(readers.read(work)) == [0, 0, 0]
    assert asyncio.run(readers.read(work)) == [1, 1, 1]


class Counted(FunctionElement[int]):
    """A number that counts how often it is compiled."""

    inherit_cache = True
    compiled = 0


@compiles(Counted)
def _compile_counted(element: Counted, compiler: SQLCompiler, **_: Any) -> str:
    Counted.compiled += 1
    return "7"


def test_a_statement_is_compiled_once_for_all_connections(path: Path) -> None:
    sessions = [open_writer(path, "full", 0), *(open_reader(path) for _ in range(3))]
    assert [session.control.execute(sa.select(Counted())).scalar_one() for session in sessions] == [7, 7, 7, 7]
    assert Counted.compiled == 1
    sessions[0].raw.execute("INSERT INTO t VALUES ('own')")
    sessions[1].close()
    assert [count(session) for session in (sessions[0], *sessions[2:])] == [1, 1, 1]
    for session in sessions:
        session.close()


def test_failed_work_leaves_nothing_open(path: Path, readers: Readers) -> None:
    def fail(session: Session) -> int:
        count(session)
        raise HeddleError("as asked")

    def is_open(session: Session) -> bool:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("INSERT INTO t VALUES ('seen')")
        return count(session) == 0

    with pytest.raises(HeddleError, match="as asked"):
        asyncio.run(readers.read(fail))
    assert not asyncio.run(readers.read(is_open))


def test_stored_json_that_is_damaged_is_named(path: Path, readers: Readers) -> None:
    digests = [f"digest-{number}" for number in range(3)]

    def read(session: Session) -> list[list[str]]:
        return [part for _, part in table_rows.chunk_digests(session.control, 1)]

    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE table_chunks (table_number, chunk, row_digests)")
        other.execute("INSERT INTO table_chunks VALUES (1, 0, ?)", [json.dumps(digests)])
    assert asyncio.run(readers.read(read)) == [digests]
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE table_chunks SET row_digests = substr(row_digests, 1, 20) || char(0, 0, 0)")
    with pytest.raises(Unavailable, match=r"What is stored is damaged \(heddle check names it\)"):
        asyncio.run(readers.read(read))


def test_connections_that_nothing_uses_are_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Session] = []

    def open_counted(path: Path) -> Session:
        opened.append(open_reader(path))
        return opened[-1]

    def is_open(session: Session) -> bool:
        try:
            return session.raw.total_changes == 0
        except sqlite3.ProgrammingError:
            return False

    async def run() -> None:
        readers, both = Readers(path, 2, 10), threading.Barrier(2)

        def work(session: Session) -> int:
            both.wait(60)
            return count(session)

        assert await asyncio.gather(readers.read(work), readers.read(work)) == [0, 0]
        assert len(opened) == 2
        async with asyncio.timeout(60):
            while any(map(is_open, opened)):
                await asyncio.sleep(0)
        assert await readers.read(count) == 0
        assert len(opened) == 3
        readers.close()
        assert not any(map(is_open, opened))

    monkeypatch.setattr(database, "open_reader", open_counted)
    monkeypatch.setattr(database, "_UNUSED_SECONDS", 0.01)
    asyncio.run(run())
