"""What failures of SQLite and of the disk mean to who asked: real failures, each with its status."""

import errno
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from heddle.errors import Damaged, HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.store.data_folder import disk_failures
from heddle.store.sqlite.database import Session, explain, open_reader, open_writer, run_in

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    session = open_writer(path, "normal", 0)
    session.raw.execute("CREATE TABLE t (x)")
    session.close()
    return path


def refused(
    session: Session, *statements: str, parameters: tuple[object, ...] = (), timeout: float = 60
) -> HeddleError:
    """How the last of some statements was refused."""

    def work(each: Session) -> None:
        for statement in statements[:-1]:
            each.raw.execute(statement)
        each.raw.execute(statements[-1], parameters).fetchall()

    with pytest.raises(HeddleError) as caught:
        run_in(session, work, timeout)
    return caught.value


def ran(path: Path, *statements: str, parameters: tuple[object, ...] = (), timeout: float = 60) -> HeddleError:
    """How the last of some statements was refused to a writer of its own."""
    session = open_writer(path, "normal", 0)
    try:
        return refused(session, *statements, parameters=parameters, timeout=timeout)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (f"SELECT {'+'.join('1' * 2000)}", "Expression tree is too large"),
        (f"SELECT {'(' * 3000}1{')' * 3000}", "parser stack overflow|Expression tree is too large"),
        (f"SELECT 1 ORDER BY {','.join(['1'] * 3000)}", "too many terms in ORDER BY"),
        (f"SELECT {','.join(['1'] * 3000)}", "too many columns"),
        (f"SELECT * FROM {','.join(f't t{n}' for n in range(65))}", "at most 64 tables in a join"),
        (f"SELECT 1 IN ({','.join('?' * 300_000)})", "too many SQL variables"),
    ],
    ids=["terms", "brackets", "order", "columns", "tables", "variables"],
)
def test_what_is_too_complex_is_refused_as_a_bad_request(path: Path, statement: str, why: str) -> None:
    found = ran(path, statement)
    assert type(found) is InvalidRequest and found.reason.startswith("The query is too complex: ")
    with pytest.raises(InvalidRequest, match=why):
        raise found


def test_numbers_beyond_64_bits_are_refused(path: Path) -> None:
    found = ran(path, "SELECT ?", parameters=(2**63,))
    assert type(found) is InvalidRequest and "64 bits" in found.reason


def test_a_query_without_end_is_ended(path: Path) -> None:
    assert type(ran(path, ENDLESS, timeout=0)) is QueryTimeout


def test_a_full_database_says_so(path: Path) -> None:
    found = ran(path, "PRAGMA max_page_count = 1", "INSERT INTO t VALUES (zeroblob(1000000))")
    assert type(found) is StorageFull and "nothing of this request was stored" in found.reason


def test_a_database_that_another_process_holds_is_unavailable(path: Path) -> None:
    session, other = open_writer(path, "normal", 0), sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    found = refused(session, "PRAGMA busy_timeout = 0", "INSERT INTO t VALUES (1)")
    for each in (other, session):
        each.close()
    assert type(found) is Unavailable and "locked by another process" in found.reason


def test_a_reader_cannot_write(path: Path) -> None:
    session = open_reader(path)
    with pytest.raises(Unavailable, match="is currently unavailable: attempt to write a readonly database"):
        run_in(session, lambda each: each.raw.execute("INSERT INTO t VALUES (1)"), 60)
    session.close()


def test_a_file_that_is_no_database_and_a_damaged_page_are_named(path: Path) -> None:
    session = open_writer(path, "normal", 0)
    session.raw.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    session.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    session.close()
    with path.open("r+b") as file:
        file.seek(16384 + 8)
        file.write(b"\xff" * 64)  # its cell lies beyond the page now, where it was one time in 26 read as nothing
    statement = "SELECT max(length(hex(x))) FROM t"
    reader = open_reader(path)
    found_by = [ran(path, statement), refused(reader, statement)]
    assert reader.raw.execute("PRAGMA cell_size_check").fetchone() == (1,)
    reader.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        sqlite3.connect(path).execute("SELECT 1 FROM t")
    for found in (*found_by, explain(caught.value)):
        assert type(found) is Unavailable and "is damaged" in found.reason and "heddle check" in found.reason


def test_stored_text_that_is_no_json_is_named_as_damaged(path: Path) -> None:
    found = ran(path, "INSERT INTO t VALUES ('{')", "SELECT json_extract(x, '$.a') FROM t")
    assert type(found) is Damaged and "What is stored is damaged" in found.reason
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert type(explain(caught.value)) is Damaged


def test_text_that_is_no_utf_8_is_read_with_a_replacement(path: Path) -> None:
    session = open_writer(path, "normal", 0)
    session.raw.execute("INSERT INTO t VALUES (CAST(x'61ff' AS TEXT))")
    for statement in ("SELECT x FROM t", sa.text("SELECT x FROM t")):
        work: Callable[[Session], object] = lambda each, s=statement: (  # noqa: E731
            each.raw.execute(s).fetchone()[0] if isinstance(s, str) else each.control.execute(s).scalar()
        )
        assert run_in(session, work, 60) == "a\ufffd"
    with pytest.raises(sqlite3.OperationalError, match="Could not decode to UTF-8"):
        session.raw.execute("SELECT x FROM t").fetchone()
    session.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EIO, Unavailable),
        (errno.EROFS, Unavailable),
        (errno.EACCES, Unavailable),
        (errno.ENOTDIR, Unavailable),
        (errno.ENOENT, None),
    ],
)
def test_a_disk_that_fails_is_no_fault_of_the_request(number: int, kind: type[HeddleError] | None) -> None:
    error = OSError(number, os.strerror(number), "heddle.db")
    found = explain(error)
    assert (found and type(found)) is kind
    with pytest.raises(kind or OSError), disk_failures():
        raise error


def test_what_a_socket_may_not_do_is_no_fault_of_the_disk() -> None:
    assert explain(PermissionError(errno.EPERM, os.strerror(errno.EPERM))) is None


def test_a_fault_of_the_code_stays_one(path: Path) -> None:
    session = open_writer(path, "normal", 0)
    for statement in ("SELECT unknown FROM t", "SELECT x FROM nowhere"):
        with pytest.raises(sqlite3.OperationalError, match="no such"):
            run_in(session, lambda each, sql=statement: each.raw.execute(sql), 60)  # type: ignore[misc]
    assert explain(ValueError("x")) is None
    session.close()
