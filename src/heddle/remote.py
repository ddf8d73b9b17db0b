"""The API of a running server, for command line tools: JSON over kept connections, with one key."""

import http.client
import json
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from heddle.errors import HeddleError
from heddle.wire.jsontypes import Json

DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE = "HEDDLE_SERVER"
KEY_VARIABLES = ("HEDDLE_API_KEY", "WANDB_API_KEY")
PROJECT_VARIABLE = "HEDDLE_PROJECT"
_IDLE_SECONDS = 2.0
"""A connection that rested longer may have been closed by the other side, so a new one is opened."""
_TIMEOUT_SECONDS = 120.0
MOST_BYTES = 512 * 1024 * 1024
"""Of one JSON answer, and of one line of a stream: as much as a source that is not hostile may need."""


class Unreachable(HeddleError):
    """No answer came: no server, no route to it, or something that does not speak HTTP."""


class Refused(HeddleError):
    """The server answered something else than success; `answered` is the HTTP status."""

    def __init__(self, reason: str, answered: int) -> None:
        super().__init__(reason)
        self.answered = answered


class Remote:
    """One server and one key; threads may share it. Every failure is a HeddleError with one line to show."""

    def __init__(
        self,
        server: str | None = None,
        key: str | None = None,
        timeout: float = _TIMEOUT_SECONDS,
        from_environment: bool = True,
        basic_user: str | None = None,
    ) -> None:
        """Without arguments HEDDLE_SERVER and HEDDLE_API_KEY (or WANDB_API_KEY) decide; raises for a bad address.

        `from_environment` false leaves a missing key missing. With `basic_user` the key is sent as the password of
        that user, for servers that take no bearer token.
        """
        self.server = (server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER).rstrip("/")
        given = [os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)] if from_environment else []
        self._key = key or next(iter(given), None)
        self._basic_user = basic_user
        self._timeout = timeout
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._parts = _checked(self.server)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer of a GET; query values that are None are left out, lists repeat their name."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._json("GET", path + ("?" + urlencode(given, doseq=True) if given else ""), None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer of a POST."""
        return self._json("POST", path, body)

    def lines(self, path: str, body: Mapping[str, Any] | None = None) -> Generator[Any]:
        """The values of a line stream, as they come; a GET without a body."""
        with self._sent("GET" if body is None else "POST", path, body) as answer:
            while line := answer.readline(MOST_BYTES + 1):
                self._check_size(line, path)
                if line.strip():
                    yield self._parsed(line, path)

    def save(self, path: str, body: Mapping[str, Any], target: IO[bytes]) -> None:
        """Write the answer of a POST, whatever it holds, to a file."""
        with self._sent("POST", path, body) as answer:
            while chunk := answer.read(1 << 20):
                target.write(chunk)

    def project(self, project_id: str) -> "Project":
        """The API for one `entity/project`; raises HeddleError for another form."""
        entity, _, name = project_id.partition("/")
        if not entity or not name or "/" in name:
            raise HeddleError(f"a project is named entity/project, got {project_id!r}")
        return Project(self, project_id)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with self._sent(method, path, body) as answer:
            text = answer.read(MOST_BYTES + 1)
            self._check_size(text, path)
            return self._parsed(text, path)

    def _check_size(self, text: bytes, path: str) -> None:
        if len(text) > MOST_BYTES:
            raise HeddleError(f"{self.server}{path} answered more than {MOST_BYTES} bytes, which is not read")

    def _parsed(self, text: bytes, path: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Unreachable(f"{self.server}{path} answered no JSON; is this a heddle server?") from None

    @contextmanager
    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """An answer of status 200, whose connection goes back when it was read to its end."""
        connection, answer = self._connection(), None
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._parts.path + path, data, self._headers(path))
            answer = connection.getresponse()
            if answer.status != 200:
                raise self._refusal(answer, path)
            yield answer
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"no answer from {self.server} ({why}); is the server running there?") from None
        finally:
            if answer is not None and answer.isclosed() and connection.sock is not None:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < _IDLE_SECONDS:
                return connection
            connection.close()
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _headers(self, path: str) -> dict[str, str]:
        known = {"Content-Type": "application/json", "Accept": "*/*", "User-Agent": "heddle"}
        # The inference routes want a bearer token also where no key is checked.
        key = self._key or ("none" if path.startswith("/v1/") else None)
        if key and self._basic_user is not None:
            return known | {"Authorization": f"Basic {b64encode(f'{self._basic_user}:{key}'.encode()).decode()}"}
        return known | ({"Authorization": f"Bearer {key}"} if key else {})

    def _refusal(self, answer: http.client.HTTPResponse, path: str) -> Refused:
        text = answer.read(1_000_000).decode("utf-8", "replace")
        reason = _reason(text) or text[:300] or answer.reason
        if answer.status == 401:
            reason += f"; give the key with --key or {KEY_VARIABLES[0]}"
        return Refused(f"{self.server}{path} answered {answer.status}: {reason}", answer.status)


def _checked(address: str) -> SplitResult:
    """The parts of an address; raises HeddleError for one that cannot be a server's."""
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise HeddleError(f"the address of the server must look like {DEFAULT_SERVER}, got {address!r}")
    return parts


def _reason(text: str) -> str | None:
    """What an error body says, in any of the forms of the API."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    error, detail = body.get("error"), body.get("detail")
    if isinstance(detail, list):
        items = [item for item in detail if isinstance(item, dict)]
        return "; ".join(f"{'.'.join(map(str, item.get('loc', [])))}: {item.get('msg')}" for item in items)
    known = body.get("reason") or (error.get("message") if isinstance(error, dict) else error) or detail
    return str(known) if known else None


@dataclass(frozen=True, slots=True)
class Project:
    """The API for one project."""

    remote: Remote
    id: str
    """`entity/project`."""

    def post(self, path: str, **body: Any) -> Any:
        """The JSON answer of a POST whose body names the project."""
        return self.remote.post(path, {"project_id": self.id, **body})

    def lines(self, path: str, **body: Any) -> list[Json]:
        """The objects of a line stream, all of them."""
        return list(self.remote.lines(path, {"project_id": self.id, **body}))

    def v2(self, path: str) -> str:
        """A path of the project's own family of routes: `/v2/entity/project` and then `path`."""
        entity, _, name = self.id.partition("/")
        return f"/v2/{quote(entity, safe='')}/{quote(name, safe='')}{path}"
