"""What `heddle check` finds in a database and among contents, and that it stops when its time is over."""

import asyncio
import math
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from heddle.checks import look
from heddle.errors import Damaged, HeddleError
from heddle.settings import Settings, load
from heddle.store import integrity
from heddle.store.backup import back_up
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.control.agents import spans as spans_of_agents
from heddle.store.control.agents.table import CHECKED, agent_spans
from heddle.store.integrity import SqliteIntegrity, check_contents
from heddle.store.open import schema_version
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.database import empty_log
from heddle.store.sqlite.log_damage import find_log_damage
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.store import open_file
from heddle.store.sqlite.writer import Writer
from heddle.wire.spans import AgentSpan
from tests.support import scale
from tests.support.cli import heddle as run_heddle
from tests.support.server import HeddleProcess

pytestmark = scale.on_sqlite


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a server that stored some calls."""
    data = tmp_path_factory.mktemp("integrity") / "data"
    with HeddleProcess(data, model="none") as process:
        named = {"project_id": "a/b", "trace_id": "t", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
        items = []
        for number in range(20):
            start = {**named, "id": f"c{number}", "parent_id": "c0" if number else None, "attributes": {}, "inputs": {}}
            end = {"project_id": "a/b", "id": f"c{number}", "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
            items += [{"mode": "start", "req": {"start": start}}, {"mode": "end", "req": {"end": end}}]
        assert httpx.post(f"{process.url}/call/upsert_batch", json={"batch": items}).status_code == 200
        rows = {"project_id": "a/b", "rows": [{"n": 1}, {"n": 2}]}
        assert httpx.post(f"{process.url}/table/create", json={"table": rows}).status_code == 200
        obj = {"project_id": "a/b", "object_id": "o", "val": {"n": 1}}
        assert httpx.post(f"{process.url}/obj/create", json={"obj": obj}).status_code == 200
    return data / "heddle.db"


@pytest.fixture
def database(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "heddle.db"
    copy.write_bytes(written.read_bytes())
    return copy


def change(database: Path, *statements: str) -> None:
    """Change a database behind the server's back."""
    raw = sqlite3.connect(database, isolation_level=None)
    for statement in statements:
        raw.execute(statement)
    raw.close()


def test_a_sound_database(database: Path) -> None:
    checks = SqliteIntegrity(database)
    for looked in (checks.check_tables(math.inf), checks.check_rows(math.inf), checks.check_tables(1e12)):
        assert looked.looked_at == looked.of > 0 and looked.problems == []


def test_nothing_is_looked_at_without_time(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_STEPS_BETWEEN_LOOKS", 1)
    checks = SqliteIntegrity(database)
    assert checks.check_rows(0.0)._replace(of=0) == (0, 0, [])
    assert checks.check_tables(0.0) == (0, 1, []), "not even which tables there are"
    assert check_contents(["0" * 64], FolderBlobs(database.parent), 0.0).looked_at == 0


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM body_out WHERE rid = 3", "1 ended calls without their output"),
        ("DELETE FROM body_in WHERE rid < 3", "2 started calls without their inputs"),
        ("INSERT INTO call_refs VALUES (1, 1, 0, 999)", "1 rows of call_refs without their call"),
        ("DELETE FROM call_blocks", "4 wrong sums of call_blocks"),
        ("INSERT INTO tables VALUES (0, 9, 'p', 'd', 5, 1, 0)", "1 tables of rows with missing parts"),
        ("UPDATE object_versions SET val = '{\"n\": 2}'", "1 damaged objects"),
        ("UPDATE table_rows SET val = '{\"n\": '", "2 damaged table rows"),
        ("DELETE FROM table_rows WHERE number = 2", "1 missing table rows"),
    ],
)
def test_rows_that_do_not_belong_together_are_counted(database: Path, statement: str, found: str) -> None:
    change(database, statement)
    looked = SqliteIntegrity(database).check_rows(math.inf)
    assert looked.looked_at == looked.of and found in looked.problems


@pytest.mark.parametrize(
    ("table", "change_of_one", "part"),
    [
        ("body_in", "inputs = '{|'", "body_in"),
        ("body_out", "summary = '{|'", "body_out"),
        ("calls", "user = user + 1", "the head"),
        ("calls", "display_name = 'x'", "the head"),
    ],
)
def test_a_flipped_bit_of_a_call_is_named(database: Path, table: str, change_of_one: str, part: str) -> None:
    assert SqliteIntegrity(database).check_bodies(math.inf) == (20, 20, [])
    change(database, f"UPDATE {table} SET {change_of_one} WHERE rid IN (4, 9)")
    looked = SqliteIntegrity(database).check_bodies(math.inf)
    assert looked.looked_at == 20 and set(looked.problems) == {f"{part} of the call 'c{n}' is damaged" for n in (3, 8)}
    # What an older heddle wrote has no checksum.
    change(database, f"UPDATE {table} SET crc = NULL")
    assert SqliteIntegrity(database).check_bodies(math.inf).problems == []
    assert SqliteIntegrity(database).check_bodies(0.0).looked_at <= 20


def test_calls_that_change_have_their_checksums(tmp_path: Path) -> None:
    named = {"project_id": "a/b", "trace_id": "t", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
    start = {**named, "id": "c", "attributes": {}, "inputs": {"a": 1}}
    end = {"project_id": "a/b", "id": "c", "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
    stub = {**end, "id": "s"}
    requests: list[tuple[str, dict[str, object]]] = [
        ("/call/start", {"start": start}),
        ("/call/end", {"end": end}),
        ("/call/end", {"end": {**end, "exception": "ValueError: no"}}),
        ("/call/end", {"end": stub}),
        ("/call/start", {"start": {**start, "id": "s", "wb_user_id": "ada"}}),
        ("/call/start", {"start": {**start, "wb_user_id": "bob", "thread_id": "t"}}),
        ("/call/update", {"project_id": "a/b", "call_id": "c", "display_name": "Größe"}),
        ("/calls/delete", {"project_id": "a/b", "call_ids": ["s"]}),
    ]
    with HeddleProcess(tmp_path / "data", model="none") as process:
        for route, body in requests:
            assert httpx.post(f"{process.url}{route}", json=body).status_code == 200, route
            checks = SqliteIntegrity(tmp_path / "data" / "heddle.db")
            assert checks.check_bodies(math.inf).problems == checks.check_rows(math.inf).problems == [], route
        with closing(connect(tmp_path / "data" / "heddle.db", is_read_only=True)) as raw:
            assert raw.execute("SELECT count(crc), count(*) FROM calls").fetchone() == (2, 2)


ROWS = {
    "prices": ("costs", "prompt_token_cost = prompt_token_cost * 2"),
    "an exact float": ("costs", "prompt_token_cost = prompt_token_cost * 1.0000000000000002"),
    "the limit of a key": ("api_keys", "expires_at = 5 WHERE user = 'ada'"),
    "an alias": ("object_aliases", "alias = 'stagine' WHERE alias = 'staging'"),
    "a version": ("object_versions", "user = 'eve'"),
    "feedback": ("feedback", "feedback_type = 'nota'"),
    "an empty text": ("feedback", "creator = X''"),
}


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a server that stored what is not of calls."""
    data = tmp_path_factory.mktemp("controlled") / "data"
    about = {"project_id": "a/b"}
    with HeddleProcess(data, model="none") as process:

        def post(route: str, body: dict[str, object]) -> dict[str, str]:
            answer = httpx.post(f"{process.url}{route}", json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, str] = answer.json()
            return found

        digest = post("/obj/create", {"obj": {**about, "object_id": "o", "val": {"n": 1}}})["digest"]
        named = {**about, "digest": digest, "aliases": ["staging"]}
        assert httpx.put(f"{process.url}/objs/o/aliases", json=named).status_code == 200
        price = {"prompt_token_cost": 0.0000025, "completion_token_cost": 0.00001}
        post("/cost/create", {**about, "costs": {"m": price}})
        ref = f"weave:///a/b/object/o:{digest}"
        post(
            "/feedback/create",
            {**about, "weave_ref": ref, "feedback_type": "note", "payload": {"note": "ä"}, "creator": ""},
        )
    assert run_heddle("keys", "create", "--user", "ada", "--role", "viewer", "--data", data).returncode == 0
    return data / "heddle.db"


@pytest.mark.parametrize("what", ROWS)
def test_a_flipped_bit_of_any_other_row_is_named(controlled: Path, tmp_path: Path, what: str) -> None:
    database = tmp_path / "heddle.db"
    database.write_bytes(controlled.read_bytes())
    assert SqliteIntegrity(database).check_rows(math.inf).problems == []
    table, damage = ROWS[what]
    change(database, f"UPDATE {table} SET {damage}")
    assert SqliteIntegrity(database).check_rows(math.inf).problems == [f"1 damaged rows of {table}"]
    session = open_file(load({"data": str(tmp_path)}, {}), database)
    names = {row[0] for row in session.raw.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    session.raw.execute(f"UPDATE {table} SET {'created_at' if 'created_at' in names else 'updated_at'} = 7")
    session.close()
    found = SqliteIntegrity(database).check_rows(math.inf).problems
    assert found == [f"1 damaged rows of {table}"], "what else changes in a row makes it no better"


def test_a_flipped_bit_of_an_agent_span_is_named(tmp_path: Path) -> None:
    database = tmp_path / "heddle.db"
    session = open_file(load({"data": str(tmp_path)}, {}), database)
    raw, checks = session.raw, SqliteIntegrity(database)
    first = AgentSpan(
        "p", "t", "one", 20, 30, "root", "chat é", operation_name="chat", agent_version="9", input_tokens=0
    )
    named = replace(first, span_id="two", conversation_id="own", custom_attrs_int={"n": 1}, response_id="r")
    root = AgentSpan("p", "t", "root", 10, 40, agent_name="guide", conversation_id="c", conversation_name="trip")
    earlier = AgentSpan("p", "t", "earlier", 5, 6, agent_name="host", agent_id="h", conversation_id="d")
    raw.execute("BEGIN")
    for spans in ([first, named], [root], [earlier, replace(first, output_tokens=7)]):
        spans_of_agents.write(session.control, spans)
    spans_of_agents.hide(session.control, "p", ["t"], ["two"])
    raw.execute("DELETE FROM agent_spans WHERE span_id = 'earlier'")
    spans_of_agents.renew_traces(session.control, "p", ["t"])
    raw.execute("COMMIT")
    shown = raw.execute(
        "SELECT span_id, agent_name, conversation_id FROM agent_spans WHERE hidden = 0 ORDER BY span_id"
    )
    assert shown.fetchall() == [("one", "guide", "c"), ("root", "guide", "c")]
    assert checks.check_rows(math.inf).problems == checks.check_tables(math.inf).problems == []
    rows = session.control.execute(sa.select(agent_spans)).mappings().all()
    assert [spans_of_agents.checksum(row) for row in rows] == [row["crc"] for row in rows]
    for column in CHECKED:
        raw.execute("BEGIN")
        raw.execute(f"UPDATE agent_spans SET {column} = ifnull({column}, '') || '1' WHERE span_id = 'root'")
        raw.execute("COMMIT")
        assert checks.check_rows(math.inf).problems == ["1 damaged rows of agent_spans"], column
        raw.execute("BEGIN")
        spans_of_agents.write(session.control, [root])
        others = "span_id NOT IN ('one', 'two', 'root') OR project <> 'p' OR trace_id <> 't'"
        raw.execute(f"DELETE FROM agent_spans WHERE {others}")
        raw.execute("COMMIT")
        assert checks.check_rows(math.inf).problems == [], column
    raw.execute("UPDATE agent_spans SET is_counted = 3 WHERE span_id = 'root'")
    assert checks.check_rows(math.inf).problems == ["1 damaged rows of agent_spans"]
    # What an older heddle wrote has no checksum.
    raw.execute("UPDATE agent_spans SET is_counted = 1, crc = NULL, span_name = 'x'")
    assert checks.check_rows(math.inf).problems == []
    session.close()


def test_what_fails_on_damage_says_so(controlled: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    database = tmp_path / "data" / "heddle.db"
    database.write_bytes(controlled.read_bytes())
    change(database, "UPDATE object_versions SET created_at = 1 << 62")
    what = "What is stored is damaged (heddle check names it): 1 damaged rows of object_versions"

    async def divide() -> None:
        session = open_file(load({"data": str(database.parent)}, {}), database)
        writer = Writer(session, 1 << 20, Names())
        try:
            await writer.write(lambda _: 1 // 0)
        finally:
            writer.close()
            session.close()

    with pytest.raises(Damaged, match=re.escape(what)):
        asyncio.run(divide())
    with HeddleProcess(database.parent, model="none") as process:
        answer = httpx.post(f"{process.url}/objs/query", json={"project_id": "a/b"})
        assert answer.status_code == 503 and answer.json() == {"reason": what}
        assert httpx.post(f"{process.url}/cost/query", json={"project_id": "a/b"}).status_code == 200
        assert "Traceback" not in process.log() and "OverflowError" in process.log()


def test_a_log_that_lost_acknowledged_writes_is_found(tmp_path: Path) -> None:
    tmp_path = tmp_path / "50% of #1?"
    tmp_path.mkdir()
    raw = sqlite3.connect(tmp_path / "live.db", isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE t (n)")
    for number in range(5):
        raw.execute("INSERT INTO t VALUES (?)", (number,))
    database, log = tmp_path / "heddle.db", tmp_path / "heddle.db-wal"
    content = (tmp_path / "live.db-wal").read_bytes()
    frame = 24 + 4096

    def damage_at(at: int) -> tuple[int, int] | None:
        """Where the log is damaged, and what is lost, with a bit flipped there in a killed server's files."""
        database.write_bytes((tmp_path / "live.db").read_bytes())
        log.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        found = find_log_damage(database)
        assert found is None or found.is_certain is (found.commits > 1)
        return (found.at, found.commits) if found else None

    frames = (len(content) - 32) // frame
    assert damage_at(32 + frame + 100) == (32, 6), "the table is made in two frames"
    assert damage_at(32 + 2 * frame + 100) == (32 + 2 * frame, 5)
    assert damage_at(32 + (frames - 2) * frame + 30) == (32 + (frames - 2) * frame, 2)
    last = 32 + (frames - 1) * frame
    assert damage_at(last + 30) == (last, 1), "the end of a crash looks the same"
    told = f"the last write in heddle.db-wal, at byte {last}, is incomplete: cut off by a crash, or lost"
    assert str(find_log_damage(database)) == told
    assert damage_at(17) == (32, 6), "the header"
    log.write_bytes(content)
    assert find_log_damage(database) is None
    assert damage_at(32 + 2 * frame + 100) is not None
    with log.open("r+b") as file:
        file.truncate(32 + 2 * frame)
    assert find_log_damage(database) is None
    # From here on the log begins anew, and what stood in it before still stands behind it.
    assert raw.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
    for number in range(2):
        raw.execute("INSERT INTO t VALUES (?)", (number,))
    content = (tmp_path / "live.db-wal").read_bytes()
    assert (len(content) - 32) // frame == frames > 3
    assert damage_at(32 + 2 * frame + 30) is None, "a frame of before"
    assert damage_at(32 + 30) == (32, 2)
    raw.close()


def test_a_schema_whose_text_is_damaged_is_named(database: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = database.read_bytes()
    at = content.index(b"CREATE TABLE calls") + len("CREATE ")
    database.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
    settings = Settings(data=str(database.parent))
    with pytest.raises(sqlite3.DatabaseError, match="text of its schema is not UTF-8"):
        SqliteIntegrity(database).check_tables(math.inf)
    with pytest.raises(HeddleError, match="text of its schema is not UTF-8"):
        open_file(settings, database)
    with pytest.raises(HeddleError, match="text of its schema is not UTF-8"):
        schema_version(database)
    with pytest.raises(HeddleError, match="text of its schema is not UTF-8"):
        back_up(settings, str(tmp_path_factory.mktemp("backups") / "new"))
    (found,) = [each for each in look(settings, 60) if each.is_fault]
    assert "text of its schema is not UTF-8" in found.found


def test_a_table_that_rules_ask_for_and_that_is_not_there_is_no_end_of_time(database: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(database.read_bytes())
    change(broken, "DROP TABLE body_in")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        SqliteIntegrity(broken).check_rows(1e12)


def test_a_file_whose_log_lost_acknowledged_writes_is_not_opened_and_stays_as_it_is(tmp_path: Path) -> None:
    session = open_file(Settings(data=str(tmp_path)), tmp_path / "heddle.db")
    assert empty_log(session)
    for name in ("first", "second", "third"):
        session.raw.execute(f"CREATE TABLE {name} (n)")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("heddle.db", "heddle.db-wal"):
        (damaged / name).write_bytes((tmp_path / name).read_bytes())
    session.close()
    with (damaged / "heddle.db-wal").open("r+b") as log:
        log.seek(32 + 24 + 100)
        log.write(b"\xff" * 8)
    before = [(damaged / name).read_bytes() for name in ("heddle.db", "heddle.db-wal")]
    found = "heddle.db-wal is damaged at byte 32, and 3 acknowledged writes after it are lost; .*truncate -s 32 "
    with pytest.raises(HeddleError, match=found):
        open_file(Settings(data=str(damaged), durability="full"), damaged / "heddle.db")
    assert [(damaged / name).read_bytes() for name in ("heddle.db", "heddle.db-wal")] == before
    again = open_file(Settings(data=str(damaged), durability="normal"), damaged / "heddle.db")
    try:
        assert again.raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'third'").fetchone() == (0,)
    finally:
        again.close()


def test_what_a_crash_left_in_the_log_is_gone_at_the_start(tmp_path: Path) -> None:
    """Or a second crash would leave commits of the first behind its own."""
    settings = Settings(data=str(tmp_path))
    session = open_file(settings, tmp_path / "heddle.db")
    assert empty_log(session)
    session.raw.execute("CREATE TABLE crashed (n)")
    log = tmp_path / "heddle.db-wal"
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in (tmp_path / "heddle.db", log):
        (killed / file.name).write_bytes(file.read_bytes())
    session.close()
    with (killed / log.name).open("r+b") as cut:
        cut.seek(-100, 2)
        cut.write(b"\xff" * 100)
    again = open_file(Settings(data=str(killed)), killed / "heddle.db")
    try:
        assert not (killed / log.name).stat().st_size
        assert not again.raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'crashed'").fetchone()[0]
    finally:
        again.close()


@pytest.mark.parametrize("ends", [math.inf, 1e12])
def test_an_index_that_lacks_rows_is_found(database: Path, ends: float) -> None:
    # The rows that its condition leaves out are missing once it has none.
    whole = "CREATE INDEX calls_parent ON calls (parent_id, project)"
    change(
        database, "PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET sql = '{whole}' WHERE name = 'calls_parent'"
    )
    looked = SqliteIntegrity(database).check_tables(ends)
    assert any("calls_parent" in problem for problem in looked.problems), looked.problems


def test_contents_are_read(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    whole, damaged, missing = (blobs.put_bytes(content) for content in (b"one", b"two", b"three"))
    (tmp_path / damaged[:2] / damaged[2:]).write_bytes(b"2")
    blobs.delete(missing)
    keys = [whole, damaged, missing]
    found = check_contents(keys, blobs, math.inf)
    assert (found.looked_at, found.of) == (3, 3)
    assert set(found.problems) == {f"{damaged} is damaged", f"{missing} is missing"}
    assert check_contents(keys, blobs, math.inf, reads=False).problems == [f"{missing} is missing"]


def test_what_another_user_owns_in_the_data_folder_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a command that root ran; root itself may write to everything, so the answer is that of the test."""
    log = database.with_name("heddle.db-wal")
    log.touch()
    (database.parent / "lost+found").mkdir()
    monkeypatch.setattr("os.access", lambda path, _: path == database)
    found = [each for each in look(load({"data": str(database.parent)}), 60) if each.what == "data folder"]
    assert [each.found for each in found] == [f"this user cannot write to {log}"] and found[0].is_fault
