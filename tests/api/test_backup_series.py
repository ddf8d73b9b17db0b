"""Backups again and again: rotation, shared files, the trial of each, what is noted of it, and the way back."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store import backup
from heddle.store.data_folder import BackupState
from heddle.store.sqlite import migrations
from tests.support import scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess

pytestmark = scale.on_sqlite

PROJECT = "team/series"
OLD = "20200101T0000{:02}Z"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a stopped server that stored a call and two files."""
    folder = tmp_path / "data"
    with HeddleProcess(folder, large_field_bytes="1KiB") as process, httpx.Client(base_url=process.url) as client:
        start = {"project_id": PROJECT, "id": "c", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
        start |= {"trace_id": "t", "attributes": {}, "inputs": {"text": "x" * 5000}}
        assert client.post("/call/start", json={"start": start}).status_code == 200
        form = {"data": {"project_id": PROJECT}, "files": {"file": ("f.txt", b"content")}}
        assert client.post("/file/create", **form).status_code == 200  # type: ignore[arg-type]
    return folder


def contents(backup: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and bytes of each file of a backup."""
    files = [path for path in (backup / "files").rglob("*") if path.is_file()]
    return {path.relative_to(backup).as_posix(): (path.stat().st_ino, path.read_bytes()) for path in files}


def make_older(folder: Path, number: int) -> Path:
    """Give the newest backup of a folder an older name."""
    (newest,) = [path for path in folder.iterdir() if path.name[:4] > "2020"]
    return newest.rename(folder / OLD.format(number))


def test_the_newest_stay_and_share_their_files(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    (folder / ".20200101T000000Z.killed").mkdir(parents=True)
    (folder / "20200101T000000Z.txt").touch()
    for number in range(3):
        done = heddle("backup", folder / "{time}", "--keep", 2, "--data", data)
        assert done.returncode == 0 and "restored into a temporary folder and checked" in done.stdout, done.stderr
        if number < 2:
            make_older(folder, number)
    first, newest = sorted(path for path in folder.iterdir() if path.is_dir())
    assert first.name == OLD.format(1) and OLD.format(0) in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == [".lock", f"{OLD.format(0)}.txt", first.name, newest.name]
    assert contents(first) == contents(newest) and len(contents(newest)) == 2
    state = BackupState.read(data)
    assert state.target == str(newest) and state.error == "" and state.restored_at == state.made_at > 0
    assert heddle("restore", newest, "--data", tmp_path / "restored").returncode == 0
    of_both = [contents(newest), contents(tmp_path / "restored")]
    assert len({inode for found in of_both for inode, _ in found.values()}) == 4


@pytest.mark.thorough
def test_what_went_bad_in_an_earlier_backup_is_copied_anew(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    assert heddle("backup", folder / "{time}", "--data", data).returncode == 0
    older = make_older(folder, 0)
    victim = next(path for path in (older / "files").rglob("*") if path.is_file())
    moment = victim.stat().st_mtime_ns
    victim.write_bytes(bytes(victim.stat().st_size))
    os.utime(victim, ns=(moment, moment))
    done = heddle("backup", folder / "{time}", "--data", data)
    assert done.returncode == 0 and "damaged" not in done.stdout, done.stderr
    newest = max(path for path in folder.iterdir() if path.is_dir())
    kept = newest / victim.relative_to(older)
    assert kept.read_bytes() == (data / victim.relative_to(older)).read_bytes() != victim.read_bytes()


@pytest.mark.thorough
def test_a_failure_is_loud_and_noted_until_one_goes_well(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = heddle("backup", tmp_path / "file" / "{time}.tgz", "--data", data)
    assert failed.returncode == 1 and "The backup failed" in failed.stderr and "Traceback" not in failed.stderr
    assert "The backup failed" in BackupState.read(data).error or "File exists" in BackupState.read(data).error
    shown = heddle("check", "--data", data, "--port", 0)
    assert "the last attempt failed" in shown.stdout
    assert heddle("backup", tmp_path / "ok.tgz", "--data", data).returncode == 0
    assert (BackupState.read(data).error, BackupState.read(data).failed_at) == ("", 0)
    shown = heddle("check", "--data", data, "--port", 0)
    assert shown.returncode == 0 and "0 hours ago to " in shown.stdout and "failed" not in shown.stdout
    with HeddleProcess(data) as process:
        told = httpx.get(process.url + "/_ui/api/storage").json()["backup"]
    assert told["target"] == str(tmp_path / "ok.tgz") and told["made_at"] == told["restored_at"] and not told["error"]


def test_a_copy_that_differs_gets_no_name(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = backup._pack

    def spoil(copy: Path, made: Path, name: str) -> Path:
        victim = next(path for path in (copy / "files").rglob("*") if path.is_file())
        victim.chmod(0o600)
        victim.write_bytes(bytes(victim.stat().st_size))
        return pack(copy, made, name)

    monkeypatch.setattr(backup, "_pack", spoil)
    with pytest.raises(HeddleError, match="files are damaged"):
        backup.back_up(Settings(data=str(data)), str(tmp_path / "b" / "{time}.tgz"), 1)
    assert [path.name for path in (tmp_path / "b").iterdir()] == [".lock"]
    assert "files are damaged" in BackupState.read(data).error
    told = backup.back_up(Settings(data=str(data)), str(tmp_path / "b" / "{time}.tgz"), 1, verify=7)
    assert "restored" not in told and BackupState.read(data).since_restored == 1


@pytest.mark.thorough
def test_it_goes_on_until_it_is_stopped(data: Path, tmp_path: Path) -> None:
    folder, log = tmp_path / "backups", tmp_path / "log"
    words = ["backup", str(folder / "{time}.tgz"), "--every", "1s", "--keep", "2", "--data", str(data)]
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "heddle", *words], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while log.read_text().count("backed up") < 4:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
    left = [path.name for path in folder.iterdir()]
    assert len([name for name in left if name.endswith(".tgz")]) <= 3
    assert [name for name in left if not name.endswith(".tgz")] == [".lock"]


@pytest.mark.thorough
def test_what_makes_many_needs_a_name_for_each(tmp_path: Path) -> None:
    for words in (("b.tgz", "--keep", 2), ("b.tgz", "--every", "1d"), ("{time}", "--every", "soon")):
        assert heddle("backup", *words, "--data", tmp_path).returncode == 2
    (tmp_path / "heddle.db").touch()
    wrong = heddle("backup", "{time}/b.tgz", "--data", tmp_path)
    assert wrong.returncode == 1 and "in the last part of the path" in wrong.stderr


def test_an_upgrade_is_undone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = migrations.CURRENT + 1
    monkeypatch.setattr(
        migrations,
        "MIGRATIONS",
        (*migrations.MIGRATIONS, migrations.Migration(number, "newer", lambda session: None, changes_data=True)),
    )
    monkeypatch.setattr(migrations, "CURRENT", number)
    settings = Settings(data=str(data))
    backup.migrate(settings)
    with sqlite3.connect(data / "heddle.db") as raw:
        raw.execute("CREATE TABLE since (n)")
    raw.close()
    with pytest.raises(HeddleError, match=f"copies from before {number}"):
        backup.restore_before(settings, 3)
    told = backup.restore_before(settings, number)
    assert f"schema {number - 1}" in told
    (kept,) = data.glob("heddle.db.after-*")
    for path, version, tables in ((data / "heddle.db", number - 1, 0), (kept, number, 1)):
        with sqlite3.connect(path) as raw:
            assert raw.execute("PRAGMA user_version").fetchone() == (version,)
            assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'since'").fetchone() == (tables,)
        raw.close()
    monkeypatch.undo()
    with HeddleProcess(data) as process:
        beside = heddle("restore", "--before", number, "--data", data)
        assert beside.returncode == 1 and "in use by another heddle" in beside.stderr
        answer = httpx.post(process.url + "/calls/stream_query", json={"project_id": PROJECT})
        assert [json.loads(line)["id"] for line in answer.text.splitlines()] == ["c"]
