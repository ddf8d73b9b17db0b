"""A server whose files lie in an object store: what it answers while the store is away, and that nothing is lost."""

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.wire import refs
from tests.conftest import API_KEY, Wire
from tests.support.s3 import S3Server
from tests.support.server import HeddleProcess

WITHIN = 60.0


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server that may be killed."""
    with S3Server() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def wire(fragile: S3Server, tmp_path: Path, project: str) -> Iterator[Wire]:
    """A server with its files there."""
    with HeddleProcess(tmp_path / "data", files=fragile.new_prefix(), large_field_bytes=2048) as server:
        wire = Wire(server.url, project)
        yield wire
        wire.client.close()


def store_call(wire: Wire, **inputs: Any) -> str:
    """Send the start of a call; returns its id."""
    call_id = str(uuid.uuid4())
    own = {"project_id": wire.project, "id": call_id, "trace_id": call_id, "op_name": "op", "attributes": {}}
    own |= {"started_at": "2026-11-22T00:00:00Z", "inputs": inputs}
    wire.client.post("/call/start", json={"start": own}).raise_for_status()
    return call_id


def upload(wire: Wire, content: bytes) -> httpx.Response:
    """The answer to an upload."""
    return wire.client.post("/file/create", data={"project_id": wire.project}, files={"file": ("f", content)})


def test_files_and_large_fields_lie_in_the_store(wire: Wire, fragile: S3Server, tmp_path: Path) -> None:
    content = bytes(range(256)) * (24 << 10)
    digest = upload(wire, content).json()["digest"]
    assert digest == refs.bytes_digest(content)
    assert wire.file(digest) == content
    text = "long " * 1000
    assert wire.call(store_call(wire, text=text))["inputs"] == {"text": text}
    stored = {path.parent.name + path.name: path for path in fragile.bucket.glob("*/[0-9a-f][0-9a-f]/*")}
    assert hashlib.sha256(content).hexdigest() in stored and len(stored) == 2
    assert not (tmp_path / "data" / "files").exists()


def test_an_outage_is_503_and_nothing_acknowledged_is_lost(wire: Wire, fragile: S3Server) -> None:
    kept: dict[str, bytes] = {}
    refused: list[httpx.Response] = []
    done = threading.Event()

    def work(worker: int) -> None:
        with httpx.Client(base_url=wire.url, auth=("api", API_KEY), timeout=60) as client:
            for number in range(10_000):
                content = f"{worker} {number} ".encode() * 700
                form = {"data": {"project_id": wire.project}, "files": {"file": ("f", content)}}
                answer = client.post("/file/create", **form)  # type: ignore[arg-type]
                if answer.status_code == 200:
                    kept[answer.json()["digest"]] = content
                else:
                    refused.append(answer)
                if done.is_set():
                    return

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, worker) for worker in range(4)]
        try:
            for _ in range(2):
                wait_for_more(kept)
                seen = len(refused)
                fragile.kill()
                wait_for_more(refused)
                assert len(refused) > seen
                fragile.start()
                wait_for_more(kept)
        finally:
            done.set()
        for worker in workers:
            worker.result()
    assert {answer.status_code for answer in refused} == {503}
    assert all(answer.headers["retry-after"] and "object store" in answer.json()["reason"] for answer in refused)
    for digest, content in kept.items():
        assert wire.file(digest) == content


def test_reading_waits_for_the_store_too(wire: Wire, fragile: S3Server) -> None:
    digest = upload(wire, b"kept").json()["digest"]
    fragile.kill()
    answer = wire.client.post("/file/content", json={"project_id": wire.project, "digest": digest})
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text
    # What needs no file goes on.
    assert wire.call(store_call(wire, a=1))["inputs"] == {"a": 1}
    fragile.start()
    assert wire.file(digest) == b"kept"


def wait_for_more(seen: "dict[str, bytes] | list[httpx.Response]") -> None:
    """Wait until there are ten more; fails after a minute."""
    deadline, goal = time.monotonic() + WITHIN, len(seen) + 10
    while len(seen) < goal:
        assert time.monotonic() < deadline, f"{len(seen)} of {goal}"
        time.sleep(0.01)
