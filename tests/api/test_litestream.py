"""A database that litestream copies while the server writes, restarts and is killed comes back as it was."""

import json
import os
import sqlite3
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support import scale
from tests.support.server import HeddleProcess

PROGRAM = next((Path(__file__).parents[2] / ".clients").glob("litestream-*/bin/litestream"), None)
pytestmark = [
    scale.on_sqlite,
    pytest.mark.thorough,
    pytest.mark.skipif(PROGRAM is None, reason="litestream is not installed: make clients"),
]
PROJECT = "team/shipped"
SECONDS = 180.0


def write(url: str, first: int, count: int, size: int = 10) -> None:
    """Store calls, whose inputs have so many characters."""
    for start in range(first, first + count, 50):
        batch = [
            {
                "project_id": PROJECT,
                "id": f"c{number}",
                "trace_id": "t",
                "op_name": "o",
                "started_at": "2026-01-01T00:00:00Z",
                "attributes": {},
                "inputs": {"text": os.urandom(size // 2).hex()},
            }
            for number in range(start, min(start + 50, first + count))
        ]
        items = [{"mode": "start", "req": {"start": each}} for each in batch]
        assert httpx.post(f"{url}/call/upsert_batch", json={"batch": items}, timeout=60).status_code == 200


class Shipped:
    """Where litestream copies a database to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address = f"file://{folder / 'replica'}"

    def start(self, database: Path) -> "subprocess.Popen[bytes]":
        """Begin to copy."""
        log = (self._folder / "litestream.log").open("wb")
        return subprocess.Popen([str(PROGRAM), "replicate", str(database), self._address], stdout=log, stderr=log)

    def restore(self, target: Path, *words: str) -> int:
        """Restore into a file; the number of its calls, -1 where there is nothing yet."""
        for path in target.parent.glob(f"{target.name}*"):
            path.unlink()
        target.parent.mkdir(exist_ok=True)
        done = subprocess.run(
            [str(PROGRAM), "restore", "-o", target, *words, self._address], capture_output=True, check=False
        )
        if done.returncode:
            return -1
        with sqlite3.connect(target) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            count = int(raw.execute("SELECT count(*) FROM calls").fetchone()[0])
        raw.close()
        return count

    def wait_for(self, count: int) -> None:
        """Wait until as many calls have been copied."""
        deadline = time.monotonic() + SECONDS
        while self.restore(self._folder / "latest" / "heddle.db") != count:
            assert time.monotonic() < deadline, (self._folder / "litestream.log").read_text()
            time.sleep(0.5)


def test_a_shipped_database_comes_back_as_it_was(tmp_path: Path) -> None:
    shipped, server = Shipped(tmp_path), HeddleProcess(tmp_path / "data", model="none")
    server.start()
    shipping = shipped.start(server.data / "heddle.db")
    try:
        write(server.url, 0, 100)
        shipped.wait_for(100)
        before = time.gmtime(time.time() + 1)
        while time.gmtime() <= before:
            time.sleep(0.1)
        # Far more than heddle lets the log grow to before it moves it into the database.
        write(server.url, 100, 1500, 40_000)
        shipped.wait_for(1600)
        assert server.terminate() == 0
        server.start()
        write(server.url, 1600, 100)
        shipped.wait_for(1700)
        server.kill()
        server.start()
        write(server.url, 1700, 100)
        shipped.wait_for(1800)
        instant = time.strftime("%Y-%m-%dT%H:%M:%SZ", before)
        assert shipped.restore(tmp_path / "restored" / "heddle.db", "-timestamp", instant) == 100
    finally:
        server.kill()
        shipping.terminate()
        shipping.wait()
    with HeddleProcess(tmp_path / "restored") as restored:
        answer = httpx.post(restored.url + "/calls/stream_query", json={"project_id": PROJECT, "columns": ["id"]})
    assert {json.loads(line)["id"] for line in answer.text.splitlines()} == {f"c{number}" for number in range(100)}
