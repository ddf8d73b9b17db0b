"""vLLM as the engine: several servers that answer as one."""

import asyncio
import dataclasses
import json
import logging
import re
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from functools import cached_property
from hashlib import blake2b
from struct import pack
from urllib.parse import urlsplit

from heddle.inference.engine.base import (
    AdapterRef,
    EngineBusy,
    EngineFailed,
    EngineInfo,
    EngineStats,
    RequestRefused,
    TokenEvent,
    TokenRequest,
)
from heddle.inference.engine.local.options import read_info
from heddle.inference.engine.vllm.http import Client
from heddle.inference.engine.vllm.replica import Replica, ReplicaFailed, add_metrics
from heddle.inference.engine.vllm.server import KV_TRANSFER, VllmOptions, supervise
from heddle.inference.tokenizer import Tokenizer
from heddle.wire.tensors import Shapes, folder_shapes, tensor_shapes

PREFIX_TOKENS = 128
"""So many first tokens decide; one block of a prefix cache or several."""
MARGIN = 4
"""Requests that the preferred server may have more than the least busy one; a quarter of that one's comes on top."""


def prefix_key(request: TokenRequest) -> bytes:
    """What requests have in common that can share cached keys and values: adapter, salt, first tokens."""
    head = request.prompt[:PREFIX_TOKENS]
    adapter = request.adapter.id if request.adapter is not None else ""
    named = f"{adapter}\0{request.cache_salt or ''}\0".encode()
    return blake2b(named + pack(f"<{len(head)}q", *head), digest_size=16).digest()


def preferred(key: bytes, names: Iterable[str]) -> str:
    """The server that keeps a prefix: when servers come or go, only their own prefixes move (rendezvous hashing)."""
    return max(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest())


def choose_server(key: bytes, loads: Mapping[str, float]) -> str:
    """The server for a request; `loads` are the requests that each one has now, and not empty."""
    first = preferred(key, loads)
    least = min(loads, key=lambda name: loads[name])
    return first if loads[first] <= loads[least] * 1.25 + MARGIN else least


_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.(?:default\.)?weight")
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"


def check_adapter(adapter: AdapterRef, base: Shapes) -> None:
    """Raise RequestRefused for a folder that is no LoRA adapter, or not one of a model with these tensors.

    `base` is empty where the model's weights lie with the servers only; then shapes are not compared.
    """
    try:
        config = json.loads((adapter.path / _CONFIG).read_text(encoding="utf-8"))
        shapes = tensor_shapes(adapter.path / _WEIGHTS)
    except (OSError, ValueError) as error:
        raise _refusal(adapter, str(error)) from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise _refusal(adapter, f"its peft_type is {kind!r}, not 'LORA'")
    known = [_compare(adapter, name, shape, base) for name, shape in shapes.items()] if base else [True]
    if not any(known):
        raise _refusal(adapter, "the model has none of the linear layers that it changes")


def _compare(adapter: AdapterRef, name: str, shape: list[int], base: Shapes) -> bool:
    """A goes from the inputs of a linear, B to its outputs, in whichever order the model keeps them.

    False for a linear that the files of the model call something else.
    """
    match = _NAME.fullmatch(name)
    linear = base.get(f"{match[1]}.weight") if match is not None else None
    if match is None or linear is None or len(linear) != 2:
        return False
    if shape[-1 if match[2] == "A" else 0] not in linear:
        raise _refusal(adapter, f"{name} has shape {shape}, which does not match the model's linear layer {linear}")
    return True


def _refusal(adapter: AdapterRef, reason: str) -> RequestRefused:
    return RequestRefused(f"adapter {adapter.id}: {reason}", param="model")


__all__ = ["VllmEngine", "VllmOptions"]

logger = logging.getLogger("heddle.inference.engine")


class VllmEngine:
    """Routes requests to servers of vLLM, which it starts or finds running."""

    def __init__(self, options: VllmOptions) -> None:
        """Reads the small files of the model folder; raises Unavailable."""
        self.options = options
        self._info = read_info(
            "vllm",
            options,
            takes_kv_transfer=KV_TRANSFER in options.takes,
            xargs=options.xargs,
            scales_logprobs=False,
            takes_after=False,
        )
        self.replicas: list[Replica] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._adapters: OrderedDict[str, AdapterRef] = OrderedDict()
        """Those that every server has, the least recently used first."""
        self._running: Counter[str] = Counter()
        """Requests by adapter."""
        self._leaving: set[str] = set()
        """Adapters that go with the end of their last request."""
        self._totals = EngineStats()
        """Requests, and those that were aborted."""

    def info(self) -> EngineInfo:
        """From the folder; `max_model_len` becomes smaller when a server holds less."""
        return self._info

    async def start(self) -> None:
        """Wait for the first server that is ready. Raises EngineFailed when there is none and none is loading."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            for number in range(len(self.options.urls) or self.options.replicas):
                port = 0 if self.options.urls else _free_port()
                url = self.options.urls[number] if self.options.urls else f"http://127.0.0.1:{port}"
                name = f"vllm server {urlsplit(url).netloc.rpartition('@')[2] if self.options.urls else number}"
                replica = Replica(name, Client(url, self.options.key), bool(port), self._adapters, self._note_change)
                self.replicas.append(replica)
                if port:
                    command = self.options.command_line(number, port)
                    self._tasks.append(loop.create_task(supervise(name, command, replica.process_ended)))
                self._tasks.append(loop.create_task(replica.watch()))
        while not self._ready():
            if all(replica.state == "failed" for replica in self.replicas):
                raise EngineFailed("no vLLM server answers: " + "; ".join(one.reason for one in self.replicas))
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """End every request, and the servers that are ours."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for replica in self.replicas:
            replica.close()
        self._tasks, self.replicas = [], []
        # Whoever waits for a server learns that there is none.
        self._changed.set()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """The tokens of one request; closing the iterator aborts it.

        A server that fails before the first token has another one take over, once. Raises EngineFailed, EngineBusy,
        RequestRefused.
        """
        await self.start()
        if request.adapter is not None and request.adapter.id not in self._adapters:
            await asyncio.to_thread(self._check, request.adapter)
        running = sum(replica.running for replica in self.replicas)
        if running >= self.options.max_running * len(self._ready()) + self.options.max_waiting:
            raise EngineBusy(f"{running} requests are already running or waiting")
        self._totals.requests += 1
        if request.adapter is not None:
            self._running[request.adapter.id] += 1
            self._use(request.adapter)
        ended = False
        try:
            async with aclosing(self._answers(request)) as events:
                async for event in events:
                    ended = event.finish_reason is not None
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            self._totals.aborted += not ended
            raise
        finally:
            await self._release(request)

    async def _answers(self, request: TokenRequest) -> AsyncGenerator[TokenEvent]:
        tried: list[Replica] = []
        while True:
            free = {replica.name: replica for replica in self._ready(tried)}
            if not free:
                raise EngineFailed("no vLLM server answers")
            replica = free[choose_server(prefix_key(request), {name: replica.load for name, replica in free.items()})]
            has_begun = False
            try:
                events = replica.generate(request, self._info.eos_token_ids, lambda ids: self._tokenizer.decode(ids))
                async with aclosing(events):
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except ReplicaFailed as error:
                tried.append(replica)
                if has_begun or len(tried) > 1 or not self._ready(tried):
                    raise EngineFailed(str(error)) from error

    def _ready(self, without: list[Replica] | None = None) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == "ready" and replica not in (without or ())]

    async def _release(self, request: TokenRequest) -> None:
        if request.adapter is None:
            return
        name = request.adapter.id
        self._running[name] -= 1
        if self._running[name] <= 0:
            del self._running[name]
            if name in self._leaving:
                await self._forget(name)
            await self._make_room()

    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None:
        """Make a version ready on every server that answers; the others get it before they take requests again.

        Without `start` it is a no-op where no server was needed yet. Raises RequestRefused when it does not fit the
        model, and EngineFailed.
        """
        if start:
            await self.start()
        if not self._tasks:
            return
        if adapter.id not in self._adapters:
            await asyncio.to_thread(self._check, adapter)
        self._use(adapter)
        self._leaving.discard(adapter.id)
        outcomes = await asyncio.gather(
            *(replica.load_adapter(adapter) for replica in self._ready()), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        refused = next((failure for failure in failures if not isinstance(failure, ReplicaFailed)), None)
        if refused is not None:
            await self._forget(adapter.id)
            raise refused
        if failures and len(failures) == len(outcomes):
            raise EngineFailed(str(failures[0])) from failures[0]
        await self._make_room()

    async def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version with the end of its last request; does not wait for that."""
        if self._running[adapter_id] > 0:
            self._leaving.add(adapter_id)
        else:
            await self._forget(adapter_id)

    async def stats(self) -> EngineStats:
        """What the servers say now, all of them together; of one that is slow what it said last."""
        await asyncio.gather(*(replica.refresh() for replica in self._ready()))
        states = {replica.state for replica in self.replicas}
        ready = self._ready()
        stats = dataclasses.replace(self._totals, device=f"{len(ready)} of {len(self.replicas)} servers of vLLM")
        stats.state = next((state for state in ("ready", "loading", "failed") if state in states), "idle")
        stats.error = "; ".join(one.reason for one in self.replicas) if stats.state == "failed" else None
        stats.adapters = tuple(self._adapters)
        add_metrics(stats, [replica.metrics for replica in ready])
        return stats

    def _use(self, adapter: AdapterRef) -> None:
        self._adapters[adapter.id] = adapter
        self._adapters.move_to_end(adapter.id)

    async def _make_room(self) -> None:
        """Take away idle adapters above the limit, the least recently used first."""
        idle = [name for name in self._adapters if not self._running[name]]
        for name in idle[: max(0, len(self._adapters) - self.options.max_adapters)]:
            await self._forget(name)

    async def _forget(self, adapter_id: str) -> None:
        self._leaving.discard(adapter_id)
        if self._adapters.pop(adapter_id, None) is not None:
            await asyncio.gather(*(replica.unload_adapter(adapter_id) for replica in self._ready()))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.options.folder)

    @cached_property
    def _shapes(self) -> Shapes:
        """Of the model's weights, where they lie here too and can be read."""
        try:
            return folder_shapes(self.options.folder)
        except ValueError as error:
            logger.warning("adapters are not checked against the model: %s", error)
            return {}

    def _check(self, adapter: AdapterRef) -> None:
        check_adapter(adapter, self._shapes)

    def _note_change(self) -> None:
        lengths = [replica.max_model_len for replica in self._ready() if replica.max_model_len]
        shortest = min([self._info.max_model_len, *lengths])
        if shortest < self._info.max_model_len:
            self._info = dataclasses.replace(self._info, max_model_len=shortest)
        self._changed.set()


def _free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
