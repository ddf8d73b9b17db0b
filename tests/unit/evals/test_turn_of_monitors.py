"""Which of several servers handles the calls that monitors wait for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.evals.monitors import Monitors
from heddle.store.control.monitors import News
from heddle.store.control.repository import Instance
from heddle.wire.calls import Ending


def store_of(turns: list[bool], endings: list[list[Ending]], news: list[News]) -> Any:
    """A store whose leases give these turns, whose calls have ended in these batches, and that is seen like this."""

    async def take(name: str, seconds: float) -> bool:
        return turns.pop(0)

    async def take_endings(limit: int, held: set[str]) -> list[Ending]:
        return endings.pop(0) if endings else []

    async def nothing(*given: Any) -> list[Any]:
        return []

    async def number(name: str) -> int:
        return -1

    async def look(now: int) -> News:
        return news.pop(0)

    instance = Instance(is_shared=True)
    return SimpleNamespace(
        leases=SimpleNamespace(take=take, instance=instance),
        calls=SimpleNamespace(take_endings=take_endings, drop_endings=nothing, has_endings=asyncio.Event()),
        monitor_waits=SimpleNamespace(due=nothing, look=look, instance=instance),
        changes=SimpleNamespace(number=number),
    )


FREE, OTHERS = News(-1, is_others_turn=False, is_any=False), News(-1, is_others_turn=True, is_any=True)
CALLS = FREE._replace(is_any=True)


@pytest.mark.parametrize(
    ("turns", "news", "is_woken"),
    [
        ([False], OTHERS, False),
        ([False], FREE, True),
        ([True, False], OTHERS, False),
        ([True, False], FREE, True),
        ([True, True], FREE, False),
        ([True, True], CALLS, True),
    ],
    ids=["another's", "free", "lost on the way", "lost, and free", "its own", "its own, and calls"],
)
def test_a_server_asks_for_its_turn_again_however_it_lost_it(turns: list[bool], news: News, is_woken: bool) -> None:
    async def main() -> None:
        store = store_of(turns, [[Ending(1, "p", "c")]], [news])
        monitors = Monitors(store, submit=None)  # type: ignore[arg-type]
        assert await monitors._watch() is None and turns == []
        await monitors._follow_others()
        assert store.calls.has_endings.is_set() == is_woken

    asyncio.run(main())


def test_a_turn_in_which_nothing_happens_is_kept() -> None:
    async def main() -> None:
        turns, loop = [True], asyncio.get_running_loop()
        store = store_of(turns, [], [FREE, FREE])
        monitors = Monitors(store, submit=None)  # type: ignore[arg-type]
        await monitors._watch()
        await monitors._follow_others()
        assert turns == [], "a turn that was just taken is not taken again"
        turns.append(True)
        monitors._renewed = loop.time() - 60
        await monitors._follow_others()
        assert turns == [] and not store.calls.has_endings.is_set()

    asyncio.run(main())
