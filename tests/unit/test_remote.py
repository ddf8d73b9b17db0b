"""The client of our own API: kept connections, line streams, and every failure as one line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from heddle import remote as remote_module
from heddle.errors import HeddleError
from heddle.remote import Refused, Remote, Unreachable
from heddle.wire import jsontext


class Server(ThreadingHTTPServer):
    """Answers what `answers` says for a path, and notes what it was asked and by how many connections."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.connections = 0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        """Count it."""
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        """Answer a request with a body."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._answer("POST", body)

    def do_GET(self) -> None:
        """Answer a request without one."""
        self._answer("GET", None)

    def _answer(self, method: str, body: Any) -> None:
        self.server.asked.append((method, self.path, body, self.headers["authorization"]))
        status, content = self.server.answers.get(self.path, (200, b"{}"))
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HEDDLE_SERVER", "HEDDLE_API_KEY", "WANDB_API_KEY", "HEDDLE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    with Server() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield found
        found.shutdown()


def test_requests_share_a_connection(server: Server) -> None:
    server.answers["/x"] = (200, b'{"a": 1}')
    remote = Remote(server.url)
    assert [remote.post("/x", {"n": n})["a"] for n in range(5)] == [1] * 5
    assert remote.get("/x?b=1", c=[1, 2], d=None) == {}
    assert server.connections == 1
    assert server.asked[-1][:2] == ("GET", "/x?b=1?c=1&c=2") and server.asked[0][2] == {"n": 0}


def test_a_refusal_leaves_the_connection_usable(server: Server) -> None:
    server.answers["/no"] = (404, b'{"reason": "gone"}')
    remote = Remote(server.url)
    for _ in range(3):
        with pytest.raises(Refused, match="returned 404: gone") as refused:
            remote.post("/no", {})
        assert refused.value.answered == 404
    assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, b'{"reason": "no such thing"}', "no such thing"),
        (404, b'{"error": {"message": "no model", "type": "x"}}', "no model"),
        (422, b'{"detail": [{"loc": ["body", "limit"], "msg": "too small", "type": "t"}]}', "body.limit: too small"),
        (422, b'{"detail": "text"}', "text"),
        (500, b"<html>", "<html>"),
        (503, b"", "Service Unavailable"),
        (302, b"", "Found"),
        (401, b'{"reason": "no key"}', "no key; give the key with --key or HEDDLE_API_KEY"),
    ],
)
def test_every_form_of_an_error_is_one_line(server: Server, status: int, body: bytes, said: str) -> None:
    server.answers["/x"] = (status, body)
    with pytest.raises(Refused) as refused:
        Remote(server.url).post("/x", {})
    assert str(refused.value) == f"{server.url}/x returned {status}: {said}"


def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(server: Server) -> None:
    for key in ("schlüssel", "line\n", "\udcff"):
        with pytest.raises(HeddleError, match="characters that are not allowed") as refused:
            Remote(server.url, key)
        assert key not in str(refused.value)
    assert Remote(server.url, "any visible key").post("/x", {}) == {}


def test_an_error_that_is_nested_without_end_is_one_line(server: Server) -> None:
    server.answers["/x"] = (500, b"[" * 100_000)
    with pytest.raises(Refused, match="returned 500: "):
        Remote(server.url).post("/x", {})


def test_lines_come_one_by_one(server: Server) -> None:
    server.answers["/lines"] = (200, b'{"a": 1}\n\n{"a": 2}\n' + '{"a": "\u2028\x85"}'.encode())
    remote = Remote(server.url)
    assert list(remote.lines("/lines", {})) == [{"a": 1}, {"a": 2}, {"a": "\u2028\x85"}]
    half = remote.lines("/lines", {})
    assert next(half) == {"a": 1}
    half.close()
    assert remote.post("/lines2", {}) == {}


def test_an_answer_without_an_end_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "MOST_BYTES", 1000)
    server.answers["/x"] = server.answers["/lines"] = (200, b"[" + b" " * 998 + b"]")
    remote = Remote(server.url)
    assert remote.post("/x", {}) == [] and list(remote.lines("/lines", {})) == [[]]
    server.answers["/x"] = server.answers["/lines"] = (200, b"[" + b" " * 999 + b"]")
    for ask in (lambda: remote.post("/x", {}), lambda: list(remote.lines("/lines", {}))):
        with pytest.raises(HeddleError, match="returned more than 1000 bytes"):
            ask()
    server.answers["/x"] = (200, b"[" * 900)
    with pytest.raises(Unreachable, match="did not return JSON"):
        remote.post("/x", {})


def test_answers_are_read_as_bodies_are_and_may_lie_around_the_deepest_value(server: Server) -> None:
    server.answers["/x"] = (200, b'["\\ud800", NaN, 1e999]')
    assert Remote(server.url).post("/x", {}) == ["\ufffd", None, None]
    deep = b"[" * (jsontext.MAX_DEPTH + 20) + b"]" * (jsontext.MAX_DEPTH + 20)
    server.answers["/x"] = server.answers["/lines"] = (200, deep)
    assert [Remote(server.url).post("/x", {})] == list(Remote(server.url).lines("/lines", {}))


def test_what_is_no_heddle_is_told(server: Server) -> None:
    server.answers["/x"] = (200, b"<html>hello</html>")
    with pytest.raises(Unreachable, match="did not return JSON; check the address"):
        Remote(server.url).post("/x", {})
    with pytest.raises(Unreachable, match="check that the server is running there"):
        Remote("http://127.0.0.1:9").post("/x", {})


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8470", "ftp://x", "http://", "http://x:0", "http://x:99999", "http://["]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(HeddleError, match="must be like http"):
        Remote(address)


def test_key_and_address_come_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_SERVER", server.url + "/")
    monkeypatch.setenv("WANDB_API_KEY", "theirs")
    Remote().get("/x")
    monkeypatch.setenv("HEDDLE_API_KEY", "ours")
    Remote().get("/x")
    Remote(key="given").get("/x")
    Remote(from_environment=False).get("/x")
    Remote(from_environment=False).get("/v1/models")
    given = [asked[3] for asked in server.asked]
    assert given == ["Bearer theirs", "Bearer ours", "Bearer given", None, "Bearer none"]


def test_a_project_is_named_by_two_parts(server: Server) -> None:
    project = Remote(server.url + "/traces").project("team x/shop")
    project.post("/calls/query_stats", limit=1)
    assert server.asked[-1][:3] == ("POST", "/traces/calls/query_stats", {"project_id": "team x/shop", "limit": 1})
    assert project.v2("/datasets") == "/v2/team%20x/shop/datasets"
    for name in ("", "team", "team/", "/shop", "a/b/c"):
        with pytest.raises(HeddleError, match="entity/project"):
            Remote(server.url).project(name)
