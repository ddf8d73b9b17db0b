"""The outermost layer: who calls, how much they send, what it took; one pass over every request, before any route."""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heddle import failures
from heddle.decoding import Decoder
from heddle.errors import Forbidden, HeddleError, NotAuthenticated, TooLarge, Unavailable
from heddle.settings import Settings
from heddle.wire import ids

if TYPE_CHECKING:
    from heddle.house import House

logger = logging.getLogger("heddle.edge")
access = logging.getLogger("heddle.access")

TRACES = "/traces"
FOR_EVER = b"public, max-age=31536000, immutable"
"""The Cache-Control of an answer whose address changes with its content."""
CLIENT_GONE = 499
MULTIPART_SLACK = 64 * 1024
_FROM_DIGESTS = "/table/create_from_digests"
_UPLOADS = frozenset(("/file/create", "/files/create"))
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))


class Edge:
    """ASGI middleware around the whole application; finds the House at `app.state.house`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except HeddleError as error:
            await exchange.fail(failures.render(error, exchange.scope["path"]))
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_GONE
        except Exception:  # a fault of ours: the log gets the traceback, the client an id to ask for
            logger.exception("request %s failed: %s %s", exchange.request_id, scope["method"], scope["path"])
            await exchange.fail(failures.unexpected(exchange.request_id, exchange.scope["path"]))
        finally:
            exchange.finish()

    async def _serve(self, exchange: "_Exchange") -> None:
        house, scope, headers = exchange.house, exchange.scope, exchange.headers
        if house.stopping:
            raise Unavailable("The server is stopping", retry_after=2)
        if not house.gate.needs_key:
            refuse_foreign_pages(scope["method"], headers, house.settings)
        exchange.limit_body()
        try:
            scope["heddle.caller"] = await house.gate.recognise(headers, scope["method"])
        except NotAuthenticated as problem:
            scope["heddle.caller_problem"] = problem
        await self._app(scope, exchange.receive, exchange.send)


def refuse_foreign_pages(method: str, headers: Mapping[bytes, bytes], settings: Settings) -> None:
    """Raise Forbidden when a web page of another origin is behind a request that needs no key.

    Without keys a page in a browser on this machine could otherwise write here, or read by a host name of its own that
    leads to this machine.
    """
    if not _by_a_browser(headers):
        return
    origin = headers.get(b"origin")
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name not in _LOOPBACK_NAMES and not name.endswith(".localhost") and name != settings.host.lower():
        raise Forbidden(f"A browser reached this server as {name[:100]!r}; without keys only loopback names are served")
    if origin is not None and method not in _SAFE_METHODS:
        origin_host = origin.decode("latin-1").lower().partition("://")[2]
        if origin_host != host:
            raise Forbidden(
                "A page of another origin may not write here; start the server with --auth on and use a key"
            )


def _by_a_browser(headers: Mapping[bytes, bytes]) -> bool:
    # What a page reads under a name of its own has neither of the first two, as plain HTTP is sent no `Sec-Fetch-…`;
    # runtimes that send a language beside `Sec-Fetch-Mode` are no browsers.
    if b"origin" in headers or b"sec-fetch-site" in headers:
        return True
    has_language = b"accept-language" in headers and b"sec-fetch-mode" not in headers
    return has_language or headers.get(b"user-agent", b"").startswith(b"Mozilla/")


def body_limit(path: str, settings: Settings) -> tuple[str, int, int]:
    """Which setting bounds the body of a path, its value, and the bytes that are allowed on the wire."""
    if path in _UPLOADS:
        return "max_file", settings.max_file, settings.max_file + MULTIPART_SLACK
    if path == _FROM_DIGESTS:
        return "max_table_body", settings.max_table_body, settings.max_table_body
    if path.startswith("/v1/preview/"):
        return "max_training_body", settings.max_training_body, settings.max_training_body
    if path.startswith("/v1/"):
        return "max_chat_body", settings.max_chat_body, settings.max_chat_body
    return "max_trace_body", settings.max_trace_body, settings.max_trace_body


class _Exchange:
    """One request and its answer: counts both, bounds the first, labels the second."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = time.perf_counter()
        self.house: House = scope["app"].state.house
        path: str = scope["path"]
        if path.startswith(TRACES) and (len(path) == len(TRACES) or path[len(TRACES)] == "/"):
            raw_path = scope.get("raw_path", b"")[len(TRACES) :]
            scope = {**scope, "path": path[len(TRACES) :] or "/", "raw_path": raw_path or b"/"}
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = _given_id(self.headers.get(b"x-request-id")) or ids.uuid7()
        scope["heddle.request_id"] = self.request_id
        self.limit = body_limit(self.scope["path"], self.house.settings)
        self.received = self.sent = self.status = 0
        self._decoder: Decoder | None = None
        self._receive = receive
        self._send = send

    def limit_body(self) -> None:
        """Refuse a body that says it is too large, and prepare to decode a compressed one."""
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limit[2]:
            raise self._too_large()
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            self._decoder = Decoder(encoding)
            dropped = (b"content-encoding", b"content-length")
            self.scope["headers"] = [pair for pair in self.scope["headers"] if pair[0] not in dropped]

    def _too_large(self) -> TooLarge:
        name, value, _ = self.limit
        return TooLarge(f"Request too large: over the limit {name} = {value} bytes")

    async def receive(self) -> Message:
        """The next part of the body, decoded; raises TooLarge beyond the limit."""
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            if self._decoder is not None:
                # One byte more than is allowed is asked for, so that a small bomb stays small here.
                body = self._decoder.decode(
                    body, self.limit[2] - self.received + 1, not message.get("more_body", False)
                )
                message = {**message, "body": body}
            self.received += len(body)
            if self.received > self.limit[2]:
                raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Pass one part of the answer on, with the request's id among the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            sent = message.get("headers", ())
            if self.status == 401 and _by_a_page(self.headers):
                # The browser would ask for a password in a window of its own; the page asks for a key.
                sent = [pair for pair in sent if pair[0] != b"www-authenticate"]
            # What a browser keeps for ever belongs to no request.
            named = () if (b"cache-control", FOR_EVER) in sent else ((b"x-request-id", self.request_id.encode()),)
            ending = ((b"connection", b"close"),) if self.house.draining else ()
            message["headers"] = [*sent, *named, *ending]
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
        await self._send(message)

    async def fail(self, response: Any) -> None:
        """Answer with a failure; one that had begun stays incomplete, which the client sees."""
        if self.status == 0:
            await response(self.scope, self._receive, self.send)

    def finish(self) -> None:
        """Count the exchange, and log it where the settings ask for that."""
        seconds = time.perf_counter() - self.started
        method, settings = self.scope["method"], self.house.settings
        template = getattr(self.scope.get("route"), "path", "(none)")
        self.house.metrics.answered(template, method, self.status or CLIENT_GONE, seconds, self.received, self.sent)
        if settings.access_log == "all" or (settings.access_log == "errors" and self.status >= 400):
            caller = self.scope.get("heddle.caller")
            fields = (method, self.scope["path"][:300], self.status, seconds * 1000, self.received, self.sent)
            access.info(
                "%s %r %d %.1fms in=%d out=%d user=%s id=%s", *fields, getattr(caller, "user", "-"), self.request_id
            )


def _by_a_page(headers: Mapping[bytes, bytes]) -> bool:
    is_fetched = headers.get(b"sec-fetch-mode", b"navigate") != b"navigate"
    return is_fetched or b"x-heddle-ui" in headers or headers.get(b"accept") == b"text/event-stream"


def _given_id(value: bytes | None) -> str | None:
    """The client's own request id, where it is short and plain."""
    text = value.decode("latin-1") if value and len(value) <= 128 else ""
    return text if text.isascii() and text.isprintable() and text.strip() else None
