"""The server's own requests as spans of OpenTelemetry, sent to another server; requests neither wait for it nor fail.

A span says route, status and sizes, never a path, a body or a key. Exports carry a `traceparent` that says "not
sampled", and what is not sampled is not exported: servers that export to each other make no circle.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import heddle
from heddle import aio
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.wire.otlp import PROTOBUF, decode_partial_success, write

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("heddle.http.span_export")
MOST_WAITING, MOST_SENT = 4096, 512
"""Spans that may wait, and those of one export."""
_PAUSE_SECONDS, _ANSWER_SECONDS, _LAST_SECONDS = 1.0, 10.0, 2.0
_RETRY_SECONDS = (1.0, 2.0, 4.0)
_TEMPORARY = frozenset((429, 502, 503, 504))
_PATH = "/v1/traces"
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NOT_EXPORTED = frozenset(("/health", "/ready", "/metrics"))
"""What probes and Prometheus ask all the time."""
SENT, DROPPED, FAILED = "sent", "dropped", "failed"
_SERVER, _ERROR = 2, 2
_TIME = Struct("<BQ")
Attributes = Mapping[str, str | int]


class RequestSpan(NamedTuple):
    """A span of the kind SERVER; ids in hexadecimal, instants in nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first of a trace."""
    name: str
    start: int
    end: int
    attributes: Attributes
    is_error: bool


class SpanExport:
    """Spans that wait to be sent; `count` is told what became of how many."""

    def __init__(self, settings: Settings, count: Callable[[str, int], None]) -> None:
        self.is_on = settings.otlp_export_endpoint != "none"
        self._address = settings.otlp_export_endpoint.removesuffix(_PATH) + _PATH
        self._headers = _headers(settings)
        self._resource = {
            "service.name": "heddle",
            "service.version": heddle.__version__,
            "service.instance.id": secrets.token_hex(8),
        }
        self._count = count
        self._waiting: deque[RequestSpan] = deque()
        self._news = asyncio.Event()
        self._is_ending = self._has_failed = False

    def add(self, route: Any, method: str, status: int, seconds: float, traceparent: bytes, more: Attributes) -> None:
        """Let the span of a request that has just ended wait; `more` are further attributes."""
        path = getattr(route, "path", "")
        match = _TRACEPARENT.fullmatch(traceparent)
        if path in _NOT_EXPORTED or (match is not None and not int(match[3], 16) & 1):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._count(DROPPED, 1)
            return
        end = time.time_ns()
        where = {"http.route": path} if path else {}
        self._waiting.append(
            RequestSpan(
                trace_id=match[1].decode() if match else secrets.token_hex(16),
                span_id=secrets.token_hex(8),
                parent_id=match[2].decode() if match else "",
                name=f"{method} {path}".rstrip(),
                start=end - round(seconds * 1e9),
                end=end,
                attributes={"http.request.method": method, "http.response.status_code": status, **where, **more},
                is_error=status >= 500,
            )
        )
        if len(self._waiting) >= MOST_SENT:
            self._news.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send what waits, again and again, and at the end what is left."""
        if not self.is_on:
            yield
            return
        for outcome in (SENT, DROPPED, FAILED):
            self._count(outcome, 0)
        # Only who exports pays for the client.
        import httpx

        verify = ssl.create_default_context() if self._address.startswith("https:") else False
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS, verify=verify, trust_env=False) as client:
            task = asyncio.create_task(self._run(client))
            try:
                yield
            finally:
                self._is_ending = True
                self._news.set()
                if not (await asyncio.wait([task], timeout=_LAST_SECONDS))[0]:
                    task.cancel()
                    await asyncio.wait([task])
                self._count(DROPPED, len(self._waiting))

    async def _run(self, client: "httpx.AsyncClient") -> None:
        while self._waiting or not self._is_ending:
            await aio.wait_at_most(_PAUSE_SECONDS, self._news.wait())
            if not self._is_ending:
                self._news.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MOST_SENT, len(self._waiting)))]
                lost = len(batch)
                try:
                    lost = await self._send(client, batch)
                finally:
                    self._count(FAILED, lost)
                    self._count(SENT, len(batch) - lost)

    async def _send(self, client: "httpx.AsyncClient", batch: list[RequestSpan]) -> int:
        """Send spans, again where that may help; returns how many were not taken."""
        import httpx

        body = _encode_spans(self._resource, "heddle", batch)
        trace, span = secrets.token_hex(16), secrets.token_hex(8)
        headers = {**self._headers, "content-type": PROTOBUF, "traceparent": f"00-{trace}-{span}-00"}
        for pause in (*_RETRY_SECONDS, None):
            try:
                answer = await client.post(self._address, content=body, headers=headers)
                status, problem = answer.status_code, f"it returned {answer.status_code}"
            except httpx.HTTPError as error:
                status, problem = 503, str(error) or type(error).__name__
            if status == 200:
                lost, problem = decode_partial_success(answer.content)
                self._tell(problem if lost else "")
                return min(lost, len(batch))
            if pause is None or self._is_ending or status not in _TEMPORARY:
                break
            await asyncio.sleep(pause)
        self._tell(problem)
        return len(batch)

    def _tell(self, problem: str) -> None:
        """Log the first of a row of failures; an empty text ends the row."""
        if problem and not self._has_failed:
            logger.warning("spans of requests cannot be sent to otlp_export_endpoint: %s", problem[:500])
        self._has_failed = bool(problem)


def _headers(settings: Settings) -> dict[str, str]:
    if settings.otlp_export_headers == "none":
        return {}
    pairs = (pair.partition("=") for pair in settings.otlp_export_headers.split(","))
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def check_endpoint(settings: Settings, port: int) -> None:
    """Raise HeddleError where the endpoint is this server itself, which listens on a port."""
    endpoint, public = urlsplit(settings.otlp_export_endpoint), urlsplit(settings.public_url)
    is_public = bool(public.hostname) and (endpoint.hostname, _port(endpoint)) == (public.hostname, _port(public))
    if is_public or (_port(endpoint) == port and _is_own(settings.host, endpoint.hostname or "")):
        raise HeddleError(
            f"otlp_export_endpoint = {settings.otlp_export_endpoint!r} is this server itself; set it to another server"
        )


def _port(address: SplitResult) -> int:
    return address.port or (443 if address.scheme == "https" else 80)


def _is_own(listening: str, host: str) -> bool:
    """True where a server that listens on one host is reached by another name."""
    own = _addresses(listening)
    everywhere = any(ipaddress.ip_address(address).is_unspecified for address in own)
    return any(address in own or (everywhere and _is_local(address)) for address in _addresses(host))


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _is_local(address: str) -> bool:
    """True for an address of this machine: others cannot be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _encode_spans(resource: Attributes, scope: str, spans: Iterable[RequestSpan]) -> bytes:
    """An ExportTraceServiceRequest of one resource."""
    scoped = write(1, write(1, scope)) + b"".join(write(2, _encode_span(span)) for span in spans)
    return write(1, write(1, _pairs(1, resource)) + write(2, scoped))


def _encode_span(span: RequestSpan) -> bytes:
    parent = write(4, bytes.fromhex(span.parent_id)) if span.parent_id else b""
    return b"".join((
        write(1, bytes.fromhex(span.trace_id)),
        write(2, bytes.fromhex(span.span_id)),
        parent,
        write(5, span.name),
        write(6, _SERVER),
        _TIME.pack(7 << 3 | 1, span.start),
        _TIME.pack(8 << 3 | 1, span.end),
        _pairs(9, span.attributes),
        write(15, write(3, _ERROR)) if span.is_error else b"",
    ))  # fmt: skip


def _pairs(field: int, attributes: Attributes) -> bytes:
    """Attributes as KeyValue messages; numbers are not negative."""
    values = {key: write(3 if isinstance(value, int) else 1, value) for key, value in attributes.items()}
    return b"".join(write(field, write(1, key) + write(2, value)) for key, value in values.items())
