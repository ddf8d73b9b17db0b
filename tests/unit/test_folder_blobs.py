"""Blobs in a folder: what a full disk, a crash and a second server do."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import NotFound, StorageFull
from heddle.store.blobs.folder import FolderBlobs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the blobs lie."""
    return tmp_path / "files"


def everything(root: Path) -> list[Path]:
    """Every file under a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_content_is_one_file(root: Path) -> None:
    blobs = FolderBlobs(root)
    assert blobs.put_bytes(b"hello") == blobs.put_bytes(b"hello")
    assert len(everything(root)) == 1


def test_what_is_discarded_leaves_nothing(root: Path) -> None:
    writer = FolderBlobs(root).begin()
    writer.write(b"half")
    assert everything(root) != []
    writer.discard()
    writer.discard()
    assert everything(root) == []


def test_sweep_removes_what_a_crash_left(root: Path) -> None:
    blobs = FolderBlobs(root)
    key = blobs.put_bytes(b"kept")
    blobs.begin().write(b"half")
    assert blobs.sweep(3600) == 0, "another server may be writing it"
    assert blobs.sweep() == 1
    assert list(blobs.keys()) == [key] and len(everything(root)) == 1


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_is_told_and_leaves_no_part(root: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    blobs = FolderBlobs(root)
    kept = blobs.put_bytes(b"kept")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        with pytest.raises(StorageFull):
            blobs.put_bytes(b"too much")
    assert list(blobs.keys()) == [kept] and len(everything(root)) == 1
    assert blobs.read(blobs.put_bytes(b"too much")) == b"too much"


def test_content_that_was_changed_is_not_given_out(root: Path) -> None:
    blobs = FolderBlobs(root)
    key = blobs.put_bytes(b"as it was")
    blobs.path(key).write_bytes(b"otherwise")
    for read in (blobs.read, blobs.path):
        with pytest.raises(NotFound, match="is damaged"):
            read(key)


def test_it_is_visible_only_after_it_is_on_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note(name: str, real: Any) -> Any:
        def run(*arguments: Any) -> Any:
            steps.append(name)
            return real(*arguments)

        return run

    monkeypatch.setattr(os, "fsync", note("fsync", fsync))
    monkeypatch.setattr(os, "replace", note("replace", replace))
    FolderBlobs(root).put_bytes(b"x")
    assert steps == ["fsync", "replace", "fsync", "fsync"], "content, name, its folder, the folder of that"


def test_files_that_are_not_blobs_are_left_alone(root: Path) -> None:
    blobs = FolderBlobs(root)
    other = root / blobs.put_bytes(b"x")[:2] / ".nfs00000001"
    other.write_bytes(b"theirs")
    assert len(list(blobs.keys())) == 1
    assert (blobs.purge(lambda _: (), -1), blobs.total()) == ((1, 0), (0, 0))
    assert other.read_bytes() == b"theirs"


def test_two_servers_collect_and_write_the_same_content(root: Path) -> None:
    writing, collecting = FolderBlobs(root), FolderBlobs(root)
    key = writing.put_bytes(b"again")
    path = writing.path(key)
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            collecting.collect(lambda _: (), 3600)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(200):
            assert writing.put_bytes(b"again") == key
            assert path.is_file(), "what was acknowledged just now was collected"
            os.utime(path, (0, time.time() - 7200))
    finally:
        done.set()
        thread.join()
