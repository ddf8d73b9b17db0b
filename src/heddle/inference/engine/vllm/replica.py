"""One server of vLLM as heddle sees it: whether it answers, what it is doing, and which adapters it has."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Literal

import orjson

from heddle import aio
from heddle.inference.engine.base import AdapterRef, EngineBusy, EngineStats, RequestRefused, TokenEvent, TokenRequest
from heddle.inference.engine.vllm.http import Client, Refused, Unanswered
from heddle.inference.engine.vllm.protocol import Decode, ProtocolError, Reader, is_streamed, make_body, read_embedding
from heddle.wire.jsontypes import Json

_LINE = re.compile(r"^(vllm:\w+|process_resident_memory_bytes)(?:\{(.*)\})? ([-+.\deE]+)$", re.MULTILINE)
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')

_FIGURES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_blocks_total": "blocks",
    "prefix_query_tokens": "prefix_cache_queries_total",
    "prefix_hit_tokens": "prefix_cache_hits_total",
    "preemptions": "num_preemptions_total",
    "prompt_tokens": "prompt_tokens_total",
    "generated_tokens": "generation_tokens_total",
    "steps": "iteration_tokens_total_count",
    "resident_bytes": "process_resident_memory_bytes",
}
"""Fields of EngineStats, and the metrics of a server that add up to them."""

Metrics = Mapping[str, float]


def parse_metrics(text: str) -> dict[str, float]:
    """The values of a server by name, labels added up; `blocks` is the size of its cache."""
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        if name == "vllm:cache_config_info":
            blocks = _BLOCKS.search(labels)
            found["blocks"] = found.get("blocks", 0.0) + (float(blocks[1]) if blocks else 0.0)
        elif not name.endswith(("_bucket", "_created")):
            found[name.removeprefix("vllm:")] = found.get(name.removeprefix("vllm:"), 0.0) + float(value)
    return found


def add_metrics(stats: EngineStats, servers: Iterable[Metrics]) -> None:
    """Add what the servers say to the stats of the engine."""
    for found in servers:
        for name, theirs in _FIGURES.items():
            setattr(stats, name, getattr(stats, name) + int(found.get(theirs, 0.0)))
        stats.kv_blocks_used += round(found.get("kv_cache_usage_perc", 0.0) * found.get("blocks", 0.0))


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
METRICS_SECONDS = 1.0
State = Literal["loading", "ready", "failed"]


class ReplicaFailed(Exception):
    """The server cannot be reached, or broke the request off."""


class Replica:
    """One server; `watch` keeps its state true."""

    def __init__(
        self, name: str, client: Client, is_ours: bool, wanted: Mapping[str, AdapterRef], changed: Callable[[], None]
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
        self.metrics: Mapping[str, float] = {}
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
                await self._client.ask("GET", "/health", seconds=HEALTH_SECONDS)
                if self.state != "ready":
                    await self._recover()
                await self._read_metrics(HEALTH_SECONDS)
                seen = self.metrics.get("num_requests_running", 0.0) + self.metrics.get("num_requests_waiting", 0.0)
                self._others = max(0.0, seen - self.running)
                self._missed = 0
                self._set_state("ready", "")
            except (Unanswered, Refused, ProtocolError, ReplicaFailed) as error:
                self._missed += 1
                waits = self._is_ours if self.state == "loading" else self.state == "ready" and self._missed < PATIENCE
                if not waits:
                    self._set_state("failed", f"{self.name}: {_text(error)}")
            await aio.wait_at_most(LOOK_SECONDS if self.state == "ready" else SOON_SECONDS, self._look_now.wait())

    def process_ended(self, reason: str | None) -> None:
        """Its process, which is ours, died; with None it is started again."""
        if reason is None:
            self._set_state("loading", f"{self.name} is being started again")
        else:
            self._set_state("failed", reason)

    def close(self) -> None:
        """Break off all its requests."""
        self._client.cut()

    async def refresh(self) -> None:
        """Ask for its metrics; those of an earlier moment stay when it does not answer at once."""
        with contextlib.suppress(Unanswered, Refused):
            await self._read_metrics(METRICS_SECONDS)

    async def _read_metrics(self, seconds: float) -> None:
        self.metrics = parse_metrics((await self._client.ask("GET", "/metrics", seconds=seconds)).decode("latin-1"))

    async def _recover(self) -> None:
        """Learn what it serves, and give it every adapter that it must have: it may have been started anew."""
        body = _json(await self._client.ask("GET", "/v1/models"))
        listed = body.get("data")
        models = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        base = next((entry for entry in models if not entry.get("parent")), None)
        if base is None:
            raise ProtocolError("it does not serve a model")
        length = base.get("max_model_len")
        self.model, self.max_model_len = str(base.get("id")), length if isinstance(length, int) else 0
        self._adapters = {str(entry.get("id")) for entry in models if entry.get("parent")}
        for adapter in list(self._wanted.values()):
            try:
                await self.load_adapter(adapter)
            except RequestRefused as error:
                logger.warning("%s did not load %s: %s", self.name, adapter.id, error)

    def _check_soon(self) -> None:
        """A request failed: the next look decides."""
        self._missed = max(self._missed, PATIENCE - 1)
        self._look_now.set()

    def _set_state(self, state: State, reason: str) -> None:
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
        except (Unanswered, ProtocolError) as error:
            self._check_soon()
            raise ReplicaFailed(f"{self.name}: {error}") from error
        finally:
            self.running -= 1

    async def _answers(self, request: TokenRequest, eos: tuple[int, ...], decode: Decode) -> AsyncGenerator[TokenEvent]:
        adapter = request.adapter
        body = make_body(request, self.model, decode)
        for attempt in (1, 2):
            if adapter is not None:
                await self.load_adapter(adapter)
            try:
                async for event in self._events(request, body, eos):
                    yield event
            except Refused as error:
                if error.status != 404 or adapter is None or attempt == 2:
                    raise self._refusal(error) from error
                # The server was started anew between two looks, or somebody else took the adapter away.
                self._adapters.discard(adapter.id)
            else:
                return

    async def _events(self, request: TokenRequest, body: bytes, eos: tuple[int, ...]) -> AsyncGenerator[TokenEvent]:
        if request.pools:
            yield await self._pool(request, body)
            return
        reader = Reader(request, eos)
        async with aclosing(self._client.stream("POST", "/v1/completions", body)) as parts:
            if not is_streamed(request):
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

    async def _pool(self, request: TokenRequest, body: bytes) -> TokenEvent:
        """The state of the last position, which only servers that pool instead of generating give."""
        try:
            async with aclosing(self._client.stream("POST", "/v1/embeddings", body)) as parts:
                return read_embedding(b"".join([part async for part in parts]), request)
        except Refused as error:
            if error.status in (404, 405, 501) and "does not exist" not in _reason(error)[0]:
                raise RequestRefused(
                    "embeddings require a vLLM server started with --runner pooling; this one generates text"
                ) from error
            raise

    def _refusal(self, error: Refused) -> Exception:
        """What a status means to whoever asked."""
        message, param = _reason(error)
        if error.status == 429:
            return EngineBusy(message)
        if 400 <= error.status < 500 and error.status not in (401, 403, 404):
            return RequestRefused(message, param=param)
        self._check_soon()
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
                self._check_soon()
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
        raise ProtocolError("the answer is not a JSON object")
    return value


def _reason(error: Refused) -> tuple[str, str | None]:
    """The message of an error body, and the parameter that it names."""
    try:
        found = _json(error.body).get("error")
    except ProtocolError:
        found = None
    if not isinstance(found, dict):
        return f"it returned {error.status} {found or ''}".rstrip(), None
    param = found.get("param")
    return str(found.get("message"))[:1000], param if isinstance(param, str) else None


def _text(error: Exception) -> str:
    return _reason(error)[0] if isinstance(error, Refused) else str(error)
