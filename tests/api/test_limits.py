"""Limits are settings: what is over one gets 413 that names it, what is just under it passes, nothing is left."""

import gzip
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.support.server import HeddleProcess

BODY, FILE = 64 * 1024, 100_000
PROJECT = "limits/here"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server with small limits."""
    folder = tmp_path_factory.mktemp("small") / "data"
    with HeddleProcess(folder, max_trace_body=BODY, max_file=FILE) as process:
        yield process


def body_of(size: int) -> bytes:
    """A valid object of exactly that many bytes of JSON."""
    head = json.dumps({"obj": {"project_id": PROJECT, "object_id": "o", "val": ""}})[:-3].encode()
    return head + b"x" * (size - len(head) - 3) + b'"}}'


def in_parts(body: bytes) -> Iterator[bytes]:
    """The body without its length being told beforehand."""
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


def objects(server: HeddleProcess) -> int:
    """How many versions the project holds."""
    answer = httpx.post(server.url + "/objs/query", json={"project_id": PROJECT, "metadata_only": True})
    return len(answer.json()["objs"])


@pytest.mark.parametrize("how", ["whole", "in parts", "gzip", "gzip in parts"])
def test_trace_body(how: str, small: HeddleProcess) -> None:
    """One byte over the limit is refused, however it is sent; the limit itself is not."""
    headers = {"content-encoding": "gzip"} if "gzip" in how else {}
    before = objects(small)
    for size, status in ((BODY, 200), (BODY + 1, 413)):
        body = gzip.compress(body_of(size)) if headers else body_of(size)
        content = in_parts(body) if "parts" in how else body
        answer = httpx.post(small.url + "/obj/create", content=content, headers=headers, timeout=30)
        assert answer.status_code == status, answer.text
    assert "max_trace_body" in answer.json()["reason"]
    assert objects(small) == max(before, 1)


def test_small_body_that_grows(small: HeddleProcess) -> None:
    """1,000 times the limit behind a gzip of 64 kB is not unpacked."""
    body = gzip.compress(b" " * (1000 * BODY))
    assert len(body) <= 2 * BODY
    answer = httpx.post(small.url + "/obj/create", content=body, headers={"content-encoding": "gzip"}, timeout=30)
    assert answer.status_code == 413, answer.text


def test_declared_length(small: HeddleProcess) -> None:
    """A declared length far over the limit is refused before the body is sent."""
    head = b"POST /obj/create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", small.port), timeout=30) as connection:
        connection.sendall(head)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("path", ["/file/create", "/files/create"])
def test_file(path: str, small: HeddleProcess) -> None:
    """A file of the limit is stored, one byte more is refused and leaves nothing."""
    for size, status in ((FILE, 200), (FILE + 1, 413), (10 * FILE, 413)):
        files = {"file": ("name", b"y" * size)}
        answer = httpx.post(small.url + path, data={"project_id": PROJECT}, files=files, timeout=30)
        assert answer.status_code == status, answer.text
    assert "max_file" in answer.json()["reason"]
    stats = httpx.post(small.url + "/files/query_stats", json={"project_id": PROJECT}).json()
    assert stats == {"total_size_bytes": FILE}


def test_limits_are_shown(small: HeddleProcess) -> None:
    """`/server_info` tells the limits."""
    shown = json.dumps(httpx.get(small.url + "/server_info").json())
    assert str(BODY) in shown
    assert str(FILE) in shown
