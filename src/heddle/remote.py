"""The API of a running server, for command line tools: JSON over kept connections, with one key."""

import json
import os
import ssl
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from heddle.errors import HeddleError
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

if TYPE_CHECKING:
    import httpx

DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE = "HEDDLE_SERVER"
KEY_VARIABLES = ("HEDDLE_API_KEY", "WANDB_API_KEY")
PROJECT_VARIABLE = "HEDDLE_PROJECT"
_IDLE_SECONDS = 2.0
"""A connection that rested longer may have been closed by the other side, so a new one is opened."""
_TIMEOUT_SECONDS = 120.0
MOST_BYTES = 512 * 1024 * 1024
"""Of one JSON answer, and of one line of a stream: as much as a source that is not hostile may need."""
_ERROR_BYTES = 1_000_000
_MOST_DEPTH = jsontext.MAX_DEPTH + 100


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
        import httpx

        self.server = (server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER).rstrip("/")
        given = [os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)] if from_environment else []
        self._key = _check_key(key or next(iter(given), None))
        self._basic_user = basic_user
        # As other programs of this machine: by its own certificates, and past no proxy.
        verify: ssl.SSLContext | bool = (
            ssl.create_default_context() if _check_address(self.server).scheme == "https" else False
        )
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
        self._client = httpx.Client(timeout=timeout, limits=limits, verify=verify, trust_env=False)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer of a GET; query values that are None are left out, lists repeat their name."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._json("GET", path + ("?" + urlencode(given, doseq=True) if given else ""), None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer of a POST."""
        return self._json("POST", path, body)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer of a PUT."""
        return self._json("PUT", path, body)

    def upload(self, path: str, file: IO[bytes], **query: Any) -> Any:
        """The JSON answer of a POST of a form with a file, which is sent as it is read."""
        return self._json("POST", path + ("?" + urlencode(query, doseq=True) if query else ""), None, file)

    def text(self, path: str) -> str:
        """The answer of a GET as it is."""
        with self._send("GET", path, None) as answer:
            text = bytearray()
            for part in answer.iter_raw():
                text += part
                self._check_size(len(text), path)
            return text.decode("utf-8", "replace")

    def lines(self, path: str, body: Mapping[str, Any] | None = None) -> Generator[Any]:
        """The values of a line stream, as they come; a GET without a body."""
        with self._send("GET" if body is None else "POST", path, body) as answer:
            splitter = jsontext.LineSplitter()
            for part in answer.iter_raw():
                for line in splitter.feed(part):
                    self._check_size(len(line), path)
                    if line.strip():
                        yield self._parse(line, path)
                self._check_size(splitter.pending, path)
            if rest := splitter.end().strip():
                yield self._parse(rest, path)

    def save(self, path: str, body: Mapping[str, Any], target: IO[bytes]) -> None:
        """Write the answer of a POST, whatever it holds, to a file."""
        with self._send("POST", path, body) as answer:
            for part in answer.iter_raw():
                target.write(part)

    def project(self, project_id: str) -> "Project":
        """The API for one `entity/project`; raises HeddleError for another form."""
        entity, _, name = project_id.partition("/")
        if not entity or not name or "/" in name:
            raise HeddleError(f"a project must be entity/project, got {project_id!r}")
        return Project(self, project_id)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None, file: IO[bytes] | None = None) -> Any:
        with self._send(method, path, body, file) as answer:
            text = bytearray()
            for part in answer.iter_raw():
                text += part
                self._check_size(len(text), path)
            return self._parse(bytes(text), path)

    def _check_size(self, size: int, path: str) -> None:
        if size > MOST_BYTES:
            raise HeddleError(f"{self.server}{path} returned more than {MOST_BYTES} bytes, the maximum")

    def _parse(self, text: bytes, path: str) -> Any:
        try:
            # Stored values are as deep as `loads` allows, and an answer lies around them.
            return jsontext.loads(text, max_depth=_MOST_DEPTH)
        except HeddleError:
            raise Unreachable(f"{self.server}{path} did not return JSON; check the address") from None

    @contextmanager
    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, file: IO[bytes] | None = None
    ) -> Iterator["httpx.Response"]:
        """An answer of status 200, whose connection goes back when it was read to its end."""
        import httpx

        headers = self._headers(path)
        if file is None:
            sent: Any = {"content": None if body is None else json.dumps(body).encode()}
        else:
            del headers["Content-Type"]  # that of the form names what its parts are divided by
            sent = {"files": {"file": file}}
        try:
            with self._client.stream(method, self.server + path, headers=headers, **sent) as answer:
                if answer.status_code != 200:
                    raise self._refusal(answer, path)
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"no answer from {self.server} ({why}); check that the server is running there") from None

    def _headers(self, path: str) -> dict[str, str]:
        known = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "heddle"}
        # The inference routes want a bearer token also where no key is checked.
        key = self._key or ("none" if path.startswith("/v1/") else None)
        if key and self._basic_user is not None:
            return known | {"Authorization": f"Basic {b64encode(f'{self._basic_user}:{key}'.encode()).decode()}"}
        return known | ({"Authorization": f"Bearer {key}"} if key else {})

    def _refusal(self, answer: "httpx.Response", path: str) -> Refused:
        text = b""
        for part in answer.iter_raw():
            text += part
            if len(text) > _ERROR_BYTES:
                break
        told = text.decode("utf-8", "replace")
        reason = _reason(told) or told[:300] or answer.reason_phrase
        if answer.status_code == 401:
            reason += f"; give the key with --key or {KEY_VARIABLES[0]}"
        return Refused(f"{self.server}{path} returned {answer.status_code}: {reason}", answer.status_code)


def _check_address(address: str) -> SplitResult:
    """The parts of an address; raises HeddleError for one that cannot be a server's."""
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise HeddleError(f"the address of the server must be like {DEFAULT_SERVER}, got {address!r}")
    return parts


def _check_key(key: str | None) -> str | None:
    """The key; raises HeddleError for one that no header can hold, without repeating it."""
    if key and not (key.isascii() and key.isprintable()):
        raise HeddleError("the API key has characters that are not allowed, such as a line break or a non-ASCII letter")
    return key


def _reason(text: str) -> str | None:
    """What an error body says, in any of the forms of the API."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
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
class Place:
    """Which project of which server a command is about, as it was typed."""

    project: str | None
    server: str | None
    key: str | None

    def open(self) -> "Project":
        """The API for the project; raises HeddleError where none is named."""
        name = self.project or os.environ.get(PROJECT_VARIABLE)
        if not name:
            raise HeddleError(f"set the project: --project entity/project, or {PROJECT_VARIABLE}")
        return Remote(self.server, self.key).project(name)


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
