"""Several servers over the same control tables: limits of completions hold for all of them together."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from heddle.errors import Busy
from heddle.inference.limits import PROJECT, Limits, SharedLimits
from heddle.settings import Settings
from heddle.store.base import ControlGroups
from heddle.store.control.inference import inference_places
from tests.support.postgres import postgres
from tests.support.servers import Two, end_leases, two

__all__ = ["postgres", "two"]


def limits_of(server: ControlGroups, **settings: int) -> SharedLimits:
    """The limits of a server, whose background work runs in tasks."""
    return SharedLimits(Limits(Settings(**settings)), server.meters, asyncio.create_task)


def test_places_are_shared_and_those_of_a_dead_server_come_back(two: Two) -> None:
    async def main() -> None:
        async with two.open() as servers:
            one, other = (limits_of(server, inference_project_concurrency=3) for server in servers)
            places = [await limits.take("team/p", "k", 10) for limits in (one, other, one)]
            assert places[2].headers["x-ratelimit-remaining-requests"] == "0"
            for limits in (one, other):
                with pytest.raises(Busy, match="3 completions"):
                    await limits.take("team/p", "k", 10)
            assert await other.running((PROJECT, "team/p")) == 3
            await other.take("team/q", "k", 10)
            places[0].end(5)
            async with asyncio.timeout(30):
                while await other.running((PROJECT, "team/p")) == 3:
                    await asyncio.sleep(0.01)
            await other.take("team/p", "k", 10)
            await end_leases(servers[0], inference_places)
            assert await other.running((PROJECT, "team/p")) == 0
            await one.take("team/p", "k", 10)
            for limits in (one, other):
                await limits.stop()

    asyncio.run(main())


def test_many_at_once_never_exceed_a_limit(two: Two) -> None:
    async def main() -> None:
        async with two.open() as servers:
            both = [limits_of(server, inference_key_concurrency=7) for server in servers]

            async def ask(number: int) -> bool:
                try:
                    await both[number % 2].take("team/p", "k", 1)
                except Busy:
                    return False
                return True

            admitted = await asyncio.gather(*(ask(number) for number in range(40)))
            assert sum(admitted) == 7
            for limits in both:
                await limits.stop()

    asyncio.run(main())


def test_tokens_are_owed_to_all_servers(two: Two) -> None:
    async def main() -> None:
        async with two.open() as servers:
            one, other = (limits_of(server, inference_project_tokens_per_minute=600) for server in servers)
            place = await one.take("team/p", "k", 100)
            place.end(700)

            async with asyncio.timeout(30):
                while await other.running((PROJECT, "team/p")):
                    await asyncio.sleep(0.01)
            with pytest.raises(Busy, match="600 tokens per minute"):
                await other.take("team/p", "k", 1)
            await one.stop()

    asyncio.run(main())


@pytest.mark.parametrize("two", ["sqlite"], indirect=True)
def test_the_place_of_a_client_that_goes_away_while_it_is_admitted_comes_back(two: Two) -> None:
    """It stayed taken until its lease ended, and its tokens were owed."""

    async def main() -> None:
        async with two.open() as (server, _):
            ended: list[asyncio.Task[None]] = []
            rules = Limits(Settings(inference_project_concurrency=1, inference_project_tokens_per_minute=100))

            def spawn(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
                ended.append(asyncio.create_task(work))
                return ended[-1]

            limits, take = SharedLimits(rules, server.meters, spawn), server.meters.take

            async def take_and_cancel(*given: Any) -> Any:
                taken = await take(*given)
                asking.cancel()
                await asyncio.sleep(0)
                return taken

            server.meters.take = take_and_cancel  # type: ignore[method-assign]
            asking = asyncio.create_task(limits.take("team/p", "k", 90))
            with pytest.raises(asyncio.CancelledError):
                await asking
            server.meters.take = take  # type: ignore[method-assign]
            await asyncio.gather(*ended)
            assert (await limits.take("team/p", "k", 90)).headers["x-ratelimit-remaining-requests"] == "0"
            await limits.stop()

    asyncio.run(main())
