"""Two servers on the same control tables: what one writes the other one sees with its next request."""

import asyncio
from collections.abc import Awaitable, Callable

from heddle.settings import Settings
from heddle.store.base import ControlGroups
from heddle.store.control.costs import PriceRow
from heddle.store.control.objects import NewVersion
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.postgres.control import PostgresControl, open_control
from tests.support.postgres import PostgresServer

_P = "cHJvamVjdA"


def run(postgres: PostgresServer, work: Callable[[ControlGroups, ControlGroups], Awaitable[None]]) -> None:
    """Do something with two servers on a database of their own."""
    settings = Settings(control=postgres.new_database())

    def groups(control: PostgresControl) -> ControlGroups:
        rows = ControlRowTexts(control.executor)
        return ControlGroups(control.executor, control.keys, control.spans, rows, is_shared=True)

    async def whole() -> None:
        controls = await asyncio.gather(open_control(settings), open_control(settings))
        try:
            await work(*map(groups, controls))
        finally:
            for control in controls:
                await control.close()

    asyncio.run(whole())


def version(number: int) -> NewVersion:
    """A version of the object `o`."""
    return NewVersion(_P, "object", "o", f"{number:043}", "{}", 2, None, None, "me")


def test_what_is_kept_in_memory_is_never_old(postgres: PostgresServer) -> None:
    async def work(one: ControlGroups, two: ControlGroups) -> None:
        for number in range(3):
            price = PriceRow(f"c{number}", "m", "p", 0, 1e-6, 1e-6, 0, 0, "USD", "USD", "me", number)
            await two.costs.create(_P, [price])
            assert len((await one.costs.project_rows(_P))["m"]) == number + 1
            await two.objects.create(version(number))
            assert await one.objects.latest.digests(_P, "object", ["o"]) == {"o": f"{number:043}"}
        await two.costs.purge(_P, ["c0", "c1", "c2"], "me")
        assert await one.costs.project_rows(_P) == {}

    run(postgres, work)


def test_a_reader_waits_for_a_file_that_comes_to_another_server(postgres: PostgresServer) -> None:
    async def work(one: ControlGroups, two: ControlGroups) -> None:
        waiting = asyncio.create_task(one.files.expect(_P, "digest"))
        while not one.files._waiting:
            await asyncio.sleep(0)
        await two.files.create(_P, "name", "digest", 1, "blob")
        found = await waiting
        assert found is not None and found.blob == "blob"
        assert await one.files.expect(_P, "never") is None

    run(postgres, work)


def test_versions_published_at_the_same_time(postgres: PostgresServer) -> None:
    """Each gets a number of its own, and one of them is the latest."""

    async def work(one: ControlGroups, two: ControlGroups) -> None:
        servers = (one, two)
        await asyncio.gather(*(servers[number % 2].objects.create(version(number)) for number in range(20)))
        found = [await one.objects.read(_P, "o", f"v{number}") for number in range(20)]
        assert sorted(each.digest for each in found if each is not None) == [f"{number:043}" for number in range(20)]
        latest = await two.objects.read(_P, "o", "latest", with_labels=True)
        assert latest is not None and latest.is_latest and latest.aliases == ["latest"]
        assert sum(each.is_latest for each in found if each is not None) == 1

    run(postgres, work)


def test_the_same_table_stored_at_the_same_time(postgres: PostgresServer) -> None:
    async def work(one: ControlGroups, two: ControlGroups) -> None:
        rows = {f"{number:043}": f'{{"n":{number}}}' for number in range(300)}
        stores = [server.tables.create(_P, "table", list(rows), rows) for server in (one, two, one, two)]
        await asyncio.gather(*stores)
        assert [row.val for row in await one.tables.query(_P, "table")] == list(rows.values())
        assert await two.tables.total_size(_P) == sum(map(len, rows.values()))

    run(postgres, work)
