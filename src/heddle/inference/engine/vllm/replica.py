"""One server of vLLM as heddle sees it: whether it answers, what it is doing, and which adapters it has."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Literal

import orjson

from heddle.inference.engine.base import AdapterRef, EngineBusy, RequestRefused, TokenEvent, TokenRequest
from heddle.inference.engine.vllm.body import Decode, body_of, streams
from heddle.inference.engine.vllm.events import Reader, Strange
from heddle.inference.engine.vllm.http import Client, Refused, Unanswered
from heddle.inference.engine.vllm.metrics import read_figures
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.inference.engine")

LOOK_SECONDS = 2.0
"""Between two looks at a server."""
SOON_SECONDS = 0.2
"""The same while it is not ready."""
PATIENCE = 3
"""Looks without an answer after which a server that was ready counts as gone."""
HEALTH_SECONDS = 10.0
"""A server with much to do is slow to answer, and not gone."""
ADAPTER_SECONDS = 120.0
FIGURES_SECONDS = 1.0
State = Literal["loading", "ready", "failed"]


class ReplicaFailed(Exception):
    """The server cannot be reached, or broke the request off."""


class Replica:
    """One server; `watch` keeps its state true."""

    def __init__(
        self,
        name: str,
        client: Client,
        is_ours: bool,
        wanted: Mapping[str, AdapterRef],
        changed: Callable[[], None],
    ) -> None:
        """`wanted` are the adapters that it must have before it is ready; `changed` is called with every new state.

        A server of ours that does not answer is loading until its process ends.
        """
        self.name = name
        self.state: State = "loading"
        self.reason = f"{name} has not answered yet"
        self.model = ""
        self.max_model_len = 0
        self.running = 0
        """Requests of ours."""
        self.figures: Mapping[str, float] = {}
        self._client = client
        self._is_ours = is_ours
        self._wanted = wanted
        self._changed = changed
        self._adapters: set[str] = set()
        self._loading = asyncio.Lock()
        self._missed = 0
        self._look_now = asyncio.Event()
        self._others = 0.0

    @property
    def load(self) -> float:
        """Requests that it has: ours, and those that others had there at the last look."""
        return self.running + self._others

    async def watch(self) -> None:
        """Look at it for ever; sooner while it is not ready, and at once after a request failed."""
        while True:
            self._look_now.clear()
            try:
                await self._look()
            except (Unanswered, Refused, Strange, ReplicaFailed) as error:
                self._miss(_text(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self.state == "ready" else SOON_SECONDS):
                    await self._look_now.wait()

    def process_ended(self, reason: str | None) -> None:
        """Its process, which is ours, died; with None it is started again."""
        if reason is None:
            self._become("loading", f"{self.name} is being started again")
        else:
            self._become("failed", reason)

    def close(self) -> None:
        """Break off all its requests."""
        self._client.cut()

    async def refresh(self) -> None:
        """Ask for its figures; those of an earlier moment stay when it does not answer at once."""
        with contextlib.suppress(Unanswered, Refused):
            await self._read_figures(FIGURES_SECONDS)

    async def _read_figures(self, seconds: float) -> None:
        self.figures = read_figures((await self._client.ask("GET", "/metrics", seconds=seconds)).decode("latin-1"))

    async def _look(self) -> None:
        await self._client.ask("GET", "/health", seconds=HEALTH_SECONDS)
        if self.state != "ready":
            await self._recover()
        await self._read_figures(HEALTH_SECONDS)
        seen = self.figures.get("num_requests_running", 0.0) + self.figures.get("num_requests_waiting", 0.0)
        self._others = max(0.0, seen - self.running)
        self._missed = 0
        self._become("ready", "")

    async def _recover(self) -> None:
        """Learn what it serves, and give it every adapter that it must have: it may have been started anew."""
        body = _json(await self._client.ask("GET", "/v1/models"))
        listed = body.get("data")
        models = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        base = next((entry for entry in models if not entry.get("parent")), None)
        if base is None:
            raise Strange("it serves no model")
        length = base.get("max_model_len")
        self.model, self.max_model_len = str(base.get("id")), length if isinstance(length, int) else 0
        self._adapters = {str(entry.get("id")) for entry in models if entry.get("parent")}
        for adapter in list(self._wanted.values()):
            try:
                await self.load_adapter(adapter)
            except RequestRefused as error:
                logger.warning("%s does not take %s: %s", self.name, adapter.id, error)

    def _miss(self, reason: str) -> None:
        self._missed += 1
        waits = self._is_ours if self.state == "loading" else self.state == "ready" and self._missed < PATIENCE
        if not waits:
            self._become("failed", f"{self.name}: {reason}")

    def _suspect(self) -> None:
        """A request failed: the next look decides."""
        self._missed = max(self._missed, PATIENCE - 1)
        self._look_now.set()

    def _become(self, state: State, reason: str) -> None:
        if state != self.state:
            logger.log(logging.WARNING if state == "failed" else logging.INFO, "%s: %s %s", self.name, state, reason)
            if state == "failed":
                self.close()
        self.state, self.reason = state, reason
        self._changed()

    async def generate(self, request: TokenRequest, eos: tuple[int, ...], decode: Decode) -> AsyncGenerator[TokenEvent]:
        """The tokens of a request; raises ReplicaFailed, EngineBusy and RequestRefused."""
        self.running += 1
        try:
            async for event in self._answers(request, eos, decode):
                yield event
        except (Unanswered, Strange) as error:
            self._suspect()
            raise ReplicaFailed(f"{self.name}: {error}") from error
        finally:
            self.running -= 1

    async def _answers(self, request: TokenRequest, eos: tuple[int, ...], decode: Decode) -> AsyncGenerator[TokenEvent]:
        adapter = request.adapter
        body = body_of(request, self.model, decode)
        if adapter is not None:
            await self.load_adapter(adapter)
        try:
            async for event in self._events(request, body, eos):
                yield event
        except Refused as error:
            if error.status != 404 or adapter is None:
                raise self._refusal(error) from error
        else:
            return
        # The server was started anew between two looks, or somebody else took the adapter away.
        self._adapters.discard(adapter.id)
        await self.load_adapter(adapter)
        try:
            async for event in self._events(request, body, eos):
                yield event
        except Refused as error:
            raise self._refusal(error) from error

    async def _events(self, request: TokenRequest, body: bytes, eos: tuple[int, ...]) -> AsyncGenerator[TokenEvent]:
        reader = Reader(request, eos)
        async with aclosing(self._client.stream("POST", "/v1/completions", body)) as parts:
            if not streams(request):
                yield reader.whole(b"".join([part async for part in parts]))
                return
            async for part in parts:
                event = reader.feed(part)
                if event is None:
                    continue
                if event.finish_reason is not None:
                    # To the end of the body, so that the connection can be used again.
                    async for _ in parts:
                        pass
                yield event
                if event.finish_reason is not None:
                    return
        raise Unanswered("the stream ended before the answer did")

    def _refusal(self, error: Refused) -> Exception:
        """What a status means to whoever asked."""
        message, param = _reason(error)
        if error.status == 429:
            return EngineBusy(message)
        if 400 <= error.status < 500 and error.status not in (401, 403, 404):
            return RequestRefused(message, param=param)
        self._suspect()
        return ReplicaFailed(f"{self.name}: {message}")

    async def load_adapter(self, adapter: AdapterRef) -> None:
        """Make a version ready there; raises RequestRefused and ReplicaFailed."""
        async with self._loading:
            if adapter.id in self._adapters:
                return
            wanted = {"lora_name": adapter.id, "lora_path": str(adapter.path.absolute())}
            try:
                await self._client.ask("POST", "/v1/load_lora_adapter", orjson.dumps(wanted), ADAPTER_SECONDS)
            except Refused as error:
                message, _ = _reason(error)
                if error.status in (401, 403, 503):
                    raise ReplicaFailed(f"{self.name}: {message}") from error
                if "already" not in message:
                    raise RequestRefused(message, param="lora_path") from error
            except Unanswered as error:
                self._suspect()
                raise ReplicaFailed(f"{self.name}: {error}") from error
            self._adapters.add(adapter.id)

    async def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version there; a server that does not answer has forgotten it, or does when it comes back."""
        async with self._loading:
            if adapter_id not in self._adapters:
                return
            self._adapters.discard(adapter_id)
            body = orjson.dumps({"lora_name": adapter_id})
            try:
                await self._client.ask("POST", "/v1/unload_lora_adapter", body)
            except (Refused, Unanswered) as error:
                logger.warning("%s did not unload %s: %s", self.name, adapter_id, _text(error))


def _json(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Strange("the answer is no JSON object")
    return value


def _reason(error: Refused) -> tuple[str, str | None]:
    """The message of an error body, and the parameter that it names."""
    try:
        found = _json(error.body).get("error")
    except Strange:
        found = None
    if not isinstance(found, dict):
        return f"it answered {error.status} {found or ''}".rstrip(), None
    param = found.get("param")
    return str(found.get("message"))[:1000], param if isinstance(param, str) else None


def _text(error: Exception) -> str:
    return _reason(error)[0] if isinstance(error, Refused) else str(error)
