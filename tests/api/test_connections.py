"""Strangers, slow and broken clients: what is refused before a body is read, cut off, or counted."""

import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from heddle.settings import TABLE
from tests.support.cli import make_key
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess, free_port

LONG = 60.0
"""Seconds after which something does not happen any more, on however busy a machine."""
ROUTE = "/calls/stream_query"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that needs keys and is soon tired of slow clients."""
    data = tmp_path_factory.mktemp("strict") / "data"
    make_key(data, "root", "--scope", "admin")
    limits = {"header_timeout": 2, "body_timeout": 2, "write_timeout": 2, "max_event_streams": 3}
    limits |= {"max_unfinished_bytes": "8MiB", "max_unfinished_bytes_per_address": "4MiB"}
    with HeddleProcess(data, auth="on", model="none", access_log="off", **limits) as process:
        yield process


@pytest.fixture(scope="module")
def key(strict: HeddleProcess) -> str:
    """A key of it."""
    return make_key(strict.data, "ann", "--scope", "admin")


def connect(process: HeddleProcess, *parts: bytes, buffer: int = 0) -> socket.socket:
    """A connection that has sent these bytes."""
    connection = socket.socket()
    connection.settimeout(LONG)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", process.port))
    for part in parts:
        connection.sendall(part)
    return connection


def head(path: str = ROUTE, method: str = "POST", **headers: object) -> bytes:
    """The head of a request."""
    given = {"host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def rest_of(connection: socket.socket) -> bytes:
    """Everything that still comes until the server closes; raises TimeoutError when it does not."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer, read without waiting for the connection's end."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def refused(process: HeddleProcess, limit: str) -> float:
    """How often a limit was met."""
    text = httpx.get(process.url + "/metrics", timeout=LONG).text
    found = [line for line in text.splitlines() if line.startswith(f'heddle_refused_total{{limit="{limit}"}}')]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def memory_of(process: HeddleProcess) -> int:
    """Bytes of the server's process."""
    assert process.process is not None
    return int(psutil.Process(process.process.pid).memory_info().rss)


@pytest.mark.parametrize(
    "headers",
    [
        {"content_length": 30 * MIB},
        {"content_length": 30_000, "content_encoding": "gzip"},
        {"transfer_encoding": "chunked"},
        {"content_length": 5, "authorization": "Bearer wrong"},
        {"content_length": 5, "authorization": "Basic !"},
        {"content_length": 5, "cookie": "heddle_session=wrong"},
        {"content_length": 5, "expect": "100-continue"},
    ],
    ids=lambda headers: "-".join(map(str, headers)),
)
@pytest.mark.parametrize(
    "path",
    [ROUTE, "/traces/call/start", "/file/create", "/v1/chat/completions", "/v1/preview/training-jobs", "/nothing"],
)
def test_a_stranger_is_refused_before_a_byte_of_the_body(
    path: str, headers: dict[str, object], strict: HeddleProcess
) -> None:
    with connect(strict, head(path, **headers)) as connection:
        status, given, body = answer_of(connection)
        assert (status, given["connection"]) == (401, "close") and b"key" in body
        assert rest_of(connection) == b""


def test_a_stranger_without_a_body_is_let_go_too(strict: HeddleProcess) -> None:
    with connect(strict, head("/objs/query", content_length=0)) as connection:
        assert answer_of(connection)[0] == 401 and rest_of(connection) == b""


def test_a_stranger_who_sends_it_all_the_same_reads_the_answer(strict: HeddleProcess) -> None:
    body = b"[" + b"0," * (15 * MIB)
    with connect(strict, head(content_length=len(body)), body) as connection:
        assert answer_of(connection)[0] == 401
    with httpx.Client(base_url=strict.url, timeout=LONG) as client:
        assert client.post("/call/start", content=body).status_code == 401
        assert client.post("/_ui/session", content=body, headers={"x-heddle-ui": "1"}).status_code in (403, 413)


@pytest.mark.thorough
def test_unfinished_bodies_take_little_memory(strict: HeddleProcess, key: str) -> None:
    bomb = gzip.compress(b"[" + b"0," * (15 * MIB))
    before = memory_of(strict)
    allowed = {"authorization": f"Bearer {key}"}
    compressed = head(content_length=len(bomb), content_encoding="gzip", **allowed)
    connections = [connect(strict, compressed, bomb[:-1]) for _ in range(24)]
    given_up = refused(strict, "body_timeout")
    # The bodies wait for their last byte; then they are given up.
    assert memory_of(strict) - before < 100 * MIB
    for connection in connections:
        with connection:
            status, _, body = answer_of(connection)
            assert status == 408 and b"body_timeout" in body
    assert refused(strict, "body_timeout") == given_up + 24


def test_large_bodies_that_stay_unfinished_make_room_for_others(strict: HeddleProcess, key: str) -> None:
    part = b"[" + b"0," * (3 * MIB // 2)
    large = head(content_length=len(part) + 1, authorization=f"Bearer {key}")
    with ThreadPoolExecutor(8) as pool:
        bodies = [pool.submit(_send_and_read, strict, large, part) for _ in range(8)]
        while not all(body.done() for body in bodies):
            # Beside them small requests are answered as ever.
            query = {"content": b'{"project_id": "a/b"}', "auth": ("x", key), "timeout": LONG}
            assert httpx.post(strict.url + "/calls/query_stats", **query).status_code == 200
    assert {body.result() for body in bodies} <= {b"429", b"408", b""}
    assert refused(strict, "max_unfinished_bytes") > 0


def _send_and_read(process: HeddleProcess, *parts: bytes) -> bytes:
    """The status of the answer, if one comes."""
    with connect(process, parts[0]) as connection:
        with suppress(OSError):
            connection.sendall(parts[1])
        return rest_of(connection)[9:12]


def test_a_body_that_trickles_is_given_up(strict: HeddleProcess, key: str) -> None:
    given_up = refused(strict, "body_timeout")
    with connect(strict, head(content_length=10_000, authorization=f"Bearer {key}")) as connection:
        connection.settimeout(0.2)
        deadline, received = time.monotonic() + LONG, b""
        while not received and time.monotonic() < deadline:
            connection.sendall(b" ")
            try:
                received = connection.recv(65536)
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408")
    assert refused(strict, "body_timeout") == given_up + 1


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n\r\n",
        b"GET /health HTT",
        b"POST /calls/stream_query HTTP/1.1\r\nhost: localhost\r\nx-sl",
        head("/health", "GET") + b"GET /hea",
    ],
    ids=["nothing", "empty lines", "half a line", "half a head", "half a line later"],
)
def test_a_head_that_does_not_come_ends_its_connection(sent: bytes, strict: HeddleProcess) -> None:
    with connect(strict, sent) as connection:
        received = rest_of(connection)
    if sent.startswith(b"GET /health HTTP"):
        assert received.startswith(b"HTTP/1.1 200")
    if b"GET" in sent.rpartition(b"\n")[2]:
        assert b"HTTP/1.1 408" in received and b"header_timeout" in received


def test_empty_lines_keep_no_connection_open(strict: HeddleProcess) -> None:
    with connect(strict, head("/health", "GET")) as connection:
        assert answer_of(connection)[0] == 200
        connection.sendall(b"\r\n")
        assert rest_of(connection) == b""


@pytest.mark.parametrize(
    "how", with_breadth(["one header", "many headers", "address", "trailers", "within one packet"], keep=2)
)
def test_large_heads_are_refused(how: str, strict: HeddleProcess, key: str) -> None:
    before = memory_of(strict)
    met = refused(strict, "max_header_bytes")
    line = b"x" * 1000
    starts = {
        "one header": b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
        "many headers": b"GET /health HTTP/1.1\r\nhost: localhost\r\n",
        "address": b"GET /health?",
        "trailers": head(transfer_encoding="chunked", authorization=f"Bearer {key}") + b"0\r\n",
        "within one packet": b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + line * 70 + b"\r\n\r\n",
    }
    connection = connect(strict, starts[how])
    part = b"".join(b"x-%d: %b\r\n" % (number, line) for number in range(1000))
    part = part if how in ("many headers", "trailers") else line * 1000
    try:
        for _ in range(0 if how == "within one packet" else 100):
            connection.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        pass
    with connection:
        received = rest_of(connection)
    # A server that was told to drop what comes may be faster than the client reads.
    assert not received or b"HTTP/1.1 431" in received
    assert refused(strict, "max_header_bytes") == met + 1
    assert memory_of(strict) - before < 50 * MIB


def test_what_comes_behind_a_body_is_no_header(strict: HeddleProcess, key: str) -> None:
    reader = make_key(strict.data, "reader", "--scope", "read")
    body = b'{"project_id": "a/b"}'
    chunked = b"%x\r\n%b\r\n0\r\nauthorization: Bearer %b\r\n\r\n" % (len(body), body, key.encode())
    request = head("/call/start", transfer_encoding="chunked", authorization=f"Bearer {reader}")
    with connect(strict, request, chunked) as connection:
        assert answer_of(connection)[0] == 403


def test_a_request_has_one_host(strict: HeddleProcess) -> None:
    with connect(strict, b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n") as connection:
        assert answer_of(connection)[0] == 400


def test_who_reads_nothing_of_the_answer_is_cut_off(strict: HeddleProcess) -> None:
    met = refused(strict, "write_timeout")
    with connect(strict, head("/openapi.json", "GET") * 40, buffer=4096):
        eventually(lambda: refused(strict, "write_timeout") > met)


def test_a_key_has_so_many_event_streams_and_no_more(strict: HeddleProcess, key: str) -> None:
    met = refused(strict, "max_event_streams")
    request = head("/_ui/api/inference/live", "GET", authorization=f"Bearer {key}", accept="text/event-stream")
    streams = [connect(strict, request) for _ in range(3)]
    for stream in streams:
        assert b"200 OK" in stream.recv(65536)
    with connect(strict, request) as one_more:
        status, headers, body = answer_of(one_more)
        assert (status, headers["retry-after"]) == (429, "5") and b"max_event_streams" in body
    other = make_key(strict.data, "other", "--scope", "read")
    with connect(strict, request.replace(key.encode(), other.encode())) as stream:
        assert b"200 OK" in stream.recv(65536)
    for stream in streams:
        stream.close()

    def is_free() -> bool:
        with connect(strict, request) as stream:
            return b"200 OK" in stream.recv(65536)

    eventually(is_free)
    assert refused(strict, "max_event_streams") >= met + 1


def test_a_crowd_of_silent_connections_keeps_nobody_out(tmp_path: Path) -> None:
    make_key(tmp_path / "data", "root", "--scope", "admin")
    with HeddleProcess(tmp_path / "data", auth="on", model="none", max_connections=40) as process:
        silent = [connect(process, b"POST /call/start HTTP/1.1\r\n") for _ in range(100)]
        with httpx.Client(base_url=process.url, timeout=LONG) as client:
            for _ in range(20):
                assert client.get("/health").status_code == 200
        assert refused(process, "max_connections") >= 60
        for connection in silent:
            connection.close()


@pytest.mark.thorough
def test_one_address_has_so_many_connections(tmp_path: Path) -> None:
    make_key(tmp_path / "data", "root", "--scope", "admin")
    settings = {"max_connections_per_address": 10, "auth": "on", "model": "none"}
    with HeddleProcess(tmp_path / "data", **settings) as process:
        key = make_key(tmp_path / "data", "ann")
        busy = head(content_length=5, authorization=f"Bearer {key}", expect="100-continue")
        taken = [connect(process, busy) for _ in range(10)]
        for connection in taken:
            assert b"100 Continue" in connection.recv(100)
        # All ten are at work: the next one is told so.
        with connect(process) as refused_one:
            assert b"HTTP/1.1 503" in rest_of(refused_one)
        taken.pop().close()
        eventually(lambda: _is_answered(process))
        assert refused(process, "max_connections_per_address") >= 1
        for connection in taken:
            connection.close()


def _is_answered(process: HeddleProcess) -> bool:
    try:
        return httpx.get(process.url + "/health", timeout=LONG).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.thorough
@pytest.mark.thorough
def test_limits_hold_in_every_process(tmp_path: Path) -> None:
    make_key(tmp_path / "data", "root", "--scope", "admin")
    settings = {"workers": 2, "auth": "on", "model": "none", "header_timeout": 1, "body_timeout": 1}
    with HeddleProcess(tmp_path / "data", **settings) as process:
        key = make_key(tmp_path / "data", "ann")
        for path in (ROUTE, "/feedback/create"):  # answered by a worker, and by the process that writes
            with connect(process, head(path, content_length=30 * MIB)) as connection:
                status, headers, _ = answer_of(connection)
                assert (status, headers["connection"]) == (401, "close")
            with connect(process, head(path, content_length=9, authorization=f"Bearer {key}"), b"{") as connection:
                assert answer_of(connection)[0] == 408
        for _ in range(4):
            with connect(process, b"GET /heal") as connection:
                assert b"HTTP/1.1 408" in rest_of(connection)
        eventually(lambda: refused(process, "header_timeout") >= 4 and refused(process, "body_timeout") == 2)


@pytest.mark.parametrize("path", ["/health", "/docs", "/", "/server_info", "/nothing", "/_ui/session", "/objs/query"])
def test_every_answer_tells_browsers_what_it_is_not(path: str, strict: HeddleProcess) -> None:
    answer = httpx.get(strict.url + path, headers={"user-agent": "Mozilla/5.0"}, timeout=LONG)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] in ("no-store", "no-cache")
    assert "www-authenticate" not in answer.headers


def test_no_answer_repeats_the_name_that_it_was_asked_by(tmp_path: Path) -> None:
    make_key(tmp_path / "data", "root", "--scope", "admin")
    settings = {"auth": "on", "model": "none", "public_url": "https://heddle.example.com/x"}
    with HeddleProcess(tmp_path / "data", **settings) as process:
        key = make_key(tmp_path / "data", "ann", "--scope", "admin")
        with httpx.Client(
            base_url=process.url, auth=("x", key), headers={"host": "evil.example"}, timeout=LONG
        ) as client:
            made = client.post("/file/create", data={"project_id": "a/b"}, files={"file": ("f", b"text")})
            urls = client.post("/files/resolve_url", json={"project_id": "a/b", "uris": [made.json()["digest"]]})
            assert urls.json()["download_urls"][0].startswith("https://heddle.example.com/x/files/download?")
            for path in ("/health/", "/docs/", "/v1/models/"):
                assert "evil.example" not in str(client.get(path).headers)


def test_a_stranger_learns_no_settings(strict: HeddleProcess, key: str) -> None:
    assert httpx.get(strict.url + "/server_info", timeout=LONG).json()["settings"] == {}
    told = httpx.get(strict.url + "/server_info", auth=("x", key), timeout=LONG).json()["settings"]
    assert "workers" in told and not {row.name for row in TABLE if row.kind.is_secret} & told.keys()


def test_remembered_credentials_count_for_own_pages_only(strict: HeddleProcess, key: str) -> None:
    start = {"project_id": "a/b", "op_name": "o", "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {}}
    form = {"content-type": "text/plain", "user-agent": "Mozilla/5.0"}
    for foreign in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = httpx.post(
            strict.url + "/call/start", content=json.dumps({"start": start}), auth=("x", key), headers=form | foreign
        )
        assert answer.status_code == 403, answer.text
    own = form | {"origin": strict.url}
    answer = httpx.post(strict.url + "/call/start", content=json.dumps({"start": start}), auth=("x", key), headers=own)
    assert answer.status_code == 200


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via"])
def test_without_keys_nobody_comes_by_way_of_a_proxy(header: str, server: HeddleProcess) -> None:
    answer = httpx.post(
        server.url + "/_ui/api/keys", json={"user": "x", "scopes": ["admin"]}, headers={header: "1.2.3.4"}
    )
    assert answer.status_code == 403 and "--auth" in answer.json()["reason"]


def test_without_keys_none_are_made_over_http(server: HeddleProcess) -> None:
    answer = httpx.post(server.url + "/_ui/api/keys", json={"user": "x", "scopes": ["admin"]})
    assert answer.status_code == 403 and "heddle keys create" in answer.json()["reason"]


def test_without_keys_the_name_of_the_server_is_a_loopback_name(server: HeddleProcess) -> None:
    assert httpx.get(server.url + "/version", headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(server.url + "/version", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("workers", with_breadth([1, 2]))
@pytest.mark.parametrize("what", ["a reader that is gone", "a reader that does not read", "closed", "a full disk"])
@pytest.mark.parametrize("number", with_breadth([15, 2]))
def test_a_signal_ends_the_server_whatever_happens_to_its_output(
    number: int, what: str, workers: int, tmp_path: Path
) -> None:
    port = free_port()
    reading, writing = os.pipe()
    if what == "a full disk":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "heddle", "serve", "--port", port, "--data", tmp_path / "data", "--model", "none"]
    command += ["--workers", workers]
    script = 'exec "$@" >&- 2>&-' if what == "closed" else 'exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", script, "sh", *map(str, command), "--access-log", "all"], stdout=writing, stderr=writing
    )
    os.close(writing)
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            return httpx.get(url + "/health", timeout=LONG).status_code == 200
        except httpx.TransportError:
            return False

    eventually(is_up)
    if what == "a reader that is gone":
        os.close(reading)
    with httpx.Client(base_url=url, timeout=LONG) as client:
        # More lines than a pipe holds.
        for _ in range(800 if what == "a reader that does not read" else 10):
            assert client.get("/health").status_code == 200
    process.send_signal(number)
    assert process.wait(LONG) == 0
