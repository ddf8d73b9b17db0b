"""Blobs: kept once, whole or not at all, in a folder and in an object store alike."""

import hashlib
import io
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from heddle import settings
from heddle.errors import ExtraMissing, HeddleError, NotFound
from heddle.store.blobs.base import Blobs
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.blobs.object_store import IN_MEMORY
from heddle.store.blobs.open import open_blobs
from tests.support.s3 import S3Server

ABSENT = hashlib.sha256(b"absent").hexdigest()
LARGE = 20 << 20
"""Bytes that are three parts of an object."""


@pytest.fixture(params=["folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """An empty place of each kind."""
    server: S3Server | None = request.getfixturevalue("s3") if request.param == "s3" else None
    files = server.new_prefix() if server else "folder"
    return open_blobs(settings.load({"data": str(tmp_path / "data"), "files": files}, {}))


def nothing(_: Sequence[str]) -> Collection[str]:
    """No key is in use."""
    return ()


def test_content_is_found_under_its_hash_and_kept_once(blobs: Blobs) -> None:
    key = blobs.put(io.BytesIO(b"hello"))
    assert key == hashlib.sha256(b"hello").hexdigest()
    assert blobs.put_bytes(b"hello") == key
    assert (blobs.read(key), blobs.exists(key), blobs.total(), list(blobs.keys())) == (b"hello", True, (1, 5), [key])
    assert blobs.path(key).read_bytes() == b"hello"
    assert blobs.delete(key) and not blobs.delete(key)
    assert not blobs.exists(key)
    with pytest.raises(NotFound):
        blobs.open(key)


def bytes_of(size: int) -> bytes:
    """Content of a size."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, IN_MEMORY + 1, LARGE])
def test_any_size_comes_back_whole_and_in_pieces(blobs: Blobs, size: int) -> None:
    content = bytes_of(size)
    key = blobs.put(io.BytesIO(content))
    assert key == blobs.put_bytes(content) == hashlib.sha256(content).hexdigest()
    assert blobs.read(key) == content
    assert blobs.path(key).read_bytes() == content
    with blobs.open(key) as stream:
        pieces = list(iter(lambda: stream.read(1 << 20), b""))
    assert b"".join(pieces) == content and all(len(piece) == 1 << 20 for piece in pieces[:-1])
    assert blobs.total() == (1, len(content))


def test_what_never_came_is_not_found(blobs: Blobs) -> None:
    for verb in (blobs.open, blobs.read, blobs.path):
        with pytest.raises(NotFound, match=ABSENT):
            verb(ABSENT)
    assert not blobs.exists(ABSENT) and not blobs.delete(ABSENT)
    assert (list(blobs.keys()), blobs.total()) == ([], (0, 0))


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 62 + "/x", "é" * 64])
def test_no_key_leads_out_of_its_place(blobs: Blobs, key: str) -> None:
    verbs: list[Callable[[str], object]] = [blobs.open, blobs.read, blobs.path, blobs.exists, blobs.delete]
    for verb in verbs:
        with pytest.raises(NotFound):
            verb(key)


def test_nobody_sees_what_is_half_written(blobs: Blobs) -> None:
    writer = blobs.begin()
    writer.write(bytes_of(LARGE))
    assert list(blobs.keys()) == [] and not blobs.exists(writer.key)
    writer.discard()
    writer.discard()
    assert list(blobs.keys()) == []


def test_only_what_is_old_and_unnamed_is_collected(blobs: Blobs) -> None:
    named, _ = blobs.put_bytes(b"named"), blobs.put_bytes(b"orphan")
    assert blobs.collect(nothing, 3600) == 0
    assert blobs.collect(lambda keys: {named} & set(keys), -1) == 1
    assert list(blobs.keys()) == [named]
    assert blobs.read(named) == b"named"
    blobs.ping()


def test_a_purge_removes_what_is_unnamed_for_good_and_counts_what_is_young(blobs: Blobs) -> None:
    named, *orphans = (blobs.put_bytes(content) for content in (b"named", b"one", b"two"))

    def in_use(keys: Sequence[str]) -> Collection[str]:
        return {named} & set(keys)

    assert blobs.purge(in_use, 3600) == (0, 2) and all(map(blobs.exists, orphans)), "somebody may be about to name them"
    assert blobs.collect(lambda keys: {named, orphans[0]} & set(keys), -1) == 1
    removed = [blobs.purge(in_use, -1) for _ in range(3)]
    assert sum(count for count, _ in removed) in (1, 2) and removed[-1] == (0, 0)
    assert not any(map(blobs.exists, orphans)) and blobs.read(named) == b"named"
    assert blobs.renew(named) and not blobs.renew(orphans[0])


def test_unusable_settings_are_told_with_what_would_do(tmp_path: Path) -> None:
    cases = {
        "file:///tmp/x": (HeddleError, "is not an object store"),
        "memory://x": (HeddleError, "is not an object store"),
        "nowhere://bucket": (HeddleError, "nowhere"),
        "gs://bucket/x": (ExtraMissing, "gcsfs"),
    }
    for files, (kind, words) in cases.items():
        with pytest.raises(kind, match=words):
            open_blobs(settings.load({"data": str(tmp_path), "files": files}, {}))


def test_without_settings_it_is_a_folder(tmp_path: Path) -> None:
    assert isinstance(open_blobs(settings.load({"data": str(tmp_path)}, {})), FolderBlobs)
