"""Stopping: what is in flight is finished, the exit code is 0, a second signal ends at once, one server per folder."""

import signal
import socket
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from tests.support import scale
from tests.support.cli import heddle
from tests.support.patience import strain
from tests.support.server import HeddleProcess

BODY = b'{"project_id": "team/stop"}'


def half_a_request(process: HeddleProcess) -> socket.socket:
    """A connection that has sent all of a request but its last byte, known to have arrived."""
    connection = socket.create_connection(("127.0.0.1", process.port), timeout=30)
    headers = f"host: localhost\r\nexpect: 100-continue\r\ncontent-length: {len(BODY)}"
    connection.sendall(f"POST /calls/query_stats HTTP/1.1\r\n{headers}\r\n\r\n".encode() + BODY[:-1])
    # The server asks for the rest once its route reads the body: from then on the request is in flight.
    assert connection.recv(25).startswith(b"HTTP/1.1 100")
    return connection


def wait_for_log(process: HeddleProcess, text: str) -> None:
    """Poll until the server printed a text."""
    deadline = time.monotonic() + 30
    while text not in process.log():
        assert time.monotonic() < deadline, process.log()
        time.sleep(0.01)


def test_sigterm_finishes_what_is_in_flight_and_exits_0(tmp_path: Path) -> None:
    for sent in (signal.SIGTERM, signal.SIGINT):
        process = HeddleProcess(tmp_path / f"data{sent}").start()
        assert process.process is not None
        with half_a_request(process) as connection:
            process.process.send_signal(sent)
            wait_for_log(process, "finishing what is in flight")
            connection.sendall(BODY[-1:])
            received = b""
            while part := connection.recv(65536):
                received += part
        assert received.startswith(b"HTTP/1.1 200 OK") and b'"count":0' in received
        assert process.process.wait(30) == 0
        assert "heddle: stopped" in process.log() and "Traceback" not in process.log()
        assert not list(process.data.glob("*-wal"))


def test_new_work_is_refused_while_stopping(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data").start()
    assert process.process is not None
    with half_a_request(process) as connection, httpx.Client(base_url=process.url) as client:
        assert client.get("/health").status_code == 200
        process.process.send_signal(signal.SIGTERM)
        wait_for_log(process, "finishing what is in flight")
        try:
            answer = client.get("/health")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        except httpx.TransportError:
            pass  # the listening socket is closed already
        connection.sendall(BODY[-1:])
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    assert process.process.wait(30) == 0


def test_a_second_signal_ends_at_once_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data", shutdown_grace=600).start()
    assert process.process is not None
    start = {"project_id": "a/b", "op_name": "o", "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {}}
    assert httpx.post(process.url + "/call/start", json={"start": start}).status_code == 200
    deadline = time.monotonic() + 30 * strain()
    with half_a_request(process):
        process.process.send_signal(signal.SIGTERM)
        wait_for_log(process, "finishing what is in flight")
        # One that follows within a second is the same: `timeout` and service managers send it twice.
        process.process.send_signal(signal.SIGTERM)
        while process.process.poll() is None:
            assert time.monotonic() < deadline, process.log()
            process.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert process.process.wait(30) == 1
    assert "SIGTERM again, ending at once" in process.log()
    with HeddleProcess(tmp_path / "data") as again:
        assert httpx.post(again.url + "/calls/query_stats", json={"project_id": "a/b"}).json()["count"] == 1


def test_after_the_grace_a_stuck_client_is_left(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data", shutdown_grace=1).start()
    assert process.process is not None
    with half_a_request(process):
        assert process.terminate() == 0
    assert "heddle: stopped" in process.log()


@scale.on_sqlite
def test_one_server_per_folder(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as first:
        assert first.process is not None
        second = heddle("serve", "--port", "0", "--data", tmp_path / "data")
        assert second.returncode == 1
        assert f"is in use by another heddle (process {first.process.pid})" in second.stderr
        for words in (("migrate",), ("restore", tmp_path / "backup")):
            refused = heddle(*words, "--data", tmp_path / "data")
            assert refused.returncode == 1 and "is in use by another heddle" in refused.stderr
        first.kill()
    with HeddleProcess(tmp_path / "data") as third:
        assert third.is_ready()


def test_a_port_in_use_is_said(tmp_path: Path, server: HeddleProcess) -> None:
    done = heddle("serve", "--port", server.port, "--data", tmp_path / "data")
    assert done.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{server.port}" in done.stderr and "--port" in done.stderr


def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    done = heddle("serve", "--data", tmp_path / "data", max_file="plenty")
    assert done.returncode == 1
    assert done.stderr == (
        "heddle: max_file = 'plenty' (from variable HEDDLE_MAX_FILE) is not valid; "
        "expected a size from 1 to 1TiB, such as 33554432 or 32MiB\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.thorough
@scale.on_sqlite
def test_a_file_of_a_newer_heddle_is_left_alone(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data"):
        pass
    with sqlite3.connect(tmp_path / "data" / "heddle.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    for words in (("serve", "--port", "0"), ("keys", "list"), ("migrate",)):
        done = heddle(*words, "--data", tmp_path / "data")
        assert done.returncode == 1 and "newer heddle" in done.stderr, done.stderr


@scale.on_sqlite
def test_a_folder_or_a_database_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "heddle.db").write_bytes(b"no database" * 1000)
    for folder, why in (("file", "cannot be used: File exists"), ("damaged", "cannot be read: file is not a database")):
        for words in (("serve", "--port", "0"), ("migrate",), ("keys", "create", "--user", "ann")):
            done = heddle(*words, "--data", tmp_path / folder)
            assert done.returncode == 1, done.stdout
            assert why in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_start_line_names_the_address_of_a_free_port(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data", port=None)
    with process:
        assert f"heddle: serving {process.url} (data in {tmp_path / 'data'}, no key needed)" in process.log()
    assert process.process is not None
