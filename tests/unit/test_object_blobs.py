"""Blobs in an S3 server: outages, damage, what is collected while it is written, and several servers."""

import hashlib
import math
import os
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heddle import settings
from heddle.errors import NotFound, Unavailable
from heddle.store.blobs.base import Blobs
from heddle.store.blobs.object_store import CircuitBreaker, ObjectBlobs
from heddle.store.blobs.open import COPIES, open_blobs
from heddle.store.integrity import check_contents
from tests.support.s3 import BUCKET, S3Server

MIB = 1 << 20
WITHIN = 60.0


class Zeros:
    """A stream of zeros that is never in memory as a whole."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        """The next ones."""
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def opened(files: str, data: Path) -> Blobs:
    """The blobs of a server with these settings."""
    return open_blobs(settings.load({"data": str(data), "files": files}, {}))


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server that may be killed."""
    with S3Server() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        yield server


def test_an_outage_is_told_and_passes_by_itself(fragile: S3Server, tmp_path: Path) -> None:
    blobs = opened(fragile.new_prefix(), tmp_path)
    kept = [blobs.put_bytes(content) for content in (b"kept", bytes(20 * MIB))]
    writer = blobs.begin()
    writer.write(b"on its way")
    fragile.kill()
    tries = [
        writer.commit,
        blobs.ping,
        lambda: blobs.put_bytes(b"x"),
        lambda: blobs.read(kept[0]),
        lambda: blobs.exists(kept[0]),
        lambda: blobs.delete(kept[0]),
        lambda: list(blobs.keys()),
        lambda: blobs.collect(lambda _: (), 0),
    ]
    for attempt in tries:
        with pytest.raises(Unavailable) as refused:
            attempt()
        assert refused.value.headers["Retry-After"]
    fragile.start()
    blobs.ping()
    assert [blobs.read(key) for key in kept] == [b"kept", bytes(20 * MIB)]
    assert blobs.read(writer.commit()) == b"on its way"
    assert len(list(blobs.keys())) == 3


@pytest.mark.thorough
def test_few_wait_for_a_store_that_hangs(fragile: S3Server, tmp_path: Path) -> None:
    blobs = opened(fragile.new_prefix(), tmp_path)
    blobs.put_bytes(b"before")
    fragile.pause()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(blobs.put_bytes, b"waits")
        deadline = time.monotonic() + WITHIN
        while not waiting.done():
            assert time.monotonic() < deadline
            if vars(blobs)["_gate"].is_closed():
                break
            time.sleep(0.01)
        with pytest.raises(Unavailable, match="already waiting"):
            blobs.put_bytes(b"is refused")
        fragile.resume()
        assert blobs.read(waiting.result()) == b"waits"
    assert blobs.read(blobs.put_bytes(b"after")) == b"after"


def test_one_at_a_time_finds_out_whether_a_store_is_back() -> None:
    gate = CircuitBreaker()

    def fail() -> None:
        with gate.passing():
            raise ConnectionError

    with pytest.raises(Unavailable):
        fail()
    with gate.passing(), pytest.raises(Unavailable, match="already waiting"):
        fail()
    with gate.passing(), gate.passing():
        pass
    with pytest.raises(FileNotFoundError), gate.passing():
        raise FileNotFoundError
    assert not gate.is_closed()


def test_an_upload_that_breaks_off_leaves_no_object(fragile: S3Server, tmp_path: Path) -> None:
    blobs = opened(fragile.new_prefix(), tmp_path)
    filesystem = vars(blobs)["_filesystem"]
    opening = filesystem.open

    def dying(*arguments: object, **options: object) -> object:
        remote = opening(*arguments, **options)
        remote.write(bytes(9 * MIB))
        fragile.kill()
        return remote

    content = os.urandom(20 * MIB)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filesystem, "open", dying)
        with pytest.raises(Unavailable):
            blobs.put_bytes(content)
    fragile.start()
    assert list(blobs.keys()) == []
    assert blobs.read(blobs.put_bytes(content)) == content


def test_an_object_that_the_store_kept_in_part_is_not_taken_for_the_content(s3: S3Server, tmp_path: Path) -> None:
    blobs = opened(s3.new_prefix(), tmp_path)
    filesystem, root = vars(blobs)["_filesystem"], vars(blobs)["_root"]
    content = os.urandom(9 * MIB)
    key = hashlib.sha256(content).hexdigest()
    looking = filesystem.info

    def cut(path: str, **options: object) -> object:
        """What the store says of an object that lost its last byte."""
        assert path == f"{root}/{key[:2]}/{key[2:]}"
        if blobs.total()[0]:
            filesystem.pipe_file(path, content[:-1])
        return looking(path, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filesystem, "info", cut)
        with pytest.raises(Unavailable, match=f"stored only {len(content) - 1} of {len(content)} bytes"):
            blobs.put_bytes(content)
    assert blobs.put_bytes(content) == key
    assert blobs.read(key) == content


def test_damage_is_found_before_the_end_is_given_out(s3: S3Server, tmp_path: Path) -> None:
    prefix = s3.new_prefix()
    blobs = opened(prefix, tmp_path)
    content = os.urandom(9 * MIB)
    key = blobs.put_bytes(content)
    place = s3.bucket / prefix.rpartition("/")[2] / key[:2] / key[2:]
    place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for verb in (blobs.read, blobs.path):
        with pytest.raises(NotFound, match="damaged"):
            verb(key)
    problems = check_contents([key, "0" * 64], blobs, math.inf).problems
    assert sorted(problems) == sorted([f"{key} is damaged", f"{'0' * 64} is missing"])
    with blobs.open(key) as stream, pytest.raises(NotFound, match="damaged"):
        while stream.read(MIB):
            pass
    assert list((tmp_path / COPIES).iterdir()) == []


@pytest.mark.thorough
def test_memory_stays_flat(s3: S3Server, tmp_path: Path) -> None:
    blobs = opened(s3.new_prefix(), tmp_path)
    blobs.put_bytes(b"the client is set up")
    tracemalloc.start()
    try:
        key = blobs.put(Zeros(96 * MIB))  # type: ignore[arg-type]
        with blobs.open(key) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert digest == key
    assert peak < 48 * MIB


def test_what_is_collected_while_it_is_written_comes_back(s3: S3Server, tmp_path: Path) -> None:
    prefix = s3.new_prefix()
    ours, theirs = opened(prefix, tmp_path / "ours"), opened(prefix, tmp_path / "theirs")
    read, named, orphan = (ours.put_bytes(content) for content in (b"read", b"named", b"orphan"))
    # The other server found them unnamed just before they were stored again, and removes them only now.
    assert theirs.collect(lambda _: (), -1) == 3
    assert list(ours.keys()) == []
    assert ours.read(read) == b"read"
    assert theirs.collect(lambda keys: {read, named} & set(keys), 3600) == 0
    assert sorted(ours.keys()) == sorted([read, named])
    assert theirs.collect(lambda keys: {read, named} & set(keys), -1) == 0
    with pytest.raises(NotFound):
        ours.open(orphan)


def test_what_is_stored_again_while_a_purge_removes_it_stays(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = s3.new_prefix()
    ours, theirs = opened(prefix, tmp_path / "ours"), opened(prefix, tmp_path / "theirs")
    key = ours.put_bytes(b"again")
    assert isinstance(theirs, ObjectBlobs)
    remove = theirs._filesystem.rm_file

    def store_and_remove(place: str) -> None:
        """An upload is acknowledged between the look at an object and its removal."""
        assert ours.put_bytes(b"again") == key
        remove(place)

    monkeypatch.setattr(theirs._filesystem, "rm_file", store_and_remove)
    for is_named in (False, True):
        theirs.purge(lambda keys, is_named=is_named: keys if is_named else (), -1)  # type: ignore[misc]
    assert ours.read(key) == b"again"


def test_a_reader_goes_on_while_a_purge_begins_and_is_told_when_it_ended(s3: S3Server, tmp_path: Path) -> None:
    blobs = opened(s3.new_prefix(), tmp_path)
    content = os.urandom(13 * MIB)
    key = blobs.put_bytes(content)
    with blobs.open(key) as stream:
        begun = stream.read(MIB)
        assert blobs.purge(lambda _: (), 3600) == (0, 1)
        assert begun + stream.read(8 * MIB) == content[: 9 * MIB]
        for _ in range(2):
            blobs.purge(lambda _: (), -1)
        with pytest.raises(NotFound, match="is missing"):
            stream.read()


def test_objects_that_are_not_blobs_are_left_alone(s3: S3Server, tmp_path: Path) -> None:
    prefix = s3.new_prefix()
    blobs = opened(prefix, tmp_path)
    blobs.put_bytes(b"x")
    others = [s3.bucket / prefix.rpartition("/")[2] / name for name in ("ab/theirs.tmp", "trash/theirs.tmp")]
    for other in others:
        other.parent.mkdir()
        other.write_bytes(b"theirs")
    assert len(list(blobs.keys())) == 1
    assert [blobs.purge(lambda _: (), -1) for _ in range(2)] == [(0, 1), (1, 0)] and blobs.total() == (0, 0)
    assert all(other.read_bytes() == b"theirs" for other in others)


def test_servers_share_what_is_stored(s3: S3Server, tmp_path: Path) -> None:
    prefix = s3.new_prefix()
    ours, theirs = opened(prefix, tmp_path / "ours"), opened(prefix, tmp_path / "theirs")
    key = ours.put_bytes(b"shared")
    assert theirs.read(key) == b"shared"
    assert theirs.path(key).read_bytes() == b"shared"
    assert theirs.delete(key) and not ours.exists(key)


def test_local_copies_go_when_nobody_asks_for_them(s3: S3Server, tmp_path: Path) -> None:
    blobs = opened(s3.new_prefix(), tmp_path)
    old, used = blobs.path(blobs.put_bytes(b"old")), blobs.path(blobs.put_bytes(b"used"))
    (tmp_path / COPIES / "begun.part").write_bytes(b"half")
    for path in (old, used):
        os.utime(path, (0, 0))
    assert blobs.path(used.name) == used
    assert blobs.sweep(3600) == 0 and blobs.sweep() == 1
    blobs.collect(lambda keys: keys, 3600)
    assert sorted((tmp_path / COPIES).iterdir()) == [used]
    assert blobs.path(old.name).read_bytes() == b"old"


def test_a_store_that_refuses_the_key_is_told(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    blobs = opened(s3.new_prefix(), tmp_path)
    for verb in (lambda: blobs.put_bytes(b"x"), lambda: blobs.read("0" * 64)):
        with pytest.raises(Unavailable, match="refuses access"):
            verb()


def test_a_bucket_that_is_missing_is_told(s3: S3Server, tmp_path: Path) -> None:
    blobs = opened(f"s3://not-{BUCKET}/x", tmp_path)
    with pytest.raises(Unavailable):
        blobs.read("0" * 64)
    with pytest.raises(Unavailable):
        blobs.ping()
    with pytest.raises(Unavailable):
        blobs.put_bytes(b"x")
