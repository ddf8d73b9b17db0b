"""Blobs: kept once, whole or not at all."""

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import NotFound, StorageFull
from heddle.store.blobs import Blobs


def everything(root: Path) -> list[Path]:
    """Every file under a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_content_is_found_under_its_hash_and_kept_once(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    key = blobs.put(io.BytesIO(b"hello"))
    assert key == hashlib.sha256(b"hello").hexdigest()
    assert blobs.put_bytes(b"hello") == key
    assert len(everything(tmp_path)) == 1
    assert (blobs.read(key), blobs.exists(key), blobs.total(), list(blobs.keys())) == (b"hello", True, (1, 5), [key])
    assert blobs.delete(key) and not blobs.delete(key)
    assert not blobs.exists(key)
    with pytest.raises(NotFound):
        blobs.open(key)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 62 + "/x", "é" * 64])
def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    blobs = Blobs(tmp_path / "root")
    for verb in (blobs.open, blobs.read, blobs.exists, blobs.delete):
        with pytest.raises(NotFound):
            verb(key)


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    writer = Blobs(tmp_path).begin()
    writer.write(b"half")
    assert everything(tmp_path) != []
    writer.discard()
    writer.discard()
    assert everything(tmp_path) == []


def test_sweep_removes_what_a_crash_left(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    key = blobs.put_bytes(b"kept")
    blobs.begin().write(b"half")
    assert blobs.sweep() == 1
    assert list(blobs.keys()) == [key] and len(everything(tmp_path)) == 1


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_is_told_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    blobs = Blobs(tmp_path)
    kept = blobs.put_bytes(b"kept")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        with pytest.raises(StorageFull):
            blobs.put_bytes(b"too much")
    assert list(blobs.keys()) == [kept] and len(everything(tmp_path)) == 1
    assert blobs.read(blobs.put_bytes(b"too much")) == b"too much"


def test_it_is_visible_only_after_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note(name: str, real: Any) -> Any:
        def run(*arguments: Any) -> Any:
            steps.append(name)
            return real(*arguments)

        return run

    monkeypatch.setattr(os, "fsync", note("fsync", fsync))
    monkeypatch.setattr(os, "replace", note("replace", replace))
    Blobs(tmp_path).put_bytes(b"x")
    assert steps == ["fsync", "replace", "fsync", "fsync"], "content, name, its folder, the folder of that"
