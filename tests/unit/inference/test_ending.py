"""However a completion ends, it gives its place back and is counted: also where its client is gone meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heddle.errors import Busy
from heddle.inference import service
from heddle.inference.service import Inference, Running


class Ending:
    """A completion whose steps take their time, and what was done at its end."""

    def __init__(self, begin: Exception | None = None) -> None:
        self.done: list[str] = []
        self.inference = Inference.__new__(Inference)
        self.inference.accounts = cast(Any, SimpleNamespace(spawn=asyncio.create_task))
        self._begin = begin
        generation = SimpleNamespace(
            begin=self._start,
            finish=self._step("finished"),
            close=self._step("closed"),
            first_token_seconds=0,
            started=0,
        )
        self.running = cast(
            Running,
            SimpleNamespace(
                ending=None,
                generation=generation,
                plan=SimpleNamespace(answer=SimpleNamespace(error=None), facts=[], choices=[]),
                parsed=SimpleNamespace(keep=None),
                ticket=SimpleNamespace(close=self._step("counted"), release=self._step("released")),
                record=SimpleNamespace(),
            ),
        )

    def _step(self, name: str) -> Any:
        async def take(*_: Any) -> None:
            await asyncio.sleep(0.02)
            self.done.append(name)

        return take

    async def _start(self) -> None:
        if self._begin is not None:
            raise self._begin


async def cut(work: Any, after: float, times: int) -> None:
    """Cancel work some times, while it ends too."""
    task = asyncio.create_task(work)
    await asyncio.sleep(after)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.005)
    await asyncio.wait([task])
    await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that takes its time, as one of many tokens does."""

    async def body(_: Running) -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {}

    monkeypatch.setattr(service, "_body", body)


@pytest.mark.parametrize("after", [0.01, 0.03, 0.05, 0.07])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_completion_that_is_cut_at_any_moment_is_counted(after: float, times: int) -> None:
    async def main() -> None:
        ending = Ending()
        await cut(ending.inference.whole(ending.running), after, times)
        assert ending.done[-2:] == ["closed", "counted"]

    asyncio.run(main())


def test_who_ends_a_completion_again_waits_until_it_is_settled() -> None:
    """A response that was cancelled while it was stored was answered as still in progress."""

    async def main() -> None:
        ending = Ending()
        first = asyncio.create_task(ending.inference.end(ending.running))
        await asyncio.sleep(0)
        await ending.inference.end(ending.running, asyncio.CancelledError())
        assert ending.done == ["closed", "counted"]
        await first

    asyncio.run(main())


def test_one_that_is_refused_at_its_beginning_gives_its_place_back() -> None:
    async def main() -> None:
        ending = Ending(begin=Busy("full"))
        await cut(ending.inference.begin_generation(ending.running), 0.01, 2)
        assert ending.done == ["closed", "released"]

    asyncio.run(main())
