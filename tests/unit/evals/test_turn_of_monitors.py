"""Which of several servers handles the calls that monitors wait for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.evals import monitors as module
from heddle.evals.monitors import Monitors
from heddle.store.control.repository import Instance
from heddle.wire.calls import Ending


def store_of(turns: list[bool], endings: list[list[Ending]]) -> Any:
    """A store whose leases give these turns, and whose calls have ended in these batches."""

    async def take(name: str, seconds: float) -> bool:
        return turns.pop(0)

    async def take_endings(limit: int, held: set[str]) -> list[Ending]:
        return endings.pop(0) if endings else []

    async def nothing(*given: Any) -> list[Any]:
        return []

    async def number(name: str) -> int:
        return -1

    return SimpleNamespace(
        leases=SimpleNamespace(take=take, instance=Instance(is_shared=True)),
        calls=SimpleNamespace(take_endings=take_endings, drop_endings=nothing, has_endings=asyncio.Event()),
        monitor_waits=SimpleNamespace(due=nothing),
        changes=SimpleNamespace(number=number),
    )


@pytest.mark.parametrize(
    ("turns", "pause"),
    [([False], module._OTHERS_SECONDS), ([True, False], module._OTHERS_SECONDS), ([True, True], None)],
    ids=["another's", "lost on the way", "its own"],
)
def test_a_server_asks_for_its_turn_again_however_it_lost_it(turns: list[bool], pause: float | None) -> None:
    """None: it is woken every second as long as it has its turn."""
    store = store_of(turns, [[Ending(1, "p", "c")]])
    assert asyncio.run(Monitors(store, submit=None)._watch()) == pause  # type: ignore[arg-type]
    assert turns == []
