"""The gRPC server: the services of OTLP, each method an HTTP route that exports are passed on to, and its answers."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import httpx

from heddle.errors import Busy, HeddleError, InvalidRequest, Unavailable
from heddle.otlp_grpc.supervisor import Configuration
from heddle.wire.otlp import PROTOBUF, decode_status, encode_status, status_code

PASSED_ON = ("authorization", "wandb-api-key", "x-api-key", "project_id", "x-request-id")
"""Metadata that become headers."""
OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Those by which a server without keys knows, and refuses, what a proxy sends."""
_CONNECTIONS = 32
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 120.0
_BELIEVED_SECONDS = 5.0
_MOST_BELIEVED = 10_000
_ENCODINGS = ((b"\x1f\x8b", "gzip"), (b"\x78", "deflate"))
"""How compressed messages begin; a message that is not begins with its first field."""
Headers = Mapping[str, str]


class Refused(HeddleError):
    """What the server answered instead of 200."""

    def __init__(self, reason: str, status: int, headers: dict[str, str]) -> None:
        super().__init__(reason, headers)
        self.status = status


class Forwarder:
    """Sends exports to the server; callers whose key it took are believed for some seconds."""

    def __init__(self, configuration: Configuration) -> None:
        limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=configuration.server, limits=limits, timeout=timeout, trust_env=False, follow_redirects=False
        )
        self._needs_key = configuration.needs_key
        self._believed: dict[bytes, float] = {}

    async def check(self, path: str, headers: Headers) -> None:
        """Raise Refused for a caller that may not send, found out with an empty export, before anything is read."""
        if not self._needs_key:
            return
        caller = hashlib.blake2b(repr([path, *sorted(headers.items())]).encode(), digest_size=16).digest()
        if self._believed.get(caller, 0.0) > time.monotonic():
            return
        await self.send(path, headers, b"")
        if len(self._believed) >= _MOST_BELIEVED:
            self._believed.clear()
        self._believed[caller] = time.monotonic() + _BELIEVED_SECONDS

    async def send(self, path: str, headers: Headers, message: bytes) -> bytes:
        """The answer of the server to an export; raises Refused, Unavailable where it cannot be reached."""
        sent = {**headers, "content-type": PROTOBUF}
        for beginning, encoding in _ENCODINGS:
            if message.startswith(beginning):
                sent["content-encoding"] = encoding
        try:
            answer = await self._http.post(path, content=message, headers=sent)
        except httpx.HTTPError as error:
            raise Unavailable(f"The server is not reachable: {type(error).__name__}", retry_after=2) from None
        if answer.status_code == 200:
            return answer.content
        kept = {"Retry-After": seconds} if (seconds := answer.headers.get("retry-after")) else {}
        raise Refused(_reason(answer), answer.status_code, kept)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _reason(answer: httpx.Response) -> str:
    if answer.headers.get("content-type", "").startswith(PROTOBUF):
        return decode_status(answer.content)
    try:
        found = answer.json()
    except ValueError:
        found = None
    reason = found.get("reason") if isinstance(found, dict) else None
    return reason if isinstance(reason, str) else f"The server returned {answer.status_code}"


SERVICES = {"trace.v1.TraceService": "/v1/traces", "logs.v1.LogsService": "/v1/logs"}
SERVICES |= {"metrics.v1.MetricsService": "/v1/metrics"}
_METHODS = {f"/opentelemetry.proto.collector.{service}/Export": path for service, path in SERVICES.items()}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MOST_CALLS = 2000
"""Calls in flight; most of them wait for their message."""
_PATIENCE_SECONDS = 3.0
_STREAMS = 128
_WINDOW = 65_536
_LONGEST_REASON = 2000


class OtlpHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a method; a message is read only from a caller that may send it."""

    def __init__(self, configuration: Configuration, forwarder: Forwarder) -> None:
        places = max(4, 4 * configuration.max_unfinished_bytes // configuration.max_trace_body)
        self._admission = Admission(places, min(_PATIENCE_SECONDS, configuration.body_timeout))
        self._timeout = configuration.body_timeout
        self._forwarder = forwarder
        self._passed_on = PASSED_ON if configuration.needs_key else PASSED_ON + OF_PROXIES
        self._calls = 0

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None for a method that does not exist."""
        path = _METHODS.get(handler_call_details.method)
        if path is None:
            return None
        # As a stream of requests, of which one comes: it is read when the caller is known.
        return grpc.stream_unary_rpc_method_handler(partial(self._export, path))

    async def _export(self, path: str, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        self._calls += 1
        try:
            if self._calls > _MOST_CALLS:
                raise Busy("Too many open calls", retry_after=5)
            return await self._answer(path, context)
        except HeddleError as error:
            error.reason = error.reason[:_LONGEST_REASON]
            details = (("grpc-status-details-bin", encode_status(error)),)
            await context.abort(_CODES[status_code(error)], error.reason, details)
            raise AssertionError("an aborted call goes on") from error
        finally:
            self._calls -= 1

    async def _answer(self, path: str, context: Any) -> bytes:
        metadata = {name: value for name, value in context.invocation_metadata() or () if name in self._passed_on}
        metadata = {name: _header(name, value) for name, value in metadata.items()}
        await self._forwarder.check(path, metadata)
        async with self._admission.place(context.peer().rpartition(":")[0]):
            try:
                async with asyncio.timeout(self._timeout):
                    message = await context.read()
            except TimeoutError:
                reason = f"The message was received too slowly: limit body_timeout = {self._timeout:g} s"
                raise Unavailable(reason, retry_after=1) from None
        if not isinstance(message, bytes):
            message = b""
        return await self._forwarder.send(path, metadata, message)


def _header(name: str, value: str) -> str:
    """Metadata as a header; raises InvalidRequest for what none can hold."""
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise InvalidRequest(f"The metadata {name} contains a character that is not allowed in a header")
    return value


def make_server(configuration: Configuration, forwarder: Forwarder) -> Any:
    """The server, which does not listen yet."""
    options = [
        ("grpc.max_receive_message_length", configuration.max_trace_body),
        # Messages are passed on as they come: what undoes their compression stands behind, and is bounded.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_metadata_size", configuration.max_header_bytes),
        ("grpc.absolute_max_metadata_size", configuration.max_header_bytes),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.max_allowed_incoming_connections", configuration.max_connections),
        ("grpc.server_handshake_timeout_ms", int(1000 * configuration.header_timeout)),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW),
        ("grpc.so_reuseport", 0),
    ]
    handler = OtlpHandler(configuration, forwarder)
    return grpc.aio.server(handlers=[handler], options=options)


_SHARE = 4
"""One address may have a quarter of all places."""


class Admission:
    """Places for messages that are being read."""

    def __init__(self, places: int, patience: float) -> None:
        """`patience` is how long a message waits for a place, in seconds."""
        self._free = places
        self._most_of_address = max(1, places // _SHARE)
        self._patience = patience
        self._of_address: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """A place for one message; raises Busy when none becomes free in time."""
        try:
            async with asyncio.timeout(self._patience), self._changed:
                await self._changed.wait_for(lambda: self._is_free(address))
                self._free -= 1
                self._of_address[address] += 1
        except TimeoutError:
            raise Busy("Too many messages are being received", retry_after=2) from None
        try:
            yield
        finally:
            async with self._changed:
                self._free += 1
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]
                self._changed.notify_all()

    def _is_free(self, address: str) -> bool:
        return self._free > 0 and self._of_address[address] < self._most_of_address
