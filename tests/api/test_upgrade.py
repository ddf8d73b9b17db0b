"""An upgrade and the way back while clients write, on the data folder of an older heddle: nothing is lost."""

import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support import old_data, scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess

pytestmark = [scale.on_sqlite, pytest.mark.thorough]

COMMIT = "18063b9"
ROOT = Path(__file__).parents[2]
WRITERS, EACH = 3, 20
SECONDS = 120.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `src` of the older heddle."""
    found = subprocess.run(["git", "-C", ROOT, "archive", COMMIT, "src"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the history of this checkout does not hold {COMMIT}")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


class Writers:
    """Clients that send calls and files, again until they are acknowledged, whatever the server does meanwhile."""

    def __init__(self, url: str, key: str) -> None:
        self.acknowledged: dict[str, int] = {}
        """What was stored by id; calls have a number, files their digest as id."""
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self) -> None:
        """Wait until each has written something since now."""
        wanted, deadline = len(self.acknowledged) + WRITERS * EACH, time.monotonic() + SECONDS
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline and all(thread.is_alive() for thread in self._threads)
            time.sleep(0.02)

    def _write(self) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=30) as client:
            while not self._stopping.is_set():
                number = next(self._numbers)
                call, at = f"upgrade-{number}", "2026-01-01T00:00:00Z"
                start = {"project_id": old_data.PROJECT, "id": call, "trace_id": call, "op_name": "upgrade"}
                start |= {"started_at": at, "attributes": {}, "inputs": {"number": number}}
                end = {"project_id": old_data.PROJECT, "id": call, "ended_at": at, "output": number, "summary": {}}
                batch = [{"mode": "start", "req": {"start": start}}, {"mode": "end", "req": {"end": end}}]
                if self._send(client, "/call/upsert_batch", json={"batch": batch}) is not None:
                    self.acknowledged[call] = number
                form = {
                    "data": {"project_id": old_data.PROJECT},
                    "files": {"file": ("f", f"content {number}".encode())},
                }
                if (stored := self._send(client, "/file/create", **form)) is not None:
                    self.acknowledged[stored.json()["digest"]] = number

    def _send(self, client: httpx.Client, path: str, **body: object) -> httpx.Response | None:
        """The answer to what was stored; None when this ends before."""
        while not self._stopping.is_set():
            try:
                answer = client.post(path, **body)  # type: ignore[arg-type]
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200:
                return answer
            time.sleep(0.05)
        return None


def missing(url: str, key: str, acknowledged: dict[str, int]) -> list[str]:
    """What was acknowledged and is not answered as it was sent."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        asked = {"project_id": old_data.PROJECT, "filter": {"op_names": ["upgrade"]}}
        lines = client.post("/calls/stream_query", json=asked).text.splitlines()
        found = {call["id"]: (call["inputs"], call["output"]) for call in map(json.loads, lines)}
        lost = []
        for name, number in acknowledged.items():
            if name.startswith("upgrade-"):
                is_there = found.get(name) == ({"number": number}, number)
            else:
                body = {"project_id": old_data.PROJECT, "digest": name}
                is_there = client.post("/file/content", json=body).content == f"content {number}".encode()
            if not is_there:
                lost.append(name)
    return lost


def test_nothing_is_lost_by_an_upgrade_and_by_the_way_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = old_data.unpack(old_data.FOLDER / f"{COMMIT}-sqlite.tar.gz", tmp_path, {})
    data, key, archive = tmp_path / "data", told["key"], tmp_path / "since.heddle"
    settings = {**old_data.SETTINGS, "adapter_roots": tmp_path, "model": "none"}
    newer = HeddleProcess(data, **settings)
    older = HeddleProcess(data, newer.port, **settings)

    def start_older() -> None:
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(source))
            older.start()

    start_older()
    try:
        version = httpx.get(older.url + "/openapi.json", headers={"authorization": f"Bearer {key}"}).json()
        assert "/inference/providers" not in version["paths"], "that is no older server"
        with Writers(older.url, key) as writers:
            writers.wait_for_more()
            assert older.terminate() == 0
            newer.start()
            writers.wait_for_more()
            assert missing(newer.url, key, dict(writers.acknowledged)) == []
            # And back, with what was stored since.
            assert newer.terminate() == 0
            exported = heddle("export", archive, "--project", old_data.PROJECT, "--data", data)
            assert exported.returncode == 0, exported.stderr
            [copy] = data.glob("heddle.db.before-*")
            back = heddle("restore", "--before", copy.name.rpartition("-")[2], "--data", data)
            assert back.returncode == 0, back.stderr
            environment = {**os.environ, "PYTHONPATH": str(source)}
            command = [sys.executable, "-m", "heddle", "import", "archive", str(archive), "--data", str(data)]
            stored = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert stored.returncode == 0, stored.stdout + stored.stderr
            start_older()
            writers.wait_for_more()
        assert missing(older.url, key, writers.acknowledged) == []
        assert older.terminate() == 0
    finally:
        older.kill()
        newer.kill()
