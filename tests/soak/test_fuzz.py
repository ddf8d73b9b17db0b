"""Very many requests, valid, wrong and torn: no 5xx without a reason, no traceback, no memory that stays.

`make soak` sends a million to each kind of server, `HEDDLE_FUZZ_COUNT` other numbers. A failure prints its number;
`HEDDLE_FUZZ_SEED=1 HEDDLE_FUZZ_AT=4711 pytest -s tests/soak/test_fuzz.py -k sqlite` sends that one again.
"""

import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support import old_data, scale
from tests.support.cli import heddle
from tests.support.clickhouse import clickhouse_process
from tests.support.fuzz import Fuzz, Sent
from tests.support.server import HeddleProcess
from tests.support.tenants import Tenant

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
COUNT = int(os.environ.get("HEDDLE_FUZZ_COUNT", "1000000" if SOAK else "600"))
SEED = int(os.environ.get("HEDDLE_FUZZ_SEED", "1"))
AT = os.environ.get("HEDDLE_FUZZ_AT")
THREADS = 4
MEASURED = 500_000
"""From so many requests on memory must have settled at the tenth part, by which caches of SQLite are full."""
IS_LONG = COUNT >= MEASURED // 10
REASONS = ("reason", "error", "message", "detail")
NAMED = {501, 502, 503, 504, 507}
SETTINGS: dict[str, Any] = {**old_data.SETTINGS, "auth": "off", "model": "none"}

pytestmark = [pytest.mark.soak]


class Process(HeddleProcess):
    """Begun as users begin it: a fork's memory that is only its own grows with every page that it touches."""

    may_fork = not SOAK


class Driver:
    """Sends requests from threads, each on a connection of its own, and collects objections."""

    def __init__(self, process: HeddleProcess, fuzz: Fuzz) -> None:
        self.objections: list[str] = []
        self.statuses: dict[int, int] = {}
        self._process = process
        self._fuzz = fuzz
        self._lock = threading.Lock()

    def send(self, numbers: range) -> None:
        """Send the requests of these numbers."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._run, [numbers[place::THREADS] for place in range(THREADS)]))

    def _run(self, numbers: range) -> None:
        for number in numbers:
            if len(self.objections) > 20:
                return
            sent = self._fuzz.request(number)
            status, objection = self._exchange(sent)
            with self._lock:
                self.statuses[status] = self.statuses.get(status, 0) + 1
                if objection:
                    self.objections.append(f"seed {SEED}, request {number}: {sent.what}: {status} {objection}")
                    print(self.objections[-1], flush=True)

    def _exchange(self, sent: Sent) -> tuple[int, str]:
        """The status, 0 for a closed connection, and what is wrong with the answer."""
        with socket.create_connection(("127.0.0.1", self._process.port), timeout=120) as connection:
            try:
                connection.sendall(sent.content)
                if not sent.is_whole:
                    connection.shutdown(socket.SHUT_WR)
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                text = answer.read()
            except (http.client.HTTPException, ConnectionError, BrokenPipeError):
                return 0, ""
            except TimeoutError:
                return 0, "no answer within two minutes"
        if answer.status < 500:
            return answer.status, ""
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        has_reason = isinstance(body, dict) and any(body.get(key) for key in REASONS)
        is_named = answer.status in NAMED and has_reason
        return answer.status, "" if is_named else text[:300].decode("utf-8", "replace")


def memory(process: HeddleProcess) -> int:
    """The bytes that a server and its children hold, without pages of files: whether others map these too varies."""
    assert process.process is not None
    top = psutil.Process(process.process.pid)
    found = [Path(f"/proc/{each.pid}/status").read_text() for each in (top, *top.children(recursive=True))]
    return sum(int(text.partition("RssAnon:")[2].split()[0]) << 10 for text in found)


def memory_that_stays(process: HeddleProcess) -> int:
    """The least of some samples while nothing is asked: freed memory goes back every ten seconds."""
    found = [memory(process)]
    for _ in range(15 if IS_LONG else 0):
        time.sleep(1)
        found.append(memory(process))
    return min(found)


def erase(client: httpx.Client) -> None:
    """Remove the project with all that a part of the run added to it."""
    named = {"project_id": old_data.PROJECT}
    asked = client.post("/project/purge", json={**named, "subject": "project", "id": ""}).raise_for_status()
    deadline, state = time.monotonic() + 600, "queued"
    while state in ("queued", "running"):
        assert time.monotonic() < deadline, "the project is not erased"
        time.sleep(0.2)
        jobs = client.post("/evaluations/jobs/query", json={**named, "kinds": ["purge"]}).raise_for_status().json()
        state = {job["id"]: job["state"] for job in jobs["jobs"]}[asked.json()["job_id"]]
    assert state == "succeeded"


def begin_anew(client: httpx.Client, archive: Path) -> None:
    """Give the project what it had at first: with more data in every part, every answer and its memory would grow."""
    erase(client)
    done = heddle("import", "archive", archive, "--to", client.base_url)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "workers", "scale"])
def test_whatever_is_sent(kind: str, tmp_path: Path) -> None:
    is_scale = kind == "scale"
    if is_scale and not SOAK:
        pytest.skip("in make soak")
    if is_scale and (missing := scale.missing()):
        pytest.skip(missing)
    databases = scale.settings_of("clickhouse" if is_scale else "sqlite", tmp_path / "data")
    recording = old_data.FOLDER / f"18063b9-{'clickhouse' if is_scale else 'sqlite'}.tar.gz"
    told = old_data.unpack(recording, tmp_path, databases)
    settings = {**databases, **SETTINGS, **({"workers": 2} if kind == "workers" else {})}
    with Process(tmp_path / "data", **settings) as process, httpx.Client(base_url=process.url, timeout=300) as client:
        archive = tmp_path / "first.heddle"
        if is_scale:
            clickhouse_process().remove_old_parts_soon(databases["store"])
        if IS_LONG:
            done = heddle("export", archive, "--project", old_data.PROJECT, "--data", tmp_path / "data", **databases)
            assert done.returncode == 0, done.stdout + done.stderr
        driver = Driver(process, Fuzz(SEED, Tenant(old_data.PROJECT, "canary", told["ids"])))
        numbers = range(int(AT), int(AT) + 1) if AT else range(COUNT)
        curve = []
        for part in range(10):
            driver.send(numbers[len(numbers) * part // 10 : len(numbers) * (part + 1) // 10])
            if IS_LONG:
                begin_anew(client, archive)
            curve.append(memory_that_stays(process))
            print(f"{kind}: part {part + 1} of 10: {curve[-1] >> 20} MiB", flush=True)
        assert process.is_ready(), process.log()[-3000:]
    print(f"{kind}: seed {SEED}, {len(numbers)} requests, {dict(sorted(driver.statuses.items()))}")
    assert driver.objections == []
    assert sum(driver.statuses.values()) == len(numbers)
    assert "Traceback" not in process.log(), process.log()[process.log().index("Traceback") - 500 :][:6000]
    if len(numbers) >= MEASURED:
        assert curve[-1] <= curve[0] * 1.1
