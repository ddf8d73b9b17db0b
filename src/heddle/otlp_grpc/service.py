"""The gRPC server: the services of OTLP, each method an HTTP route, and how many messages are read at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from heddle.errors import Busy, HeddleError, Unavailable
from heddle.otlp_grpc.forward import OF_PROXIES, PASSED_ON, Forwarder
from heddle.otlp_grpc.supervisor import Configuration
from heddle.wire.otlp import encode_status, status_code

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
                raise Busy("Too many calls are open here", retry_after=5)
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
        await self._forwarder.check(path, metadata)
        async with self._admission.place(context.peer().rpartition(":")[0]):
            try:
                async with asyncio.timeout(self._timeout):
                    message = await context.read()
            except TimeoutError:
                reason = f"The message came too slowly: limit body_timeout = {self._timeout:g} s"
                raise Unavailable(reason, retry_after=1) from None
        if not isinstance(message, bytes):
            message = b""
        return await self._forwarder.send(path, metadata, message)


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
            raise Busy("Too many messages arrive at the same time", retry_after=2) from None
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
