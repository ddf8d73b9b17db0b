"""`--workers N`: several processes answer on one port, one writes; whoever is killed, nothing acknowledged is lost."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import httpx
import pytest

from tests.support import scale
from tests.support.cli import heddle
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.support.traffic import PROJECT, Traffic, count, store, stored, until

pytestmark = scale.on_sqlite


def worker_pids(process: HeddleProcess) -> list[int]:
    """The worker processes of a server."""
    assert process.process is not None
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.process.pid)], capture_output=True, text=True, check=True
    )
    own = [int(word) for word in found.stdout.split()]
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in own if Path(f"/proc/{pid}/cmdline").exists()}
    return [pid for pid, line in lines.items() if b"heddle.web_workers" in line]


@pytest.mark.thorough
def test_what_one_worker_stores_every_other_reads(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", workers=2, large_field_bytes=1024) as process:
        until(lambda: "heddle: serving" in process.log())
        assert len(worker_pids(process)) == 2
        for number in range(20):
            # A connection of its own each, so that both workers are met.
            with httpx.Client(base_url=process.url, timeout=60) as client:
                assert store(client, number, 5000).status_code == 200
            with httpx.Client(base_url=process.url, timeout=60) as client:
                assert count(client) == number + 1
                read = client.post("/call/read", json={"project_id": PROJECT, "id": f"{number:032x}"}).json()
                assert read["call"]["inputs"] == {"text": "x" * 5000}, "a large field lies in a file of its own"
        assert process.terminate() == 0
        assert "heddle: stopped" in process.log() and "Traceback" not in process.log()
    with HeddleProcess(tmp_path / "data") as again, httpx.Client(base_url=again.url) as client:
        assert count(client) == 20


def test_the_rest_is_passed_on_whole(tmp_path: Path) -> None:
    with (
        HeddleProcess(tmp_path / "data", workers=2, max_trace_body=65536) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        assert client.get("/geolocate").json()["ip"] == "127.0.0.1"
        head = client.head("/health")
        assert (head.status_code, head.content) == (200, b"")
        missing = client.get("/nowhere?a=b%20c")
        assert (missing.status_code, missing.json()["reason"]) == (404, "Not Found: GET /nowhere")
        refused = client.post("/cost/create", content=b"x" * 70_000)
        assert refused.status_code == 413 and "max_trace_body" in refused.text

        def chunks() -> "list[bytes]":
            return [b'{"project_id": "team/workers", ', b'"obj": {}}']

        assert client.post("/obj/create", content=iter(chunks())).status_code == 422
        body = {"obj": {"project_id": PROJECT, "object_id": "thing", "val": {"a": 1}}}
        digest = client.post("/obj/create", json=body).json()["digest"]
        found = client.post("/obj/read", json={"project_id": PROJECT, "object_id": "thing", "digest": digest})
        assert found.json()["obj"]["val"] == {"a": 1}
        chat = {
            "model": "heddle-tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 5,
            "stream": True,
        }
        with client.stream("POST", "/v1/chat/completions", json=chat, headers={"authorization": "Bearer x"}) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert answer.status_code == 200 and lines[-1] == "data: [DONE]" and len(lines) > 3
        span = {
            "traceId": "a" * 32,
            "spanId": "b" * 16,
            "name": "step",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
        }
        export = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
        score = {"name": "early", "value": 1, "traceId": "a" * 32}
        assert client.post("/api/public/scores", json=score, headers={"project_id": PROJECT}).status_code == 200
        for _ in range(2):
            taken = client.post("/otel/v1/traces", json=export, headers={"project_id": PROJECT})
            assert (taken.status_code, taken.json()["partial_success"]) == (200, None)
        assert count(client) == 1
        [moved] = client.post("/feedback/query", json={"project_id": PROJECT}).json()["result"]
        assert moved["weave_ref"].endswith(f"/call/{'b' * 16}")
        until(lambda: 'route="/calls/query_stats",status="200"' in client.get("/metrics").text)


@pytest.mark.thorough
def test_a_long_folder_of_temporary_files_has_workers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / ("t" * 120)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    server = HeddleProcess(tmp_path / "data", workers=2, model="none")
    server.may_fork = False
    with server:
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert list(temporary.glob("heddle-*")) == []


def test_a_revoked_key_is_refused_by_every_worker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = heddle("keys", "create", "--data", data, "--user", "ann", "--quiet").stdout.strip()
    with HeddleProcess(data, workers=2, auth="on") as process:

        def statuses() -> set[int]:
            found = set()
            for _ in range(12):
                with httpx.Client(base_url=process.url, auth=("api", key)) as client:
                    found.add(store(client, 1).status_code)
            return found

        assert statuses() == {200}
        listed = heddle("keys", "list", "--data", data).stdout.splitlines()[-1]
        until(lambda: "never" not in heddle("keys", "list", "--data", data).stdout.splitlines()[-1])
        heddle("keys", "revoke", "--data", data, listed.split()[0])
        until(lambda: statuses() == {401})


def test_a_killed_worker_loses_nothing_and_another_takes_its_place(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", workers=2) as process:
        until(lambda: len(worker_pids(process)) == 2)
        with Traffic(process.url, 4) as traffic:
            for _ in range(2):
                traffic.more(20)
                victim = worker_pids(process)[0]
                os.kill(victim, signal.SIGKILL)
                until(lambda victim=victim: len(set(worker_pids(process)) - {victim}) == 2)  # type: ignore[misc]
            traffic.more(20)
        assert stored(process.url) >= traffic.acknowledged
        assert "it will be restarted" in process.log()


@pytest.mark.thorough
def test_a_killed_writing_process_takes_its_workers_along_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setenv("TMPDIR", temporary)
    process = HeddleProcess(tmp_path / "data", workers=2).start()
    with Traffic(process.url, 4) as traffic:
        traffic.more(50)
        pids = worker_pids(process)
        process.kill()
    # At once: its workers, which hold the port, may be ending still.
    with HeddleProcess(tmp_path / "data", port=process.port, workers=2) as again:
        until(lambda: not any(_lives(pid) for pid in pids))
        assert stored(again.url) >= traffic.acknowledged
        assert len(traffic.acknowledged) >= 50
    assert [path for path in Path(temporary).iterdir() if path.name.startswith("heddle-web-workers-")] == []
    shutil.rmtree(temporary)


def _lives(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("workers", with_breadth([1, 2]))
def test_a_stopping_server_answers_until_balancers_have_noticed(tmp_path: Path, workers: int) -> None:
    process = HeddleProcess(tmp_path / "data", workers=workers, shutdown_drain=3).start()
    assert process.process is not None
    with httpx.Client(base_url=process.url, timeout=30) as client:
        assert store(client, 1).status_code == 200
        process.process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/ready").status_code == 503)
        answer = store(client, 2)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert process.process.wait(60) == 0
    with HeddleProcess(tmp_path / "data") as again:
        assert stored(again.url) == {1, 2}
