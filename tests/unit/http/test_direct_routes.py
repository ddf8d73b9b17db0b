"""Routes that need none of the framework's layers answer as those that the framework serves."""

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from heddle.auth import Caller
from heddle.http import failures
from heddle.http.routing import Reader, RequestModel, Route, answer, group
from heddle.settings import Settings
from heddle.wire.keys import Grant
from heddle.wire.keys import Scope as KeyScope

JSON = "application/json"


class Inner(RequestModel):
    """A part of a body."""

    number: int


class Body(RequestModel):
    """A body with a part, a list and a field that may be missing."""

    project_id: str
    inner: Inner | None = None
    numbers: list[int] | None = None


def told(body: Body, caller: Caller) -> Response:
    """What an endpoint was given."""
    return answer({"body": body.model_dump(), "user": caller.user})


async def direct(body: Body, caller: Reader) -> Response:
    """An endpoint of a body and services."""
    return told(body, caller)


async def framed(body: Body, caller: Reader, unknown: int = 0) -> Response:
    """The same with what only the framework reads."""
    return told(body, caller)


class Recognised:
    """The application behind what recognises callers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of a known caller."""
        scope["heddle.caller"] = Caller("ada", (Grant("", frozenset({KeyScope.READ})),))
        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def client() -> TestClient:
    """A client of both routes."""
    app, router = FastAPI(strict_content_type=False), group("Tests")
    app.state.services = SimpleNamespace(settings=Settings())
    for endpoint in (direct, framed):
        router.post(f"/{endpoint.__name__}", response_model=None)(endpoint)
    app.router.routes.extend(router.routes)
    failures.install(app)
    found = TestClient(Recognised(app))
    for endpoint in (direct, framed):
        assert post(found, f"/{endpoint.__name__}", GOOD, JSON)[0] == 200
    assert [route.is_direct for route in router.routes if isinstance(route, Route)] == [True, False]
    return found


def post(client: TestClient, path: str, body: bytes, kind: str | None) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    found = client.post(path, content=body, headers={} if kind is None else {"content-type": kind})
    return found.status_code, found.json()


GOOD = b'{"project_id": "a/b", "inner": {"number": 1}, "ignored": 2}'
BODIES = {
    "good": GOOD,
    "empty": b"",
    "list": b"[]",
    "text": b'"a"',
    "null": b"null",
    "cut off": GOOD[:-1],
    "no UTF-8": b'{"project_id": "\xff"}',
    "too deep": b"[" * 300 + b"]" * 300,
    "wrong fields": b'{"project_id": 1, "inner": 5, "numbers": ["x", 2, "y"]}',
    "a field missing": b'{"inner": {}}',
    "large and wrong": b'{"project_id": "%s", "numbers": "none"}' % (b"x" * 100_000),
}
KINDS = (
    JSON,
    None,
    "",
    "application/json; charset=utf-8",
    "application/x+json",
    "APPLICATION/JSON",
    "text/plain",
    "json",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_is_read_as_the_framework_reads_it(client: TestClient, body: bytes, kind: str | None) -> None:
    status, content = post(client, "/direct", body, kind)
    assert (status, content) == post(client, "/framed", body, kind)
    assert status == 200 if body == GOOD and kind not in ("text/plain", "json") else status in (400, 422), content
