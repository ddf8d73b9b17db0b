"""Backup beside a running server, restore, and what `heddle check` finds."""

import json
import os
import re
import sqlite3
import tarfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.support import scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess, free_port

pytestmark = scale.on_sqlite

PROJECT = "team/backup"

CONTROL = "postgresql://ann:hunter2@127.0.0.1:9/heddle"
SOAK = os.environ.get("HEDDLE_SOAK") == "1"


def start(number: int) -> dict[str, Any]:
    """A call start."""
    return {
        "project_id": PROJECT,
        "op_name": f"op-{number}",
        "started_at": "2026-01-01T00:00:00Z",
        "attributes": {},
        "inputs": {"number": number},
    }


def store(client: httpx.Client, number: int) -> None:
    """One call and one file."""
    assert client.post("/call/start", json={"start": start(number)}).status_code == 200
    content = f"content of {number}".encode()
    answer = client.post("/file/create", data={"project_id": PROJECT}, files={"file": ("f.txt", content)})
    assert answer.status_code == 200, answer.text


def stored(process: HeddleProcess) -> set[str]:
    """The operation names in the project."""
    answer = httpx.post(process.url + "/calls/stream_query", json={"project_id": PROJECT, "columns": ["op_name"]})
    return {line.split('"op_name":"')[1].split('"')[0] for line in answer.text.splitlines()}


@pytest.mark.parametrize("name", ["backup", "backup.tar", "backup.tgz"] if SOAK else ["backup.tgz"])
def test_a_backup_beside_a_busy_server_holds_all_that_was_acknowledged_before(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    with HeddleProcess(tmp_path / "data") as process, httpx.Client(base_url=process.url, timeout=30) as client:
        for number in range(10):
            store(client, number)
        stop = threading.Event()

        def keep_writing() -> None:
            with httpx.Client(base_url=process.url, timeout=30) as writer:
                number = 1000
                while not stop.is_set():
                    store(writer, number := number + 1)

        busy = threading.Thread(target=keep_writing)
        busy.start()
        done = heddle("backup", target, "--data", tmp_path / "data")
        stop.set()
        busy.join()
        assert done.returncode == 0, done.stderr
        if target.is_dir():
            assert sorted(path.name for path in target.iterdir()) == ["backup.json", "files", "heddle.db"]
            assert "tmp" not in {path.name for path in (target / "files").iterdir()}
        again = heddle("backup", target, "--data", tmp_path / "data")
        assert again.returncode == 1 and "already exists" in again.stderr
    restored = heddle("restore", target, "--data", tmp_path / "restored")
    assert restored.returncode == 0, restored.stderr
    with HeddleProcess(tmp_path / "restored") as process:
        found = stored(process)
        assert {f"op-{number}" for number in range(10)} <= found
        files = httpx.post(process.url + "/files/query_stats", json={"project_id": PROJECT}).json()
        # A call may be in the copy without its file, which was not acknowledged yet; never the other way round.
        assert files["total_size_bytes"] >= sum(len(f"content of {number}") for number in range(10))
    into_full = heddle("restore", target, "--data", tmp_path / "restored")
    assert into_full.returncode == 1 and "is not empty" in into_full.stderr


@pytest.mark.thorough
def test_what_is_no_backup_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "gone").symlink_to(tmp_path / "gone")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", arcname="text")
    for source in ("text", "empty", "links", "other.tar", "missing"):
        done = heddle("restore", tmp_path / source, "--data", tmp_path / "data")
        assert done.returncode == 1 and "is not a backup" in done.stderr, done.stderr
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lock"]


def test_a_backup_that_cannot_be_read_is_not_restored(tmp_path: Path) -> None:
    for name, manifest in (("words", b"{"), ("whole", b'{"format": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_bytes(manifest)
        (tmp_path / name / "heddle.db").write_bytes(b"")
    (tmp_path / "whole" / "gone").symlink_to(tmp_path / "gone")
    for name in ("words", "whole"):
        done = heddle("restore", tmp_path / name, "--data", tmp_path / "data")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(f"heddle: {tmp_path / name} cannot be restored: "), done.stderr
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lock"]


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as process, httpx.Client(base_url=process.url, timeout=30) as client:
        for number in range(50):
            store(client, number)
    assert heddle("backup", tmp_path / "copy", "--data", tmp_path / "data").returncode == 0
    content = bytearray((tmp_path / "copy" / "heddle.db").read_bytes())
    content[8192 * 3 : 8192 * 12] = b"\xff" * (8192 * 9)
    (tmp_path / "copy" / "heddle.db").write_bytes(content)
    done = heddle("restore", tmp_path / "copy", "--data", tmp_path / "restored")
    assert done.returncode == 1
    assert sorted(path.name for path in (tmp_path / "restored").iterdir()) == ["lock"]


def test_a_missing_content_is_named_and_everything_else_is_answered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data, large_field_bytes="1KiB") as process, httpx.Client(base_url=process.url) as client:
        for number, size in enumerate((10, 5000, 20)):
            start = {"project_id": PROJECT, "id": f"c{number}", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
            start |= {"trace_id": f"t{number}", "attributes": {}, "inputs": {"text": "x" * size}}
            assert client.post("/call/start", json={"start": start}).status_code == 200
        (content,) = (path for path in (data / "files").rglob("*") if path.is_file())
        content.unlink()
        answer = client.post("/calls/stream_query", json={"project_id": PROJECT})
        found = {call["id"]: call["inputs"] for call in map(json.loads, answer.text.splitlines())}
        assert found["c0"] == {"text": "x" * 10} and found["c2"] == {"text": "x" * 20}
        assert "is missing" in found["c1"]["missing"]
        checked = heddle("check", "--data", data, "--port", process.port)
        assert checked.returncode == 1 and "1 of 1 contents checked, 1 wrong" in checked.stdout
        done = heddle("backup", tmp_path / "copy", "--data", data)
        assert done.returncode == 0 and "1 contents that the database names are missing" in done.stdout


def test_a_target_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert heddle("migrate", "--data", tmp_path / "data").returncode == 0
    done = heddle("export", tmp_path / "file" / "x.tar", "--data", tmp_path / "data")
    assert done.returncode == 1
    assert done.stderr == f"heddle: {tmp_path / 'file'} cannot be used: File exists\n"


def test_nothing_to_back_up(tmp_path: Path) -> None:
    done = heddle("backup", tmp_path / "copy", "--data", tmp_path / "data")
    assert done.returncode == 1 and "nothing to back up" in done.stderr
    assert not (tmp_path / "copy").exists()


def test_check_finds_a_sound_installation(tmp_path: Path, server: HeddleProcess) -> None:
    done = heddle("check", "--data", tmp_path / "data", "--port", 0)
    assert done.returncode == 0, done.stdout
    assert "heddle check: no faults" in done.stdout
    beside = heddle("check", "--data", server.data, "--port", server.port)
    assert beside.returncode == 0, beside.stdout
    assert "heddle is running" in " ".join(beside.stdout.split())


@pytest.mark.thorough
def test_check_names_each_fault_and_how_to_mend_it(tmp_path: Path, server: HeddleProcess) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "heddle.db").write_bytes(b"no database" * 1000)
    (tmp_path / "newer").mkdir()
    with sqlite3.connect(tmp_path / "newer" / "heddle.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    for words, fault, mend in (
        (("--data", tmp_path / "damaged"), "not a database", "restore the last backup"),
        (("--data", tmp_path / "newer"), "from a newer version of heddle", "upgrade heddle"),
        (("--data", tmp_path / "new", "--port", server.port), "in use", "--port"),
        (("--data", tmp_path / "new", "--auth", "on"), "there are no keys", "heddle keys create"),
        (("--data", tmp_path / "new", "--host", "0.0.0.0", "--auth", "off"), "off", "only on a loopback address"),
    ):
        port = () if "--port" in words else ("--port", 0)
        done = heddle("check", *words, *port)
        text = " ".join(done.stdout.split())
        assert done.returncode == 1, done.stdout
        assert fault in text and mend in text and "1 fault" in text, done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "address"),
    [("store", "clickhouse://ann:hunter2@db/heddle"), ("control", "postgresql://ann:hunter2@db/heddle")],
)
def test_databases_elsewhere_are_refused_by_name(tmp_path: Path, name: str, address: str) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    assert heddle("migrate", "--data", str(data)).returncode == 0
    for words in (("backup", str(copy), "--data", str(data)), ("restore", str(copy), "--data", str(tmp_path / "new"))):
        refused = heddle(*words, **{name: address})
        assert refused.returncode == 1
        assert f"{name} (from variable HEDDLE_{name.upper()}) is not SQLite" in refused.stderr
        assert "hunter2" not in refused.stderr
    assert not copy.exists() and not (tmp_path / "new").exists()


@pytest.mark.thorough
@pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing()))
def test_check_looks_at_stores_elsewhere(tmp_path: Path) -> None:
    settings = scale.settings_of("clickhouse", tmp_path / "data")
    words = ("check", "--full", "--data", tmp_path / "data", "--port", 0)
    empty = heddle(*words, **settings)
    assert empty.returncode == 0, empty.stdout
    with HeddleProcess(tmp_path / "data", large_field_bytes="1KiB", model="none", **settings) as process:
        with httpx.Client(base_url=process.url, timeout=60) as client:
            large = start(1) | {"inputs": {"text": "x" * 5000}}
            assert client.post("/call/start", json={"start": large}).status_code == 200
            store(client, 2)
        beside = heddle(*words, **settings)
        text = " ".join(beside.stdout.split())
        assert beside.returncode == 0, text
        assert "calls 3 of 3 tables checked" in text and "contents 2 of 2 contents checked" in text
        assert re.search(r"control tables (\d+) of \1 tables checked", text), text
        for path in (tmp_path / "data" / "files").glob("??/*"):
            path.write_bytes(b"changed")
    with sa.create_engine(settings["control"].replace("postgresql://", "postgresql+psycopg://")).begin() as connection:
        connection.execute(sa.text("DROP INDEX files_by_blob"))
    damaged = heddle(*words, **settings)
    assert damaged.returncode == 1 and "2 of 2 contents checked, 2 wrong" in damaged.stdout, damaged.stdout
    assert "the index files_by_blob is missing" in damaged.stdout


@pytest.mark.thorough
def test_stores_elsewhere_that_do_not_work_are_faults(tmp_path: Path) -> None:
    store = f"clickhouse://ann:hunter2@127.0.0.1:{free_port()}/heddle"
    away = heddle("check", "--data", tmp_path, "--port", "0", store=store)
    alone = heddle("check", "--data", tmp_path, "--port", "0", store=store, workers=2)
    bounded = heddle(
        "check", "--data", tmp_path, "--port", "0", store=store, control=CONTROL, max_database_bytes=1 << 20
    )
    for found, words in (
        (away, "The store of calls cannot be reached"),
        (alone, "workers only applies to SQLite"),
        (bounded, "max_database_bytes only applies to SQLite"),
    ):
        assert found.returncode == 1 and words in found.stdout
        assert "hunter2" not in found.stdout + found.stderr
