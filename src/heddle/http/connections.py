"""What uvicorn leaves open about connections: how many there are, how long a head may take, how large it may be, and
that an answer reaches a client that is still sending."""

import asyncio
import http
import ipaddress
import logging
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heddle.settings import Settings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_FRAME_HEAD = 9
_LONGEST_FRAME = 16_384
_MOST_BYTES = 65_536
_UNIMPLEMENTED = b"12"
_STATUS_200 = b"\x88"


def describe_grpc(grpc_port: int) -> str:
    """What a client can do instead; 0 is no port for gRPC."""
    instead = f"gRPC to port {grpc_port}" if grpc_port else "gRPC after the server got --otlp-grpc-port 4317"
    return f"this port speaks HTTP/1.1; send OTLP with OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or {instead}"


class Http2Refusal:
    """Reads the frames of a client up to its first request, which is answered with a reason."""

    def __init__(self, reason: str) -> None:
        self.is_done = False
        self._reason = reason
        self._held = b""
        self._received = 0
        self._has_begun = False

    def feed(self, data: bytes) -> bytes:
        """What to send for the next bytes of the client, the preface included; `is_done` says that this is all."""
        self._held += data
        self._received += len(data)
        if self._received > _MOST_BYTES:
            self.is_done = True
        answer = b""
        if not self._has_begun:
            if len(self._held) < len(PREFACE):
                return b""
            self._has_begun = True
            self._held = self._held[len(PREFACE) :]
            answer = _frame(_SETTINGS, 0, 0, b"")
        while not self.is_done and len(self._held) >= _FRAME_HEAD:
            length, kind, flags = int.from_bytes(self._held[:3], "big"), self._held[3], self._held[4]
            stream = int.from_bytes(self._held[5:_FRAME_HEAD], "big") & 0x7FFF_FFFF
            if length > _LONGEST_FRAME:
                self.is_done = True
            elif len(self._held) < _FRAME_HEAD + length:
                break
            else:
                answer += self._answer(kind, flags, stream, self._held[_FRAME_HEAD : _FRAME_HEAD + length])
                self._held = self._held[_FRAME_HEAD + length :]
        return answer

    def _answer(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        if kind == _HEADERS:
            self.is_done = True
            fields = (b"content-type", b"application/grpc"), (b"grpc-status", _UNIMPLEMENTED)
            block = _STATUS_200 + b"".join(
                _field(*pair) for pair in (*fields, (b"grpc-message", self._reason.encode()))
            )
            goodbye = stream.to_bytes(4, "big") + bytes(4)
            return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, block) + _frame(_GOAWAY, 0, 0, goodbye)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            return _frame(kind, _ACK, 0, body if kind == _PING else b"")
        return b""


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _field(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, parts = len(text) - 127, bytearray((127,))
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts) + text


logger = logging.getLogger("heddle.http")
RESERVED_FILES = 128
"""File descriptors that are kept for everything but connections."""
LINGER_SECONDS = 5.0
"""How long what a client still sends is read and dropped, so that it can read its answer."""
LINGER_BYTES = 256 * 1024 * 1024
_SWEEP_SECONDS = 0.5
_HTTP2 = PREFACE[:12]


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """The open connections of a process, and their limits."""

    def __init__(self, settings: Settings, refused: Callable[[str], None], share: int = 1) -> None:
        """`refused` counts by the setting that was met; `share` is among how many processes the limits are divided."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        affordable = max(16, files - RESERVED_FILES) if files != resource.RLIM_INFINITY else settings.max_connections
        self.most = min(-(-settings.max_connections // share), affordable)
        self.most_per_address = -(-settings.max_connections_per_address // share)
        self.max_header_bytes = settings.max_header_bytes
        self.header_timeout = settings.header_timeout
        self.write_timeout = settings.write_timeout
        self.refused = refused
        self.no_http2 = describe_grpc(settings.otlp_grpc_port)
        self.has_seen_http2 = False
        self._trusted = _networks(settings.trusted_proxies)
        self._open: set[LimitedProtocol] = set()
        self._open_of: dict[str, int] = {}
        self._idle: dict[LimitedProtocol, None] = {}
        self._idle_of: dict[str, dict[LimitedProtocol, None]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, connection: "LimitedProtocol") -> bool:
        """Take a new connection in; at a limit the one that waits longest for a request goes, else the new one."""
        address = connection.address
        crowd = self._open_of.get(address, 0)
        if crowd >= self.most_per_address and not self._is_trusted(address):
            reason, idle = "max_connections_per_address", self._idle_of.get(address, {})
        elif len(self._open) >= self.most:
            reason, idle = "max_connections", self._idle
        else:
            reason, idle = "", {}
        if reason:
            self.refused(reason)
            if not idle:
                return False
            next(iter(idle)).cut_off()
        self._open.add(connection)
        self._open_of[address] = self._open_of.get(address, 0) + 1
        self.is_idle(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._look)
        return True

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection that is closed, or about to be."""
        if connection in self._open:
            self._open.discard(connection)
            self.is_busy(connection)
            left = self._open_of[connection.address] - 1
            if left:
                self._open_of[connection.address] = left
            else:
                del self._open_of[connection.address]

    def is_idle(self, connection: "LimitedProtocol") -> None:
        """Note that a connection waits for a request."""
        self._idle[connection] = None
        self._idle_of.setdefault(connection.address, {})[connection] = None

    def is_busy(self, connection: "LimitedProtocol") -> None:
        """Note that the head of a request is there."""
        if connection in self._idle:
            del self._idle[connection]
            of_address = self._idle_of[connection.address]
            del of_address[connection]
            if not of_address:
                del self._idle_of[connection.address]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._open):
            connection.check_deadlines(now)
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._look) if self._open else None

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._trusted)


def _networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [] if text == "none" else [ipaddress.ip_network(word) for word in text.split(",")]


class _LingeringTransport:
    """A transport whose `close` lets a client that still sends read its answer first: a reset would take it away."""

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self._linger = linger
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close now, or when the client has stopped sending."""
        if not self._linger():
            self._transport.close()

    def end_lingering(self) -> None:
        """Let go of the protocol: what leads to itself would stay until the garbage collector's next look."""
        self._linger = bool  # which says no


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits of `Connections`, which a subclass names."""

    limits: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, or refuse it."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._head_since: float | None = self.loop.time()
        self._blocked_since: float | None = None
        self._without_progress = 0
        self._dropped: int | None = None
        self._is_sending = False
        self._has_large_head = False
        self._http2: Http2Refusal | None = None
        self.transport = _LingeringTransport(transport, self._linger)  # type: ignore[assignment]
        if not self.limits.add(self):
            self._refuse(503, "Too many open connections; try again later", b"retry-after: 1\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.limits.remove(self)
        super().connection_lost(exc)
        self.transport.end_lingering()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parse what came, within the limit of what a head may take."""
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.cut_off()
            return
        if self._http2 is not None or (self._is_between_requests and data.startswith(_HTTP2)):
            self._refuse_http2(data)
            return
        if self._head_since is None and self._is_between_requests:
            self._head_since = self.loop.time()
        # Counts again from 0 at each step: the head is there, a part of a body, its end.
        self._without_progress += len(data)
        super().data_received(data)
        if self._without_progress > self.limits.max_header_bytes and self._dropped is None:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self._is_sending = True
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """The head is there: start its request."""
        self._without_progress = 0
        if (
            len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > self.limits.max_header_bytes
        ):
            self._has_large_head = True
            raise ValueError("the request headers are too large")  # ends the parser, which calls `send_400_response`
        self._head_since = None
        self.limits.is_busy(self)
        super().on_headers_complete()
        # What comes behind a body under the names of headers is none of this request's.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._without_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._without_progress = 0
        self._is_sending = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The end of an answer; a connection whose client still sends the body of its request ends with it."""
        super().on_response_complete()
        if self._dropped is not None:
            return
        if self._is_between_requests and not self.transport.is_closing():
            if self.cycle.more_body:
                self.transport.close()
            else:
                self.limits.is_idle(self)

    def pause_writing(self) -> None:
        """The client reads slower than it is answered."""
        self._blocked_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self._blocked_since = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and a head that is too large."""
        if self._has_large_head:
            self._refuse_head()
        else:
            self._is_sending = True
            self._refuse(400, msg)

    def shutdown(self) -> None:
        """End the connection, after the answer that is under way."""
        if self._is_between_requests:
            self._is_sending = False
        super().shutdown()

    def check_deadlines(self, now: float) -> None:
        """Give up a client that sends no head, or reads nothing of its answer."""
        if self._head_since is not None and self._is_between_requests:
            if now - self._head_since > self.limits.header_timeout:
                self.limits.refused("header_timeout")
                if self._is_sending:
                    self._refuse(
                        408,
                        "No complete request headers were received within "
                        f"{self.limits.header_timeout:g} s (header_timeout)",
                    )
                else:
                    self.cut_off()
        elif self._blocked_since is not None and now - self._blocked_since > self.limits.write_timeout:
            self.limits.refused("write_timeout")
            self.cut_off()

    def cut_off(self) -> None:
        """Close at once, whatever is still to be sent."""
        self.limits.remove(self)
        self.transport.abort()

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

    def _refuse_http2(self, data: bytes) -> None:
        """Tell a client of gRPC where to go, on the first occasion the log, too."""
        if self._http2 is None:
            self._http2 = Http2Refusal(self.limits.no_http2)
            if not self.limits.has_seen_http2:
                self.limits.has_seen_http2 = True
                logger.warning("%s began with HTTP/2: %s", self.address, self.limits.no_http2)
        self.transport.write(self._http2.feed(data))
        if self._http2.is_done:
            self._is_sending = True
            self.transport.close()

    def _refuse_head(self) -> None:
        self.limits.refused("max_header_bytes")
        self._refuse(431, f"The request headers are larger than max_header_bytes = {self.limits.max_header_bytes}")

    def _refuse(self, status: int, reason: str, headers: bytes = b"") -> None:
        """Answer without asking the application, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.cut_off()
                return
            # Whatever the application answers, this was the answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = orjson.dumps({"reason": reason})
        phrase = http.HTTPStatus(status).phrase.encode()
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (status, phrase, len(body), headers, body)
        )
        self.transport.close()

    def _linger(self) -> bool:
        """Whether closing waits for what the client still sends."""
        if not self._is_sending or self._dropped is not None or self.transport.is_closing():
            return False
        self._dropped = 0
        self._head_since = None
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        return True


def limited_protocol(connections: Connections) -> type[LimitedProtocol]:
    """The protocol with its limits, as uvicorn's configuration takes it."""
    return type("LimitedHttpProtocol", (LimitedProtocol,), {"limits": connections})
