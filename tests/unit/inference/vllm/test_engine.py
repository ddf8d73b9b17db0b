"""The engine before servers of its own kind: which one answers, what happens when one fails, and their adapters."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from heddle.inference.engine.base import (
    AdapterRef,
    EngineBusy,
    EngineFailed,
    RequestRefused,
    Sampling,
    TokenEvent,
    TokenRequest,
)
from heddle.inference.engine.vllm.client import VllmEngine, VllmOptions, choose_server, prefix_key
from heddle.inference.served_model import TINY, TINY_FOLDER
from tests.support.models import make_adapter, make_model
from tests.support.server import free_port
from tests.support.vllm import LookAlike, StubEngine, make_app, parse

FAST = 10_000.0


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of the kind that the server has."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*arguments, **fixtures))

    return run


class Recording(StubEngine):
    """A stub that counts, and that can be told to fail."""

    def __init__(self, rate: float = FAST) -> None:
        super().__init__(rate)
        self.began = self.ended = self.cut = 0
        self.fails_after: int | None = None
        """Tokens of an answer before it breaks."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """As its base class, up to the failure."""
        self.began += 1
        count = 0
        try:
            if self.fails_after == 0:
                raise RuntimeError("told to fail")
            async for event in super().generate(request):
                yield event
                count += 1
                if count == self.fails_after:
                    raise RuntimeError("told to fail")
        except (GeneratorExit, asyncio.CancelledError):
            self.cut += event.finish_reason is None
            raise
        self.ended += 1


class Served:
    """One look-alike in a thread of this process, on a port that it can come back to."""

    def __init__(self, port: int = 0, *arguments: str) -> None:
        self.port = port or free_port()
        words = f"--model {TINY_FOLDER} --served-model-name {TINY} --host 127.0.0.1 --port {self.port} --stub 1"
        words += " --generation-config vllm --enable-prompt-tokens-details --enable-lora"
        words += " --structured-outputs-config.backend guidance"
        self.server = LookAlike(parse([*words.split(), *arguments]))
        self.engine = Recording()
        self.server.engine = self.engine
        config = uvicorn.Config(make_app(self.server), port=self.port, log_level="critical", timeout_keep_alive=60)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Served":
        self._thread.start()
        wait_for(lambda: self._uvicorn.started, "the look-alike serves")
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join(120)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll from a plain test; fails after the deadline."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll from a coroutine; fails after the deadline."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


@pytest.fixture
def pair() -> Iterator[list[Served]]:
    """Two servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(Served()) for _ in range(2)]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> AdapterRef:
    """A version that fits the model."""
    return AdapterRef("team/p/a@1#0", make_adapter(tmp_path_factory.mktemp("adapter"), TINY_FOLDER))


@asynccontextmanager
async def running(*servers: Served, **options: Any) -> AsyncIterator[VllmEngine]:
    """The engine before these servers, all of them known to be ready."""
    urls = tuple(server.url for server in servers)
    engine = VllmEngine(VllmOptions(TINY_FOLDER, model=TINY, urls=urls, **options))
    try:
        await engine.start()
        await until(lambda: all(one.state == "ready" for one in engine.replicas), "every server is ready")
        yield engine
    finally:
        await engine.stop()


def asked(first: int = 5, tokens: int = 3, **fields: Any) -> TokenRequest:
    """A request whose prompt begins with a token of its own."""
    return TokenRequest(f"r{first}", (first, 6, 7), Sampling(max_tokens=tokens, seed=0), **fields)


async def tokens_of(engine: VllmEngine, request: TokenRequest) -> int:
    """How many tokens its answer has."""
    return sum([len(event.token_ids) async for event in engine.generate(request)])


def preferring(engine: VllmEngine, server: Served) -> TokenRequest:
    """A request that goes to that server when both are idle."""
    loads = {replica.name: 0.0 for replica in engine.replicas}
    requests = (asked(first) for first in range(1, 200))
    return next(one for one in requests if choose_server(prefix_key(one), loads).endswith(f":{server.port}"))


@on_loop
async def test_requests_with_one_beginning_stay_together(pair: list[Served]) -> None:
    async with running(*pair) as engine:
        for server in pair:
            request = preferring(engine, server)
            before = server.engine.ended
            for _ in range(3):
                assert await tokens_of(engine, request) == 3
            assert server.engine.ended == before + 3


@on_loop
async def test_many_at_once_use_every_server(pair: list[Served]) -> None:
    for server in pair:
        server.engine = server.server.engine = Recording(rate=100)
    async with running(*pair) as engine:
        request = preferring(engine, pair[0])
        counts = await asyncio.gather(*(tokens_of(engine, replace(request, id=str(n))) for n in range(20)))
    assert counts == [3] * 20
    assert pair[0].engine.began >= pair[1].engine.began >= 4


@on_loop
async def test_a_failure_before_the_first_token_is_taken_over(pair: list[Served]) -> None:
    async with running(*pair) as engine:
        pair[0].engine.fails_after = 0
        assert await tokens_of(engine, preferring(engine, pair[0])) == 3
        assert (pair[0].engine.began, pair[1].engine.ended) == (1, 1)
        pair[1].engine.fails_after = 0
        with pytest.raises(EngineFailed):
            await tokens_of(engine, preferring(engine, pair[0]))
        assert pair[1].engine.began == 2, "once, and not for ever"


@on_loop
async def test_a_failure_after_the_first_token_is_told(pair: list[Served]) -> None:
    async with running(*pair) as engine:
        pair[0].engine.fails_after = 2
        seen = []
        with pytest.raises(EngineFailed):
            async for event in engine.generate(preferring(engine, pair[0])):
                seen += event.token_ids
        assert len(seen) == 2 and pair[1].engine.began == 0


@on_loop
async def test_closing_the_iterator_ends_the_request_at_the_server(pair: list[Served]) -> None:
    for server in pair:
        server.engine = server.server.engine = Recording(rate=100)
    async with running(*pair) as engine:
        async with aclosing(engine.generate(asked(tokens=30_000))) as events:  # type: ignore[type-var]
            async for _ in events:
                break
        await until(lambda: sum(server.engine.cut for server in pair) == 1, "the server knows")
        assert (await engine.stats()).aborted == 1
        assert [replica.running for replica in engine.replicas] == [0, 0]


@on_loop
async def test_a_server_that_goes_is_left_out_and_comes_back(pair: list[Served], adapter: AdapterRef) -> None:
    async with running(*pair) as engine:
        await engine.load_adapter(adapter)
        assert [set(server.server.adapters) for server in pair] == [{adapter.id}] * 2
        request = preferring(engine, pair[0])
        pair[0].__exit__()
        assert await tokens_of(engine, request) == 3
        await until(lambda: engine.replicas[0].state == "failed", "the loss is noted")
        assert await tokens_of(engine, replace(request, adapter=adapter)) == 3
        with Served(pair[0].port) as again:
            await until(lambda: engine.replicas[0].state == "ready", "it is back")
            assert set(again.server.adapters) == {adapter.id}, "before it takes requests"
            assert await tokens_of(engine, request) == 3
            assert again.engine.ended == 1


@on_loop
async def test_an_adapter_that_the_server_lost_is_loaded_again(pair: list[Served], adapter: AdapterRef) -> None:
    async with running(*pair) as engine:
        await engine.load_adapter(adapter)
        for server in pair:
            server.server.adapters.clear()
        assert await tokens_of(engine, asked(adapter=adapter)) == 3


@on_loop
async def test_an_adapter_leaves_with_its_last_request(pair: list[Served], adapter: AdapterRef) -> None:
    for server in pair:
        server.engine = server.server.engine = Recording(rate=100)
    async with running(*pair) as engine:
        async with aclosing(engine.generate(asked(tokens=30_000, adapter=adapter))) as events:  # type: ignore[type-var]
            assert (await anext(events)).policy == adapter.id
            await engine.unload_adapter(adapter.id)
            assert sum(adapter.id in server.server.adapters for server in pair) == 1
        assert not any(server.server.adapters for server in pair)
        await engine.unload_adapter("never there")


@on_loop
async def test_the_least_used_adapter_makes_room(pair: list[Served], adapter: AdapterRef) -> None:
    adapters = [replace(adapter, id=f"a@{number}") for number in range(3)]
    async with running(*pair, max_adapters=2) as engine:
        await engine.load_adapter(adapters[0])
        await engine.load_adapter(adapters[1])
        await tokens_of(engine, asked(adapter=adapters[0]))
        await engine.load_adapter(adapters[2])
        assert [set(server.server.adapters) for server in pair] == [{"a@0", "a@2"}] * 2
        assert set((await engine.stats()).adapters) == {"a@0", "a@2"}


@on_loop
async def test_an_adapter_that_does_not_fit_is_refused(pair: list[Served]) -> None:
    async with running(*pair) as engine:
        with pytest.raises(RequestRefused, match="No such file") as refused:
            await engine.load_adapter(AdapterRef("a@1", Path("/nowhere")))
        assert refused.value.param == "model"
        assert (await engine.stats()).adapters == ()


@on_loop
async def test_an_adapter_that_does_not_fit_is_known_here(pair: list[Served], tmp_path: Path) -> None:
    """vLLM itself takes one of another model or kind."""
    other = make_adapter(tmp_path / "other", make_model(tmp_path / "model"))
    kind = make_adapter(tmp_path / "kind", TINY_FOLDER, peft_type="IA3")
    async with running(*pair) as engine:
        for folder, reason in ((other, "has shape"), (kind, "IA3")):
            reference = AdapterRef("a@1", folder)
            with pytest.raises(RequestRefused, match=reason):
                await engine.load_adapter(reference)
            with pytest.raises(RequestRefused, match=reason):
                await tokens_of(engine, asked(adapter=reference))
        assert not any(server.server.adapters for server in pair)


@on_loop
async def test_what_the_server_refuses_is_no_failure(pair: list[Served]) -> None:
    async with running(*pair) as engine:
        with pytest.raises(RequestRefused) as refused:
            await tokens_of(engine, replace(asked(), sampling=Sampling(max_tokens=3, seed=0, temperature=3.0)))
        assert "temperature" in str(refused.value)
        assert [replica.state for replica in engine.replicas] == ["ready", "ready"]


@on_loop
async def test_more_than_may_wait_is_refused(pair: list[Served]) -> None:
    for server in pair:
        server.engine = server.server.engine = Recording(rate=100)
    async with running(*pair, max_running=1, max_waiting=1) as engine:
        waiting = [engine.generate(asked(first, tokens=30_000)) for first in range(3)]
        for events in waiting:
            await anext(events)
        with pytest.raises(EngineBusy):
            await tokens_of(engine, asked())
        for events in waiting:
            await events.aclose()  # type: ignore[attr-defined]


@on_loop
async def test_the_shortest_context_counts() -> None:
    with Served(0, "--max-model-len", "100") as short, Served() as long:
        async with running(short, long) as engine:
            assert engine.info().max_model_len == 100


@on_loop
async def test_no_server_is_a_failure_at_once(adapter: AdapterRef) -> None:
    engine = VllmEngine(VllmOptions(TINY_FOLDER, model=TINY, urls=(f"http://127.0.0.1:{free_port()}",)))
    try:
        with pytest.raises(EngineFailed, match="no connection"):
            await engine.start()
        stats = await engine.stats()
        assert stats.state == "failed" and stats.error is not None
        await engine.load_adapter(adapter, start=False)
    finally:
        await engine.stop()
    assert (await engine.stats()).state == "idle"
