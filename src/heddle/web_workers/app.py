"""What a worker answers itself: the hot routes that store calls, and reads of what is stored; the rest is passed on."""

import asyncio
import contextlib
import re
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from heddle.errors import HeddleError
from heddle.ipc.rpc import Client
from heddle.metrics import Metrics
from heddle.middleware import TRACES
from heddle.server_state import ServerState
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.inference_calls import InferencePrices
from heddle.trace.records import TraceRecords
from heddle.web_workers.methods import COUNTED, Answered
from heddle.web_workers.proxy import CLIENT, Proxy

_REPORT_SECONDS = 1.0


class WorkerMetrics(Metrics):
    """Counts nothing itself: the writing process shows the figures of all."""

    def __init__(self) -> None:
        super().__init__(dict)
        self._answers: list[Answered] = []
        self._lag_seconds: list[float] = []
        self._limits: list[str] = []

    def lagged(self, seconds: float) -> None:
        """Note how late this process' event loop was."""
        self._lag_seconds.append(seconds)

    def refused(self, limit: str) -> None:
        """Note a request over a limit."""
        self._limits.append(limit)

    def answered(self, route: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Note one answer."""
        self._answers.append((route, method, status, seconds, received, sent))

    async def report(self, writing: Client) -> None:
        """Tell what was counted since the last report."""
        counted = (self._answers, self._lag_seconds, self._limits)
        self._answers, self._lag_seconds, self._limits = [], [], []
        await writing.call(COUNTED, *counted)


class WorkerState(ServerState):
    """What a worker has; what it counts and sees goes to the writing process."""

    metrics: WorkerMetrics

    def __init__(self, settings: Settings, store: Store) -> None:
        super().__init__(settings, store, TraceRecords(settings, store), InferencePrices(store), WorkerMetrics())

    async def report(self, writing: Client) -> None:
        """Tell, again and again, what was answered and which keys were used."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            await self.report_once(writing)

    async def report_once(self, writing: Client) -> None:
        """Tell what is to be told now."""
        with contextlib.suppress(HeddleError):
            await self.metrics.report(writing)
            await self.authenticator.note_use()


class Fork:
    """An ASGI application: what is local goes to one, the rest to the other."""

    def __init__(self, local: ASGIApp, routes: Iterable[APIRoute], elsewhere: Proxy) -> None:
        self._local = local
        self._elsewhere = elsewhere
        self._plain: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []
        for route in routes:
            if "{" in route.path:
                self._patterns.append(route.path_regex)
            else:
                self._plain.add(route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"]
        if path.startswith(f"{TRACES}/"):
            path = path.removeprefix(TRACES)
        is_local = scope["method"] == "POST" and (
            path in self._plain or any(pattern.match(path) for pattern in self._patterns)
        )
        await (self._local if is_local else self._elsewhere)(scope, receive, send)


class Private:
    """The application of the writing process as workers reach it: with the address of their client."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that a worker passed on."""
        client = next((value.decode() for name, value in scope["headers"] if name == CLIENT), "")
        host, _, port = client.rpartition(":")
        headers = [pair for pair in scope["headers"] if pair[0] != CLIENT]
        named = (host, int(port)) if port else None
        await self._app({**scope, "headers": headers, "client": named}, receive, send)
