"""Two servers with control tables on PostgreSQL and calls on ClickHouse, as they run in earnest."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from heddle import settings
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALLS
from heddle.store.clickhouse.store import _LOCK, migrate
from heddle.store.control.pending_calls import call_halves
from heddle.store.postgres import connection
from tests.support import scale, two_stores
from tests.support.patience import strain
from tests.support.selection import examples
from tests.support.written_calls import AT, PROJECT, first_half, second_half

pytestmark = pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing()))


@dataclass(frozen=True)
class Server:
    """What one server writes with."""

    clickhouse: Clickhouse
    writes: CallWrites
    waiting: Callable[[], Awaitable[int]]

    async def statuses(self) -> list[tuple[str, int]]:
        """Id and status of every live call."""
        found = await self.clickhouse.rows(f"SELECT id, status FROM {CALLS} FINAL WHERE deleted_at = 0 ORDER BY id")
        return [(row[0], row[1]) for row in found]


@asynccontextmanager
async def opened(given: dict[str, str]) -> AsyncIterator[Server]:
    """A server on the two databases; servers may be opened at the same time."""
    from heddle.store.postgres.control import open_control

    control = await open_control(settings.load(given, {}))
    clickhouse = Clickhouse(given["store"], 4, 30)
    await migrate(clickhouse, clickhouse.place, control.executor)
    writes = CallWrites(clickhouse, control.executor, two_stores.QUEUE_BYTES)

    async def waiting() -> int:
        query = sa.select(sa.func.count()).select_from(call_halves)
        return await control.executor.read(lambda connection: int(connection.execute(query).scalar_one()))

    yield Server(clickhouse, writes, waiting)
    await writes.close()
    await asyncio.to_thread(clickhouse.close)
    await control.close()


async def with_two(work: Callable[[Server, Server], Awaitable[None]]) -> None:
    """Run with two servers that start at the same time."""
    given = scale.new_databases()
    contexts = opened(given), opened(given)
    servers = await asyncio.gather(*(context.__aenter__() for context in contexts))
    try:
        await work(*servers)
    finally:
        for context in contexts:
            await context.__aexit__(None, None, None)


def test_halves_meet_whatever_server_brings_them() -> None:
    ids = [f"c{number:04}" for number in range(examples(400))]

    async def work(one: Server, other: Server) -> None:
        chance = random.Random(3)

        async def bring(call_id: str) -> None:
            server, second = chance.sample((one, other), 2)
            await asyncio.gather(
                server.writes.write([first_half(call_id)], []), second.writes.write([], [second_half(call_id)])
            )

        for part in range(0, len(ids), 100):
            await asyncio.gather(*map(bring, ids[part : part + 100]))
        assert await other.statuses() == [(call_id, 0) for call_id in ids]
        assert await one.waiting() == 0

    asyncio.run(with_two(work))


def test_everything_at_once_leaves_every_call_once_and_whole() -> None:
    ids = [f"c{number:04}" for number in range(150)]

    async def work(one: Server, other: Server) -> None:
        chance = random.Random(4)

        async def use(call_id: str) -> None:
            start, end = first_half(call_id), second_half(call_id)
            verbs = [
                lambda writes: writes.write([start], []),
                lambda writes: writes.write([start], []),
                lambda writes: writes.write([], [end]),
                lambda writes: writes.write([], [end]),
                lambda writes: writes.rename(PROJECT, call_id, "named"),
            ]
            chance.shuffle(verbs)
            await asyncio.gather(*(verb(chance.choice((one, other)).writes) for verb in verbs))

        for part in range(0, len(ids), 50):
            await asyncio.gather(*map(use, ids[part : part + 50]))
        assert await other.statuses() == [(call_id, 0) for call_id in ids]
        # A start that comes to one server while another one gets the whole call may go on waiting.
        await one.writes.sweep(2**62)
        assert await one.waiting() == 0

    asyncio.run(with_two(work))


def test_starts_of_one_call_that_differ_leave_one() -> None:
    ids = [f"c{number:04}" for number in range(examples(200))]

    async def work(one: Server, other: Server) -> None:
        async def use(call_id: str) -> None:
            await asyncio.gather(
                one.writes.write([first_half(call_id, AT)], []), other.writes.write([first_half(call_id, AT + 1)], [])
            )

        for part in range(0, len(ids), 10):
            await asyncio.gather(*map(use, ids[part : part + 10]))
        assert await other.statuses() == [(call_id, 3) for call_id in ids]
        await one.writes.write([], [second_half(call_id) for call_id in ids])
        assert await other.statuses() == [(call_id, 0) for call_id in ids]
        assert await one.waiting() == 0

    asyncio.run(with_two(work))


def test_a_deletion_meets_halves_that_come_at_once() -> None:
    ids = [f"c{number:04}" for number in range(60)]

    async def work(one: Server, other: Server) -> None:
        await one.writes.write([first_half(call_id) for call_id in ids], [])
        await asyncio.gather(
            other.writes.delete(PROJECT, ids, "ada"), *(one.writes.write([], [second_half(call_id)]) for call_id in ids)
        )
        assert await other.statuses() == []
        assert await one.waiting() == 0

    asyncio.run(with_two(work))


def test_a_server_waits_as_long_as_another_one_makes_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        given = scale.new_databases()
        engine = sa.create_engine(sa.make_url(given["control"]).set(drivername="postgresql+psycopg"))
        waits = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        with engine.connect() as first, engine.connect() as watching:
            async with opened(given):
                # Made before the limit is shortened, so that only the wait for the tables of calls meets it.
                pass
            monkeypatch.setattr(connection, "_LOCK_SECONDS", 0.001)
            first.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))

            async def start() -> None:
                async with opened(given):
                    pass

            starting = asyncio.create_task(start())
            async with asyncio.timeout(30):
                while not starting.done() and not watching.execute(waits).scalar_one():
                    await asyncio.sleep(0.02)
            first.rollback()
            await asyncio.wait_for(starting, 30 * strain())
        engine.dispose()

    asyncio.run(main())
