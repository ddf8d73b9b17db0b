"""Files over HTTP: upload, read back, limits, broken forms."""

import asyncio
import contextlib
import hashlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.store.control.files import Files
from heddle.wire import refs
from tests.conftest import Wire
from tests.support.memory import MemoryExecutor
from tests.support.server import HeddleProcess

SPELLINGS = [
    ("/file/create", "/file/content", "/files/query_stats"),
    ("/files/create", "/files/content", "/files/stats"),
]


def upload(
    wire: Wire, content: bytes, path: str = "/file/create", name: str | None = "f.bin", **fields: str
) -> httpx.Response:
    """The answer to an upload."""
    data = {"project_id": wire.project, **fields}
    return wire.client.post(path, data=data, files={"file": (name, content)})


def content_of(wire: Wire, digest: str, path: str = "/file/content") -> httpx.Response:
    """The answer to a read."""
    return wire.client.post(path, json={"project_id": wire.project, "digest": digest})


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> dict[str, Any]:
    """A multipart request written by hand; a part is its disposition and its content."""
    pieces = [
        f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + body + b"\r\n" for head, body in parts
    ]
    return {"content": b"".join(pieces) + end, "headers": {"content-type": "multipart/form-data; boundary=b"}}


@pytest.mark.parametrize(("create", "read", "stats"), SPELLINGS)
def test_bytes_come_back_as_they_were(wire: Wire, create: str, read: str, stats: str) -> None:
    content = random.Random(1).randbytes(3_000_000)
    assert wire.post(stats) == {"total_size_bytes": 0}
    for _ in range(2):
        answer = upload(wire, content, create)
        assert (answer.status_code, answer.json()) == (200, {"digest": refs.bytes_digest(content)})
    found = content_of(wire, answer.json()["digest"], read)
    assert found.content == content
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-length"] == str(len(content))
    upload(wire, b"more", create)
    assert wire.post(stats) == {"total_size_bytes": len(content) + 4}


@pytest.mark.parametrize("content", [b"", b"hello", b"\r\n--b--\r\n", bytes(range(256)) * 5000])
def test_any_content(wire: Wire, content: bytes) -> None:
    digest = upload(wire, content).json()["digest"]
    assert digest == refs.bytes_digest(content)
    assert content_of(wire, digest).content == content


def test_the_expected_digest_must_be_the_one(wire: Wire) -> None:
    right, wrong = refs.bytes_digest(b"hello"), refs.bytes_digest(b"other")
    refused = upload(wire, b"hello", expected_digest=wrong)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert content_of(wire, right).status_code == 404
    assert wire.post("/files/query_stats") == {"total_size_bytes": 0}
    assert upload(wire, b"hello", expected_digest=right).json() == {"digest": right}
    assert upload(wire, b"hello", expected_digest="").json() == {"digest": right}


def test_projects_see_their_own_files_only(wire: Wire) -> None:
    digest = upload(wire, b"mine").json()["digest"]
    other = {"project_id": "another/project", "digest": digest}
    answer = wire.client.post("/file/content", json=other)
    assert answer.status_code == 404 and digest in answer.json()["reason"]
    theirs = {"project_id": "another/project"}
    assert wire.client.post("/file/create", data=theirs, files={"file": b"mine"}).json() == {"digest": digest}
    assert wire.client.post("/file/content", json=other).content == b"mine"


def test_parts_may_come_in_any_order_and_have_no_name(wire: Wire) -> None:
    file, project = ('name="file"', b"x"), ('name="project_id"', wire.project.encode())
    for parts in ((file, project), (project, file), (('name="unknown"', b"1"), project, file)):
        answer = wire.client.post("/file/create", **form(*parts))
        assert answer.json() == {"digest": refs.bytes_digest(b"x")}, answer.text


def test_broken_forms_are_refused_and_leave_nothing(wire: Wire) -> None:
    file, project = ('name="file"; filename="x"', b"x"), ('name="project_id"', wire.project.encode())
    cases: list[tuple[dict[str, Any], int]] = [
        (form(file), 422),
        (form(project), 422),
        (form(project, file, file), 422),
        (form(project, file, end=b""), 422),
        (form(*[('name="a"', b"")] * 21), 422),
        (form(('name="project_id"', b"x" * 70_000), file), 422),
        (form(('name="project_id"', b"no slash"), file), 400),
        (form(("x" * 20_000, b"")), 422),
        ({"content": b"not a form", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 422),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 422),
        ({"json": {"project_id": wire.project}}, 422),
        ({"content": b""}, 422),
    ]
    for request, status in cases:
        answer = wire.client.post("/file/create", **request)
        assert answer.status_code == status, (request, answer.text)
        assert "reason" in answer.json() or answer.json()["detail"][0]["loc"][0] == "body"
    assert wire.post("/files/query_stats") == {"total_size_bytes": 0}


@pytest.fixture
def small(tmp_path: Path, project: str) -> Iterator[Wire]:
    """A server that takes files of up to 2,000,000 bytes."""
    with HeddleProcess(tmp_path / "data", max_file=2_000_000) as server:
        wire = Wire(server.url, project)
        yield wire
        wire.client.close()


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(small: Wire, tmp_path: Path) -> None:
    most = b"x" * 2_000_000
    for content in (most + b"x", most * 3):
        answer = upload(small, content)
        assert answer.status_code == 413 and "max_file" in answer.json()["reason"]

    def trickle() -> Iterator[bytes]:
        request = form(('name="project_id"', small.project.encode()), ('name="file"', most * 2))
        for start in range(0, len(request["content"]), 65_536):
            yield request["content"][start : start + 65_536]

    headers = {"content-type": "multipart/form-data; boundary=b"}
    # The refusal may come while the body is still being sent.
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):
        assert small.client.post("/file/create", content=trickle(), headers=headers).status_code == 413
    assert small.post("/files/query_stats") == {"total_size_bytes": 0}
    assert stored(tmp_path) == []
    assert upload(small, most).status_code == 200
    kept = stored(tmp_path)
    assert [path.parent.name + path.name for path in kept] == [hashlib.sha256(most).hexdigest()]


def test_an_upload_that_breaks_off_leaves_nothing(small: Wire, tmp_path: Path) -> None:
    head = "POST /file/create HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1900000\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    start = form(('name="file"', b"x" * 1_500_000), end=b"")["content"][:1_500_000]
    with socket.create_connection(("127.0.0.1", httpx.URL(small.url).port or 0)) as connection:
        connection.sendall(head.encode() + start)
        until(lambda: stored(tmp_path) != [], "the server began to write")
    until(lambda: stored(tmp_path) == [], "the half-written file is gone")


def stored(folder: Path) -> list[Path]:
    """Every file among the blobs of the small server, half-written ones included."""
    return [path for path in (folder / "data" / "files").rglob("*") if path.is_file()]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; fails after 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def test_a_reader_waits_for_a_file_that_is_on_its_way() -> None:
    async def read_before_upload() -> list[tuple[str, int, str] | None]:
        files = Files(MemoryExecutor())
        mine, theirs = asyncio.create_task(files.expect("p", "d")), asyncio.create_task(files.expect("other", "d"))
        await asyncio.sleep(0)
        assert not mine.done()
        await files.create("p", "n", "d", 3, "b")
        found = [await mine, await theirs, await files.expect("p", "d")]
        return [None if file is None else (file.name, file.size, file.blob) for file in found]

    assert asyncio.run(read_before_upload()) == [("n", 3, "b"), None, ("n", 3, "b")]
