"""Backups as folders and archives: what is restored is what was stored, and what is none is refused in a line."""

import asyncio
import io
import json
import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from heddle import settings
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.backup import MANIFEST, Series, back_up, restore
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.data_folder import FILES, BackupState
from heddle.store.open import schema_version
from heddle.store.sqlite import migrations
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import open_store
from heddle.transfer import parquet
from heddle.transfer.export import export
from heddle.wire.calls import CallsQuery, Start
from tests.support.written_calls import AT, PROJECT


def load(folder: Path, **given: str) -> Settings:
    return settings.load({"data": str(folder), **given}, {})


async def _written(folder: Path) -> None:
    store = await open_store(load(folder))
    key = store.blobs.put_bytes(b"content")
    await store.files.create(PROJECT, "a file", "digest", 7, key)
    await store.calls.write(
        [Start(PROJECT, f"call-{n}", "t", "op", AT + n, '{"n":1}', "{}", "ada") for n in range(3)], []
    )
    await store.close()


async def _ids(folder: Path) -> list[str]:
    store = await open_store(load(folder))
    found = [row.id async for rows in store.calls.stream(CallsQuery(PROJECT)) for row in rows]
    await store.close()
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with three calls and a content."""
    asyncio.run(_written(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["data/copy", "data/copies/{time}.tar", "link/copy", "data"])
def test_a_copy_lies_apart_from_the_data_folder(data: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(data, target_is_directory=True)
    before = sorted(data.rglob("*"))
    with pytest.raises(HeddleError, match="must not be inside the data folder"):
        back_up(load(data), str(tmp_path / name))
    for as_json in (True, False):
        with pytest.raises(HeddleError, match="must not be inside the data folder"):
            asyncio.run(export(load(data), tmp_path / name, [], as_json))
    with pytest.raises(HeddleError, match="must not be inside the data folder"):
        asyncio.run(parquet.export(load(data), tmp_path / name, []))
    assert sorted(data.rglob("*")) == before


def test_a_backup_is_not_restored_into_itself(data: Path, tmp_path: Path) -> None:
    back_up(load(data), str(tmp_path / "copy"))
    with pytest.raises(HeddleError, match="must not be inside the data folder"):
        restore(load(tmp_path / "copy" / "restored"), str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / "restored").exists()


@pytest.mark.parametrize("name", ["folder", "archive.tar", "archive.tar.gz"])
def test_what_is_restored_is_what_was_stored(data: Path, tmp_path: Path, name: str) -> None:
    said = back_up(load(data), str(tmp_path / name))
    assert str(tmp_path / name) in said
    restore(load(tmp_path / "restored"), str(tmp_path / name))
    assert asyncio.run(_ids(tmp_path / "restored")) == ["call-0", "call-1", "call-2"]
    (key,) = FolderBlobs(tmp_path / "restored" / FILES).keys()
    assert FolderBlobs(tmp_path / "restored" / FILES).read(key) == b"content"
    with pytest.raises(HeddleError):
        back_up(load(data), str(tmp_path / name))


def test_a_folder_without_a_database_and_tables_elsewhere_are_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="data"):
        back_up(load(tmp_path / "data"), str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()
    with pytest.raises(HeddleError):
        back_up(load(tmp_path / "data", control="postgresql://host/db"), str(tmp_path / "backup"))


def test_what_is_no_backup_is_refused_and_nothing_is_restored(data: Path, tmp_path: Path) -> None:
    source = tmp_path / "backup"
    back_up(load(data), str(source))
    manifest = json.loads((source / MANIFEST).read_text())

    def refused(place: Path = source) -> str:
        with pytest.raises(HeddleError) as caught:
            restore(load(tmp_path / "restored"), str(place))
        assert not (tmp_path / "restored" / DATABASE).exists()
        return caught.value.reason

    (source / MANIFEST).write_text(json.dumps(manifest | {"format": 99, "heddle": "9.9"}))
    assert "an unknown format; it was created by 9.9" in refused()
    (source / MANIFEST).write_text(json.dumps(manifest | {"files": manifest["files"] + 1}))
    assert f"is incomplete: {manifest['files']} files instead of {manifest['files'] + 1}" in refused()
    for text in ("{", "[]", "5"):
        (source / MANIFEST).write_text(text)
        assert "cannot be restored" in refused()
    for name in ("format", "files", "made_at"):
        left = {key: value for key, value in manifest.items() if key != name}
        (source / MANIFEST).write_text(json.dumps(left))
        assert f"cannot be restored: '{name}' is missing in {MANIFEST}" in refused()
        (source / MANIFEST).write_text(json.dumps(left | {name: []}))
        assert refused()
    (source / MANIFEST).unlink()
    assert f"{MANIFEST} or {DATABASE} is missing" in refused()
    (tmp_path / "text").write_text("no archive")
    assert "neither a folder nor a tar file" in refused(tmp_path / "text")
    assert "neither a folder nor a tar file" in refused(tmp_path / "gone")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", "text")
    assert f"{MANIFEST} or {DATABASE} is missing" in refused(tmp_path / "other.tar")
    with tarfile.open(tmp_path / "headers.tar", "w") as archive:
        for _ in range(2000):
            header = tarfile.TarInfo("header")
            header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2
            archive.addfile(header, io.BytesIO(b"x\0"))
    assert "cannot be restored" in refused(tmp_path / "headers.tar")
    back_up(load(data), str(tmp_path / "whole.tar"))
    content = (tmp_path / "whole.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(content[: len(content) // 2])
    assert refused(tmp_path / "cut.tar")
    (source / MANIFEST).write_text(json.dumps(manifest))
    content = (source / DATABASE).read_bytes()
    (source / DATABASE).write_bytes(b"no database" * 4096)
    assert "The copy of the database is damaged: file is not a database" in refused()
    (source / DATABASE).write_bytes(content[:8192] + b"\xff" * 8192 + content[16384:])
    assert "The copy of the database is damaged" in refused()


def content_of(folder: Path) -> Path:
    """The file of the one content of a data folder or a backup."""
    blobs = FolderBlobs(folder / FILES)
    return blobs.path(*blobs.keys())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backup is made a second after the one before."""
    seconds = iter(range(60))
    monkeypatch.setattr("heddle.store.backup.time.strftime", lambda *_: f"20260101T0000{next(seconds):02}Z")


@pytest.mark.usefixtures("clock")
def test_of_a_series_the_newest_stay_and_share_what_did_not_change(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "series"
    (target / ".b-20260101T000000Z.left").mkdir(parents=True)
    (target / "other").mkdir()
    for _ in range(3):
        said = back_up(load(data), str(target / "b-{time}"), keep=2, verify=2)
    assert "; removed b-20260101T000000Z" in said
    assert sorted(path.name for path in target.iterdir()) == [
        ".lock",
        *(f"b-20260101T00000{n}Z" for n in (1, 2)),
        "other",
    ]
    one, two = (content_of(target / f"b-20260101T00000{n}Z").stat() for n in (1, 2))
    assert one.st_ino == two.st_ino != content_of(data).stat().st_ino


@pytest.mark.usefixtures("clock")
def test_what_went_bad_in_an_earlier_backup_is_copied_anew(data: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "b-{time}")
    back_up(load(data), target)
    shared = content_of(tmp_path / "b-20260101T000000Z")
    before = shared.stat()
    shared.chmod(0o600)
    shared.write_bytes(b"damaged")
    os.utime(shared, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "missing or damaged" not in back_up(load(data), target)
    assert content_of(tmp_path / "b-20260101T000001Z").read_bytes() == b"content"


@pytest.mark.parametrize("verify", [0, 1])
def test_what_is_damaged_in_the_data_itself_is_said_and_the_rest_is_kept(
    data: Path, tmp_path: Path, verify: int
) -> None:
    content_of(data).unlink()
    said = back_up(load(data), str(tmp_path / "backup"), verify=verify)
    assert "1 contents that the database names are missing or damaged" in said
    restore(load(tmp_path / "restored"), str(tmp_path / "backup"))
    assert len(asyncio.run(_ids(tmp_path / "restored"))) == 3


def test_two_backups_into_one_series_are_not_made_at_once(data: Path, tmp_path: Path) -> None:
    with Series(str(tmp_path / "b-{time}")).alone(), pytest.raises(HeddleError, match="is still running"):
        back_up(load(data), str(tmp_path / "b-{time}"))
    for target in (tmp_path / "{time}" / "b", tmp_path / "{time}-{time}"):
        with pytest.raises(HeddleError, match="must occur once, in the last part of the path"):
            back_up(load(data), str(target))


def test_a_backup_whose_database_is_damaged_gets_no_name(data: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as raw:
        raw.execute("DELETE FROM body_in WHERE rid = 1")
    with pytest.raises(HeddleError, match="its database is damaged: 1 started calls without their inputs"):
        back_up(load(data), str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()
    assert "its database is damaged" in BackupState.read(data).error
    back_up(load(data), str(tmp_path / "backup"), verify=0)
    assert BackupState.read(data).error == ""


def test_a_database_of_an_earlier_version_is_backed_up_as_it_is(data: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as raw:
        raw.execute(f"PRAGMA user_version = {migrations.CURRENT - 1}")
    assert "restored into a temporary folder and checked" in back_up(load(data), str(tmp_path / "backup"))
    assert schema_version(tmp_path / "backup" / DATABASE) == migrations.CURRENT - 1
    restore(load(tmp_path / "restored"), str(tmp_path / "backup"))
    assert len(asyncio.run(_ids(tmp_path / "restored"))) == 3


def test_contents_in_an_object_store_are_not_missed_in_the_folder(data: Path, tmp_path: Path) -> None:
    content_of(data).unlink()
    said = back_up(load(data, files="s3://bucket/prefix"), str(tmp_path / "backup"))
    assert "restored into a temporary folder and checked" in said and "missing" not in said


@pytest.mark.usefixtures("clock")
def test_what_changed_since_the_last_backup_of_a_series_is_not_shared_with_it(data: Path, tmp_path: Path) -> None:
    weights, made = data / "adapters" / "a@1" / "weights", []
    weights.parent.mkdir(parents=True)
    for content in (b"first", b"longer", b"longer"):
        if not weights.exists() or weights.read_bytes() != content:
            weights.write_bytes(content)
        back_up(load(data), str(tmp_path / "b-{time}"))
        made.append(tmp_path / f"b-20260101T00000{len(made)}Z" / weights.relative_to(data))
    assert [path.read_bytes() for path in made] == [b"first", b"longer", b"longer"]
    first, second, third = (path.stat().st_ino for path in made)
    assert first != second == third
