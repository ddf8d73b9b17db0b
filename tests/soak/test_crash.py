"""200 means stored: whatever was acknowledged is there after `kill -9`, SIGTERM and a second start."""

import contextlib
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.soak.load import Load, lost
from tests.support.server import HeddleProcess, free_port

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
KILLS, TERMINATIONS = (50, 10) if SOAK else (3, 1)

pytestmark = pytest.mark.soak


@pytest.fixture
def heddle(tmp_path: Path) -> Iterator[HeddleProcess]:
    """A server of the test's own that the test may kill; killed at the end whatever happened."""
    process = HeddleProcess(tmp_path / "data")
    yield process
    process.kill()


def until(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
    """Poll until the condition holds; raises after the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)


def databases(folder: Path) -> list[Path]:
    """The SQLite files of a data folder."""
    return [path for path in folder.rglob("*") if path.is_file() and path.open("rb").read(15) == b"SQLite format 3"]


def assert_sound(folder: Path) -> None:
    """Every database of the folder passes SQLite's own check."""
    found = databases(folder)
    assert found
    for path in found:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], path
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == [], path


def rounds(heddle: HeddleProcess, count: int, end: Callable[[], None], seed: int) -> tuple[int, int]:
    """Load, `end` at a random moment, start again, read back; how much was acknowledged and how much of it lost."""
    chance = random.Random(seed)
    items = []
    heddle.start()
    for number in range(count):
        load = Load(heddle.url, seed * 1000 + number).start()
        load.wait_for(chance.randrange(1, 1500))
        end()
        load.stop()
        assert all(text.startswith(("503", "429")) for text in load.refused), load.refused
        items += load.acknowledged
        heddle.start()
        assert not lost(heddle.url, load.acknowledged)
        assert_sound(heddle.data)
    return len(items), len(lost(heddle.url, items))


def test_kill_9_loses_nothing_acknowledged(heddle: HeddleProcess) -> None:
    """`kill -9` while seven kinds of writes run at once."""
    acknowledged, gone = rounds(heddle, KILLS, heddle.kill, seed=1)
    print(f"crash: {KILLS} kill -9 during concurrent writes: {acknowledged} acknowledged, {gone} lost")
    assert acknowledged > 0
    assert gone == 0


def test_sigterm_loses_nothing_acknowledged(heddle: HeddleProcess) -> None:
    """SIGTERM while writes run: exit code 0, and the write-ahead log is folded into the database."""

    def end() -> None:
        assert heddle.terminate() == 0, heddle.log()
        for path in databases(heddle.data):
            log = path.with_name(path.name + "-wal")
            assert not log.exists() or log.stat().st_size == 0, log

    acknowledged, gone = rounds(heddle, TERMINATIONS, end, seed=2)
    print(f"crash: {TERMINATIONS} SIGTERM during concurrent writes: {acknowledged} acknowledged, {gone} lost")
    assert acknowledged > 0
    assert gone == 0
    assert "Traceback" not in heddle.log()


def begin_request(port: int, path: str, length: int) -> socket.socket:
    """A connection with a request that is in flight: the server has asked for its body of that many bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 100"), answer
    return connection


def refuses(url: str) -> bool:
    """True when the server takes no new work."""
    try:
        return httpx.get(url + "/ready", timeout=5).status_code == 503
    except httpx.TransportError:
        return True


def test_second_sigterm_forces(heddle: HeddleProcess) -> None:
    """The first signal waits for what is in flight; the second ends the process at once."""
    heddle.start()
    assert heddle.process is not None
    process = heddle.process
    with begin_request(heddle.port, "/call/start", 1000):
        process.send_signal(signal.SIGTERM)
        until(lambda: refuses(heddle.url) or process.poll() is not None, "the server refuses new work")
        assert process.poll() is None, "the request in flight was not waited for"

        def signal_again() -> bool:
            process.send_signal(signal.SIGTERM)  # for a second taken for the first one
            return process.poll() is not None

        until(signal_again, "the server ends")
    assert process.poll() == 1
    assert "SIGTERM again, ending at once" in heddle.log()
    heddle.start()
    assert_sound(heddle.data)


def test_request_in_flight_at_sigterm_is_finished(heddle: HeddleProcess) -> None:
    """A request whose body arrives after the signal is answered, and what it was told is true."""
    heddle.start()
    assert heddle.process is not None
    body = b'{"obj":{"project_id":"soak/late","object_id":"late","val":{"a":1}}}'
    with begin_request(heddle.port, "/obj/create", len(body)) as connection:
        connection.sendall(body[:10])
        heddle.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(heddle.url), "the server refuses new work")
        connection.sendall(body[10:])
        answer = b""
        while b"digest" not in answer and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert heddle.process.wait(30) == 0
    heddle.start()
    wanted = {"project_id": "soak/late", "object_id": "late", "digest": "latest"}
    assert httpx.post(heddle.url + "/obj/read", json=wanted).json()["obj"]["val"] == {"a": 1}


@pytest.mark.thorough
def test_second_server_on_the_folder_refuses(heddle: HeddleProcess) -> None:
    """It names the folder and stops; the first one goes on unharmed."""
    heddle.start()
    load = Load(heddle.url, seed=3, threads_per_kind=1).start()
    load.wait_for(50)
    command = [sys.executable, "-m", "heddle", "serve", "--port", str(free_port()), "--data", str(heddle.data)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    load.wait_for(len(load.acknowledged) + 50)
    load.stop()
    assert second.returncode not in (0, None)
    said = second.stdout + second.stderr
    assert heddle.data.name in "".join(said.split()), said
    assert "Traceback" not in said
    assert not load.refused and not load.cut_off
    assert not lost(heddle.url, load.acknowledged)
