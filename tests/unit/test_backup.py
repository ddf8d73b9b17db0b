"""Backups as folders and archives: what is restored is what was stored, and what is none is refused in a line."""

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from heddle import settings
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.backup import MANIFEST, back_up, restore
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.data_folder import FILES
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import open_store
from heddle.wire.calls import CallsQuery, Start
from tests.support.written_calls import AT, PROJECT


def load(folder: Path, **given: str) -> Settings:
    return settings.load({"data": str(folder), **given}, {})


async def _written(folder: Path) -> None:
    store = await open_store(load(folder))
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
    FolderBlobs(tmp_path / "data" / FILES).put_bytes(b"content")
    return tmp_path / "data"


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
    assert "a format that this heddle does not know; it was made by 9.9" in refused()
    (source / MANIFEST).write_text(json.dumps(manifest | {"files": manifest["files"] + 1}))
    assert f"is not whole: {manifest['files']} files instead of {manifest['files'] + 1}" in refused()
    (source / MANIFEST).write_text("{")
    assert "cannot be restored" in refused()
    (source / MANIFEST).unlink()
    assert f"{MANIFEST} or {DATABASE} is missing in it" in refused()
    (tmp_path / "text").write_text("no archive")
    assert "neither a folder nor a tar file" in refused(tmp_path / "text")
    assert "neither a folder nor a tar file" in refused(tmp_path / "gone")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", "text")
    assert f"{MANIFEST} or {DATABASE} is missing in it" in refused(tmp_path / "other.tar")
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
