"""A full disk is refused with 507 and a reason, and nothing that was acknowledged is lost by it."""

import asyncio
import errno
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.soak.load import KINDS, Item, Writer, lost
from tests.support import scale
from tests.support.archives import archive_of
from tests.support.cli import heddle
from tests.support.inprocess import running_services
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire

pytestmark = scale.on_sqlite

PROJECT = "disk/full"


def write_until_refused(url: str, kind: str, seed: int) -> tuple[list[Item], httpx.Response]:
    """What one kind of write got acknowledged before it was refused, and the refusal."""
    acknowledged: list[Item] = []
    with httpx.Client(base_url=url, timeout=60) as client:
        writer = Writer(client, PROJECT, random.Random(seed))
        for _ in range(20_000):
            try:
                for item in getattr(writer, kind)():
                    acknowledged.append(item)
            except httpx.HTTPStatusError as refusal:
                return acknowledged, refusal.response
    raise AssertionError(f"{kind} was never refused")


def assert_says_why(refusal: httpx.Response) -> None:
    """507 with nothing but a reason that a person understands."""
    assert refusal.status_code == 507, refusal.text
    body = refusal.json()
    assert body["reason"]
    assert "Traceback" not in refusal.text


def one_write(url: str, kind: str, seed: int) -> list[Item]:
    """One acknowledged write of a kind."""
    with httpx.Client(base_url=url, timeout=60) as client:
        return list(getattr(Writer(client, PROJECT, random.Random(seed)), kind)())


@pytest.mark.thorough
def test_full_database(tmp_path: Path) -> None:
    """With a limit on the database every kind of write is refused in the end, reads go on, and more room heals it."""
    acknowledged: list[Item] = []
    with HeddleProcess(tmp_path / "data", max_database_bytes=3_000_000) as server:
        for seed, kind in enumerate(KINDS):
            items, refusal = write_until_refused(server.url, kind, seed)
            acknowledged += items
            assert_says_why(refusal)
        assert len(acknowledged) > 100
        assert httpx.get(server.url + "/health").status_code == 200
        assert lost(server.url, acknowledged) == []
        assert "Traceback" not in server.log()
    with HeddleProcess(tmp_path / "data", max_database_bytes=50_000_000) as server:
        assert lost(server.url, acknowledged) == []
        for seed, kind in enumerate(KINDS):
            acknowledged += one_write(server.url, kind, 100 + seed)
        assert lost(server.url, acknowledged) == []


def test_a_database_too_small_to_begin_with(tmp_path: Path) -> None:
    done = heddle("serve", "--port", 0, "--data", tmp_path / "data", max_database_bytes=1 << 20)
    assert done.returncode == 1 and "max_database_bytes" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def disk_of(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size; skips where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no small file system can be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    with disk_of(tmp_path / "disk", 4) as folder:
        yield folder


@pytest.fixture
def roomy_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB, which holds a database."""
    with disk_of(tmp_path / "disk", 12) as folder:
        yield folder


def blobs(folder: Path) -> list[Path]:
    """Every file of a folder of blobs, half-written ones included."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_full_disk_for_files(tmp_path: Path, small_disk: Path) -> None:
    """A file that does not fit is refused and leaves neither a row nor a part of itself; smaller ones still fit."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "files").symlink_to(small_disk, target_is_directory=True)
    with HeddleProcess(data) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        kept, refusal = write_until_refused(server.url, "file", seed=1)
        assert_says_why(refusal)
        before, size = blobs(small_disk), client.post("/files/query_stats", json={"project_id": PROJECT}).json()
        big = {"file": ("big", random.Random(2).randbytes(5_000_000))}
        assert_says_why(client.post("/file/create", data={"project_id": PROJECT}, files=big))
        assert blobs(small_disk) == before
        assert client.post("/files/query_stats", json={"project_id": PROJECT}).json() == size
        assert lost(server.url, kept) == []
        assert one_write(server.url, "single", 3), "calls need no room among the files"
        assert "Traceback" not in server.log()


def test_full_disk_for_a_new_model(tmp_path: Path, small_disk: Path) -> None:
    """The first checkpoint does not fit; the same name does once there is room."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "training").symlink_to(small_disk, target_is_directory=True)
    ballast = small_disk / "ballast"
    with HeddleProcess(data, training="on") as server, TrainingWire(server.url) as wire:
        ballast.write_bytes(b"x" * 4_100_000)  # what nothing names is removed at the start
        wanted = wire.wanted()
        refusal = wire.refused(507, "POST", "/models", wanted)
        assert "disk is full" in refusal["detail"]
        assert blobs(small_disk) == [ballast]
        ballast.unlink()
        wire.model(name=wanted["name"])
        assert "Traceback" not in server.log()


def test_full_disk_for_everything(roomy_disk: Path) -> None:
    """The same when the database lies on the full disk."""
    ballast = roomy_disk / "ballast"
    ballast.write_bytes(b"x" * 6_000_000)
    acknowledged: list[Item] = []
    with HeddleProcess(roomy_disk / "data") as server:
        for seed, kind in enumerate(KINDS):
            items, refusal = write_until_refused(server.url, kind, seed)
            acknowledged += items
            assert_says_why(refusal)
        assert lost(server.url, acknowledged) == []
        ballast.unlink()
        for seed, kind in enumerate(KINDS):
            acknowledged += one_write(server.url, kind, 100 + seed)
        assert lost(server.url, acknowledged) == []
    with HeddleProcess(roomy_disk / "data") as server:
        assert lost(server.url, acknowledged) == []


@pytest.mark.parametrize(("number", "status"), [(errno.EROFS, 503), (errno.EIO, 503), (errno.ENOSPC, 507)])
def test_a_disk_that_fails_a_route_is_named(
    tmp_path: Path, number: int, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it reads or writes files: no 500, no traceback."""

    def refuse(*_: object) -> None:
        raise OSError(number, "the disk fails")

    async def run() -> httpx.Response:
        async with running_services(tmp_path) as (_, client):
            return await client.post("/archives/import", files={"file": archive_of("a/b")})

    monkeypatch.setattr("heddle.archives._verify", refuse)
    refusal = asyncio.run(run())
    assert refusal.status_code == status and "disk" in refusal.json()["reason"], refusal.text
    assert "Traceback" not in caplog.text
