"""The outermost layer: who calls, how much they send, what it took; one pass over every request, before any route."""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heddle.auth import API_KEY_HEADERS, OPENED, check_origin, is_by_a_browser
from heddle.errors import Damaged, HeddleError, InvalidRequest, NotAuthenticated, Unavailable
from heddle.http import failures
from heddle.http.bodies import BodyReader
from heddle.http.quotas import METER, Meter
from heddle.http.routing import Route
from heddle.http.state import ServerState
from heddle.ipc.bounded import OWNER
from heddle.quotas import BYTES
from heddle.setting_kinds import ANY_ORIGIN
from heddle.settings import Settings
from heddle.store.data_folder import explain_disk
from heddle.wire import times
from heddle.wire.keys import ADDRESS
from heddle.wire.otlp import OTLP_PATHS

logger = logging.getLogger("heddle.http.middleware")
access = logging.getLogger("heddle.access")

_PREFIXES = (("/traces", "/"), ("/openai", "/v1/"))
"""What weave, and the SDKs of Groq and Azure, put in front of a path, and how the rest begins."""
_PAGE = re.compile(r"/[^/]+/(?!v2/)[^/]+/(weave|r/call)(/|$)")
"""Pages of a project; below `/v2` entities and projects may have the same names as the parts of their addresses."""
FOR_EVER = b"public, max-age=31536000, immutable"
"""The Cache-Control of an answer whose address changes with its content."""
CLIENT_GONE = 499
_BUSY = 429
MULTIPART_SLACK = 64 * 1024
_ARCHIVES = "/archives/import"
_FROM_DIGESTS = "/table/create_from_digests"
_UPLOADS = frozenset(("/file/create", "/files/create"))
_LOGINS = frozenset(("/_ui/session", "/_ui/sign_in"))
_MAX_LOGIN_BODY = 16 * 1024
_STRIPPED = b"x-forwarded-prefix"
_CLOSE = (b"connection", b"close")
_COMMON = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
_NOT_STORED = (b"cache-control", b"no-store")
_NOT_SHOWN = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""Of answers that are no page: a browser that is led to one shows and runs nothing of it."""


class HotRoutes:
    """The routes of the write path, found by their paths alone and served without the layers of the framework."""

    def __init__(self, routes: Iterable[Route]) -> None:
        found = [route for route in routes if route.is_hot]
        self._plain = {route.path: route for route in found if "{" not in route.path}
        self._others = [route for route in found if "{" in route.path]

    def find(self, scope: Scope) -> ASGIApp | None:
        """The application of the route that serves a request, which the scope names then; None for any other route."""
        path: str = scope["path"]
        route, parts = self._plain.get(path), {}
        if route is None:
            for other in self._others:
                if match := other.path_regex.match(path):
                    route, parts = other, match.groupdict()
                    break
        if route is None or not route.is_direct or scope["method"] not in (route.methods or ()):
            return None
        scope["path_params"], scope["route"] = parts, route
        return route.app


class RequestMiddleware:
    """ASGI middleware around the whole application; finds its ServerState at `app.state.services`."""

    def __init__(self, app: ASGIApp, hot: HotRoutes) -> None:
        self._app = app
        self._hot = hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except HeddleError as error:
            failures.forget_frames(error)
            await exchange.fail(failures.render(error, exchange.scope))
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_GONE
        except Exception as error:
            told = {"request_id": exchange.request_id}
            if known := explain_disk(error):
                logger.warning("request %s failed: %s", exchange.request_id, error, extra=told)
                failures.forget_frames(error)
                await exchange.fail(failures.render(known, exchange.scope))
                return
            if exchange.status and isinstance(error.__cause__, HeddleError):
                # Starlette wraps what ends a stream that has begun; the client sees that it is incomplete.
                failures.forget_frames(error.__cause__)
                logger.warning(
                    "request %s was interrupted: %s", exchange.request_id, error.__cause__.reason, extra=told
                )
                return
            if damage := await exchange.state.store.find_damage():
                logger.error(
                    "request %s failed because stored data is damaged (%s): %r",
                    exchange.request_id,
                    damage,
                    error,
                    extra=told,
                )
                await exchange.fail(failures.render(Damaged(damage), exchange.scope))
                return
            # A fault of ours: the log gets the traceback, the client an id to ask for.
            logger.exception(
                "request %s failed: %s %s", exchange.request_id, scope["method"], scope["path"], extra=told
            )
            await exchange.fail(failures.unexpected(exchange.request_id, exchange.scope["path"]))
        finally:
            exchange.finish()

    async def _serve(self, exchange: "_Exchange") -> None:
        state, scope, headers = exchange.state, exchange.scope, exchange.headers
        if state.stopping:
            raise Unavailable("The server is stopping", retry_after=2)
        if len(headers) < len(scope["headers"]) and [name for name, _ in scope["headers"]].count(b"host") > 1:
            raise InvalidRequest("A request must have exactly one Host header")
        preflight = answer_preflight(scope["method"], headers, state.settings)
        if preflight is not None:
            await preflight(scope, exchange.receive, exchange.send)
            return
        check_origin(scope["method"], headers, state.settings)
        ADDRESS.set(scope["client"][0] if scope.get("client") else "")
        try:
            scope["heddle.caller"] = await state.authenticator.authenticate(headers, scope["method"])
            OWNER.set(scope["heddle.caller"].owner)
        except NotAuthenticated as problem:
            if not API_KEY_HEADERS.isdisjoint(headers):
                state.tally.count("key.refused", "", problem.reason)
            # Nothing is read from a stranger, but what logs one in.
            if exchange.has_body and scope["path"] not in _LOGINS:
                raise
            scope["heddle.caller_problem"] = problem
        exchange.prepare_body()
        if state.quotas.is_on:
            exchange.begin_counting()
        app = self._hot.find(scope)
        if app is not None and exchange.meter is not None:
            exchange.meter.begin_request(scope, scope["route"].group)
        await (app or self._app)(scope, exchange.receive, exchange.send)


class RootPath:
    """An ASGI application that is shown below a path, which the proxy in front may take off or leave on.

    One that takes it off sends X-Forwarded-Prefix where what remains may begin with the same path again.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if all(name != _STRIPPED for name, _ in scope["headers"]):
            scope = strip_prefix(scope, self._root_path)
        await self._app(scope, receive, send)


def client_prefix(scope: Scope) -> str:
    """What a client put in front of the path of a route; empty for most, and for pages of projects."""
    path: str = scope["path"]
    if scope["method"] in ("GET", "HEAD") and _PAGE.match(path):
        return ""
    return next((prefix for prefix, rest in _PREFIXES if f"{path}/".startswith(prefix + rest)), "")


def strip_prefix(scope: Scope, prefix: str) -> Scope:
    """The request as one for the rest of its path; unchanged where the path lies elsewhere."""
    path: str = scope["path"]
    if not f"{path}/".startswith(f"{prefix}/"):
        return scope
    rest, raw_path = path[len(prefix) :] or "/", scope.get("raw_path") or b""
    is_plain = raw_path.startswith(prefix.encode())
    return {**scope, "path": rest, "raw_path": raw_path[len(prefix) :] or b"/" if is_plain else quote(rest).encode()}


def body_limit(path: str, settings: Settings) -> tuple[str, int, int]:
    """Which setting bounds the body of a path, its value, and the bytes that are allowed on the wire."""
    if path in _LOGINS:
        return "of a login", _MAX_LOGIN_BODY, _MAX_LOGIN_BODY
    if path in _UPLOADS:
        return "max_file", settings.max_file, settings.max_file + MULTIPART_SLACK
    if path == _ARCHIVES:
        return "max_archive", settings.max_archive, settings.max_archive + MULTIPART_SLACK
    if path == _FROM_DIGESTS:
        return "max_table_body", settings.max_table_body, settings.max_table_body
    if path in OTLP_PATHS:
        return "max_trace_body", settings.max_trace_body, settings.max_trace_body
    if path.startswith(("/v1/preview/", "/api/v1/")):
        return "max_training_body", settings.max_training_body, settings.max_training_body
    if path.startswith(("/v1/", "/tokenize", "/detokenize")):
        return "max_chat_body", settings.max_chat_body, settings.max_chat_body
    return "max_trace_body", settings.max_trace_body, settings.max_trace_body


class _Exchange:
    """One request and its answer: counts both, bounds the first, labels the second."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = time.perf_counter()
        self.state: ServerState = scope["app"].state.services
        self.method: str = scope["method"]
        self.is_head = self.method == "HEAD"
        if prefix := client_prefix(scope):
            scope = strip_prefix(scope, prefix)
        # Routes answer it as GET; the server that sends the answer keeps its own scope.
        self.scope = scope = {**scope, "method": "GET"} if self.is_head else scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = _client_request_id(self.headers.get(b"x-request-id")) or times.uuid7()
        scope["heddle.request_id"] = self.request_id
        length = self.headers.get(b"content-length", b"0")
        self.has_body = length != b"0" or b"transfer-encoding" in self.headers
        self.sent = self.status = 0
        self.body: BodyReader | None = None
        self.meter: Meter | None = None
        self.receive = self._receive = receive
        self._send = send

    def prepare_body(self) -> None:
        """Refuse a body that says it is too large or has an encoding that is not known; nothing of it is read yet."""
        scope, given = self.scope, self.headers.get(b"content-encoding", b"identity")
        if len(self.headers) < len(scope["headers"]):
            # Those of several lines are stacked, too.
            given = b", ".join(value for name, value in scope["headers"] if name == b"content-encoding") or given
        encoding = given.strip().lower()
        is_encoded = encoding not in (b"", b"identity")
        client = scope.get("client")
        self.body = BodyReader(
            self._receive,
            body_limit(scope["path"], self.state.settings),
            self.state.settings,
            self.state.unfinished_bodies,
            client[0] if client else "",
            encoding if is_encoded else None,
        )
        scope["heddle.body"] = self.body
        self.receive = self.body.receive
        length = self.headers.get(b"content-length", b"")
        if length.isdigit():
            self.body.check_length(int(length))
        if is_encoded:
            dropped = (b"content-encoding", b"content-length")
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in dropped]

    def begin_counting(self) -> None:
        """Count what the request brings, once its route is known."""
        caller, body = self.scope.get("heddle.caller"), self.body
        if caller is None or body is None:
            return
        length = self.headers.get(b"content-length", b"")
        meter = self.state.quotas.begin(caller.key_id, int(length) if length.isdigit() else 0)
        if not length.isdigit():
            body.arriving = partial(meter.add, BYTES)
        self.scope[METER], self.meter = meter, meter
        OPENED.set(meter.open)

    async def send(self, message: Message) -> None:
        """Pass one part of the answer on, with the request's id among the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._add_headers(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if self.is_head:
                await self._send({"type": "http.response.body", "body": b""})
                if message.get("more_body", False):
                    raise ClientDisconnect  # nobody reads the rest
                return
            self.sent += len(message.get("body", b""))
        await self._send(message)

    def _add_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of an answer, with those that every answer has."""
        given = dict(headers)
        kept = list(headers)
        if self.status == 401 and is_by_a_browser(self.headers):
            # The browser would ask for a password, and send it ever after, whichever page makes it ask.
            kept = [pair for pair in kept if pair[0] != b"www-authenticate"]
        if b"location" in given:
            root = self.state.settings.root_path.rstrip("/").encode()
            kept = [(name, _strip_host(value, root) if name == b"location" else value) for name, value in kept]
        kept += [pair for pair in _COMMON if pair[0] not in given]
        kept += cors_headers(self.headers, self.state.settings)
        if b"cache-control" not in given:
            kept.append(_NOT_STORED)
        # What a browser keeps for ever belongs to no request.
        if given.get(b"cache-control") != FOR_EVER:
            kept.append((b"x-request-id", self.request_id.encode()))
            if b"anthropic-version" in self.headers:
                kept.append((b"request-id", self.request_id.encode()))
        if b"content-security-policy" not in given:
            kept.append(_NOT_SHOWN)
        unread = self.has_body and (self.body is None or not self.body.is_complete)
        if self.state.draining or self.status == 401 or unread:
            kept.append(_CLOSE)
        return kept

    async def fail(self, response: Any) -> None:
        """Answer with a failure; one that had begun stays incomplete, which the client sees."""
        if self.status == 0:
            await response(self.scope, self._receive, self.send)

    def finish(self) -> None:
        """Count the exchange, and log it where the settings ask for that."""
        seconds = time.perf_counter() - self.started
        received = 0
        if self.meter is not None:
            self.meter.close()
        if self.body is not None:
            self.body.close()
            received = self.body.received
            del self.scope["heddle.body"]  # it leads to uvicorn's cycle, which keeps the scope
        method, settings = self.method, self.state.settings
        route, status = self.scope.get("route"), self.status or CLIENT_GONE
        self.state.metrics.count_answer(route, method, status, seconds, received, self.sent)
        if status == _BUSY:
            user = getattr(self.scope.get("heddle.caller"), "user", "")
            self.state.tally.count("limit.refused", user, f"{method} {getattr(route, 'path', '')}")
        if self.state.span_export.is_on:
            traceparent = self.headers.get(b"traceparent", b"")
            self.state.span_export.add(
                route,
                method,
                status,
                seconds,
                traceparent,
                {
                    "http.request.body.size": received,
                    "http.response.body.size": self.sent,
                    "heddle.request_id": self.request_id,
                },
            )
        if settings.access_log == "all" or (settings.access_log == "errors" and self.status >= 400):
            caller = self.scope.get("heddle.caller")
            reason = str(self.scope.get("heddle.refusal", ""))[:300]
            fields = {
                "method": method,
                "path": self.scope["path"][:300],
                "status": self.status,
                "milliseconds": round(seconds * 1000, 1),
                "received": received,
                "sent": self.sent,
                "user": getattr(caller, "user", "-"),
                "request_id": self.request_id,
                "reason": reason,
            }
            line = "%s %r %d %.1fms in=%d out=%d user=%s id=%s" + (" %r" if reason else "%s")
            access.info(line, *fields.values(), extra=fields)


def _strip_host(location: bytes, root: bytes) -> bytes:
    """A redirect within this server, which does not repeat the name that the client says it was reached by."""
    scheme, separator, rest = location.partition(b"://")
    return root + b"/" + rest.partition(b"/")[2] if separator and scheme in (b"http", b"https") else location


def _client_request_id(value: bytes | None) -> str | None:
    """The client's own request id, where it is short and plain."""
    text = value.decode("latin-1") if value and len(value) <= 128 else ""
    return text if text.isascii() and text.isprintable() and text.strip() else None


_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SECONDS = "600"
"""How long a browser remembers the answer of a preflight."""
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")


def cors_headers(headers: Mapping[bytes, bytes], settings: Settings) -> list[tuple[bytes, bytes]]:
    """What each answer to a page of an allowed origin carries; nothing for all others."""
    origin = headers.get(b"origin")
    if origin is None or settings.cors_origins == "none":
        return []
    if settings.cors_origins == ANY_ORIGIN:
        return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
    if origin not in settings.named_origins:
        return []
    return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*"), (b"vary", b"Origin")]


def answer_preflight(method: str, headers: Mapping[bytes, bytes], settings: Settings) -> Response | None:
    """The answer to a browser that asks before a page's request; None for what is none, or of an origin not allowed."""
    if method != "OPTIONS" or b"access-control-request-method" not in headers:
        return None
    if not cors_headers(headers, settings):
        return None
    allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": _SECONDS}
    names = headers.get(b"access-control-request-headers", b"")
    if names and _NAMES.fullmatch(names):
        allowed["Access-Control-Allow-Headers"] = names.decode("latin-1")
    if headers.get(b"access-control-request-private-network") == b"true":
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=allowed)
