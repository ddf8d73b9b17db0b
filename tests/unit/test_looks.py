"""What the parts of a server ask at the same time is one read."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from heddle.errors import Unavailable
from heddle.store.control.repository import Looks, Question

_ENGINE = sa.create_engine("sqlite://", poolclass=sa.StaticPool)


class Reads:
    """An executor that counts what it is asked."""

    def __init__(self) -> None:
        self.count = 0
        self.is_out = False

    async def read(self, work: Callable[[sa.Connection], Any], *, is_long: bool = False) -> Any:
        self.count += 1
        if self.is_out:
            raise Unavailable("PostgreSQL does not answer")
        with _ENGINE.connect() as connection:
            return work(connection)

    async def write(self, work: Callable[[sa.Connection], Any], size: int = 0) -> Any:
        raise AssertionError("a look writes nothing")


def _number(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.Integer)


ONE, TWO = Question(_number("a")), Question(_number("a") + _number("b"), _number("b"))


def test_what_is_asked_at_the_same_time_is_one_read() -> None:
    async def main() -> None:
        reads, looks = Reads(), Looks()
        for value in (1, 2):
            together = asyncio.gather(looks.ask(reads, ONE, a=value), looks.ask(reads, TWO, a=value, b=5))
            assert await together == [(value,), (value + 5, 5)]
            assert reads.count == value
        assert await looks.ask(reads, ONE, a=3) == (3,), "what is asked later is read anew"
        assert reads.count == 3

    asyncio.run(main())


def test_all_who_asked_learn_that_nothing_was_read() -> None:
    async def main() -> None:
        reads, looks = Reads(), Looks()
        reads.is_out = True
        found = await asyncio.gather(
            looks.ask(reads, ONE, a=1), looks.ask(reads, TWO, a=1, b=2), return_exceptions=True
        )
        assert [type(error) for error in found] == [Unavailable, Unavailable] and reads.count == 1
        reads.is_out = False
        assert await looks.ask(reads, ONE, a=1) == (1,)

    asyncio.run(main())


def test_who_stops_does_not_take_the_answer_from_others() -> None:
    async def main() -> None:
        reads, looks = Reads(), Looks()
        first = asyncio.create_task(looks.ask(reads, ONE, a=1))
        second = asyncio.create_task(looks.ask(reads, TWO, a=1, b=2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == (3, 2) and first.cancelled() and reads.count == 1

    asyncio.run(main())


@pytest.mark.parametrize(("now", "pause"), [(100.0, 2.0), (100.5, 1.5), (101.99, 2.01), (107.0, 1.0)])
def test_looks_are_at_the_same_instants_for_all(monkeypatch: pytest.MonkeyPatch, now: float, pause: float) -> None:
    async def main() -> None:
        clock, looks = asyncio.get_running_loop(), Looks()
        monkeypatch.setattr(clock, "time", lambda: 100.0)
        looks.seconds_to_next(2.0)
        monkeypatch.setattr(clock, "time", lambda: now)
        assert looks.seconds_to_next(2.0) == pytest.approx(pause)
        monkeypatch.undo()

    asyncio.run(main())
