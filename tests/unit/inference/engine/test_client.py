"""The engine as the server uses it, with its process."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import uvloop

pytest.importorskip("torch")

from heddle.errors import Unavailable
from heddle.inference.engine.base import (
    AdapterRef,
    EngineFailed,
    EngineStats,
    RequestRefused,
    TokenEvent,
    TokenRequest,
)
from heddle.inference.engine.local.client import LocalEngine, LocalOptions
from tests.unit.inference.engine.conftest import CoreMaker
from tests.unit.inference.engine.helpers import request, run

PROMPT = list(range(30, 75))
LONG = request(PROMPT, max_tokens=3000, temperature=1.0, ignore_eos=True)
T = TypeVar("T")


class Loop:
    """One event loop, of the kind that the server has, for the engine and all tests of this module."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def __call__(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        return self._runner.run(asyncio.wait_for(work, seconds))


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield Loop(runner)


@pytest.fixture(scope="module")
def engine(loop: Loop, folder: Path) -> Iterator[LocalEngine]:
    """Started by whoever comes first."""
    engine = LocalEngine(LocalOptions(folder=folder, device="cpu", threads=1, kv_memory=64 * 2**20))
    yield engine
    loop(engine.stop())


async def everything(engine: LocalEngine, each: TokenRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(each)]


async def begin(engine: LocalEngine, each: TokenRequest) -> AsyncIterator[TokenEvent]:
    """A stream whose first event has come."""
    stream = engine.generate(each)
    assert (await anext(stream)).token_ids
    return stream


async def quiet(engine: LocalEngine) -> EngineStats:
    """Figures once nothing runs any more."""
    while True:
        stats = await engine.stats()
        if not stats.running and not stats.waiting:
            return stats


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


@pytest.mark.thorough
def test_many_waiters_share_one_start(loop: Loop, folder: Path) -> None:
    async def work() -> None:
        engine = LocalEngine(LocalOptions(folder=folder, device="cpu"))
        assert engine.info().max_model_len == 4096
        assert (await engine.stats()).state == "idle"
        starts = [asyncio.ensure_future(engine.start()) for _ in range(20)]
        await asyncio.sleep(0)
        assert (await engine.stats()).state == "loading"
        pids = {engine.pid for _ in await asyncio.gather(*starts)}
        assert len(pids) == 1 and None not in pids
        stats = await engine.stats()
        assert stats.state == "ready" and stats.load_seconds > 0 and stats.resident_bytes > 10 * 2**20
        assert (stats.device, stats.dtype) == ("cpu", "float32")
        waiting = asyncio.ensure_future(everything(engine, LONG))
        stream = await begin(engine, LONG)
        await engine.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await waiting
        with pytest.raises(EngineFailed, match="stopped"):
            async for _ in stream:
                pass
        assert not alive(pids.pop())
        assert (await engine.stats()).state == "idle"

    loop(work())


def test_stopping_while_it_loads_ends_the_start(loop: Loop, folder: Path) -> None:
    async def work() -> None:
        engine = LocalEngine(LocalOptions(folder=folder, device="cpu"))
        start = asyncio.ensure_future(engine.start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await start
        assert engine.pid is None

    loop(work())


def test_events_carry_what_the_core_made(loop: Loop, engine: LocalEngine, make_core: CoreMaker) -> None:
    each = request(PROMPT, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (expected,) = run(make_core(), each)
    events = loop(everything(engine, each))
    assert tokens_of(events) == expected.tokens
    logprobs = [item for event in events for item in event.logprobs]
    assert [(item.token_id, item.logprob, item.rank, item.top) for item in logprobs] == expected.logprobs
    first, last = events[0], events[-1]
    assert first.prompt_logprobs is not None and expected.prompt_logprobs is not None
    assert [item and (item.token_id, item.rank) for item in first.prompt_logprobs] == [
        item and (item[0], item[2]) for item in expected.prompt_logprobs
    ]
    assert first.cached_tokens == 0
    assert all(event.prompt_logprobs is None and event.cached_tokens is None for event in events[1:])
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert all(event.finish_reason is None for event in events[:-1])


def test_the_same_seed_gives_the_same_tokens_in_another_process(
    loop: Loop, engine: LocalEngine, make_core: CoreMaker
) -> None:
    requests = [request(PROMPT, temperature=1.2, seed=seed, max_tokens=40) for seed in range(8)]
    expected = [result.tokens for result in run(make_core(), *requests)]

    async def together() -> list[list[TokenEvent]]:
        return await asyncio.gather(*(everything(engine, each) for each in requests))

    assert [tokens_of(events) for events in loop(together())] == expected


def test_a_slow_reader_gets_what_has_come_as_one_event(loop: Loop, engine: LocalEngine) -> None:
    async def work() -> None:
        stream = engine.generate(request(PROMPT, max_tokens=50, ignore_eos=True, logprobs=0))
        first = await anext(stream)
        assert first.finish_reason is None
        await quiet(engine)
        rest = [event async for event in stream]
        assert len(rest) == 1
        assert rest[0].finish_reason == "length"
        assert len(first.token_ids) + len(rest[0].token_ids) == 50
        assert [item.token_id for item in rest[0].logprobs] == list(rest[0].token_ids)

    loop(work())


def test_refusals_come_with_the_field(loop: Loop, engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="vocabulary") as caught:
        loop(everything(engine, request([9999])))
    assert caught.value.param == "prompt"
    with pytest.raises(RequestRefused) as caught:
        loop(engine.load_adapter(AdapterRef("nothing@1", tmp_path)))
    assert caught.value.param == "model"
    assert loop(everything(engine, request(PROMPT)))[-1].finish_reason == "length"


def test_adapters_come_and_go(loop: Loop, engine: LocalEngine, adapters: list[Path], make_core: CoreMaker) -> None:
    each = request(PROMPT, adapter=adapters[0], ignore_eos=True)
    (expected,) = run(make_core(), each)
    events = loop(everything(engine, each))
    assert tokens_of(events) == expected.tokens
    assert {event.policy for event in events} == {adapters[0].name}
    assert loop(engine.stats()).adapters == (adapters[0].name,)
    loop(engine.unload_adapter(adapters[0].name))
    loop(engine.unload_adapter("unknown"))
    assert loop(engine.stats()).adapters == ()


def test_two_hundred_aborts_in_mid_stream_leave_nothing(loop: Loop, engine: LocalEngine) -> None:
    async def one(number: int) -> None:
        each = request([*PROMPT, number], max_tokens=3000, temperature=1.0, seed=number, ignore_eos=True)
        if number % 2:
            await (await begin(engine, each)).aclose()  # type: ignore[attr-defined]
            return
        reader = asyncio.ensure_future(everything(engine, each))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    async def work() -> None:
        assert tokens_of(await everything(engine, request(PROMPT)))  # what is cancelled while it starts is never sent
        before = await engine.stats()
        await asyncio.gather(*(one(number) for number in range(200)))
        stats = await quiet(engine)
        assert stats.kv_blocks_used == 0
        assert stats.aborted - before.aborted == 200
        assert tokens_of(await everything(engine, request(PROMPT)))

    loop(work())


def test_a_killed_process_fails_its_requests_and_the_next_one_starts_another(loop: Loop, engine: LocalEngine) -> None:
    async def work() -> None:
        streams = [await begin(engine, LONG) for _ in range(4)]
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineFailed, match="killed"):
                async for _ in stream:
                    pass
        stats = await engine.stats()
        assert stats.state == "failed" and "killed" in (stats.error or "")
        assert tokens_of(await everything(engine, request(PROMPT)))
        assert engine.pid not in (None, first)
        assert (await engine.stats()).state == "ready"

    loop(work())


def test_a_model_that_cannot_be_loaded_says_why_to_everybody(loop: Loop, folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")

    async def work() -> None:
        engine = LocalEngine(LocalOptions(folder=tmp_path, device="cpu"))
        results = await asyncio.gather(*(everything(engine, LONG) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [EngineFailed] * 3
        assert "model.safetensors" in str(results[0])
        stats = await engine.stats()
        assert stats.state == "failed" and stats.error == str(results[0])
        await engine.stop()

    loop(work())


def test_a_folder_without_a_config_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"config\.json"):
        LocalEngine(LocalOptions(folder=tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Unavailable, match=r"config\.json"):
        LocalEngine(LocalOptions(folder=tmp_path))


PARENT = """
import asyncio, sys
from pathlib import Path
from heddle.inference.engine.local.client import LocalEngine, LocalOptions

async def work():
    engine = LocalEngine(LocalOptions(folder=Path(sys.argv[1]), device="cpu"))
    await engine.start()
    assert "torch" not in sys.modules
    print(engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""


def test_the_process_ends_with_its_parent_which_never_imports_torch(folder: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
        parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(120)
    assert not alive(child)


def alive(pid: int | None) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    assert pid is not None
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
