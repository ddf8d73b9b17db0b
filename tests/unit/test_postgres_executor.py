"""Work on PostgreSQL: conflicts, outages, limits, and texts that it cannot hold."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from heddle.errors import Busy, HeddleError, InvalidRequest, NotFound, QueryTimeout, StorageFull, Unavailable
from heddle.settings import Settings
from heddle.store.control.projects import Projects, projects
from heddle.store.postgres.connection import explain
from heddle.store.postgres.control import PostgresControl, open_control
from tests.support.postgres import PostgresServer
from tests.support.selection import with_breadth

_COUNTER = "counter"


def run(address: str, work: Callable[[PostgresControl], Awaitable[None]], **settings: Any) -> None:
    """Do something with an open control database."""

    async def whole() -> None:
        async with opened(address, **settings) as control:
            await work(control)

    asyncio.run(whole())


@contextlib.asynccontextmanager
async def opened(address: str, **settings: Any) -> AsyncIterator[PostgresControl]:
    """The control database as one server opens it."""
    control = await open_control(replace(Settings(control=address), **settings))
    try:
        yield control
    finally:
        await control.close()


def read_count(connection: sa.Connection) -> int:
    """The number that `count_up` raises."""
    return int(
        connection.execute(sa.select(projects.c.retention_days).where(projects.c.project == _COUNTER)).scalar() or 0
    )


def count_up(connection: sa.Connection) -> int:
    """Read a number, add one, write it: what loses updates wherever two may do so at the same time."""
    count = read_count(connection) + 1
    change = projects.update().where(projects.c.project == _COUNTER).values(retention_days=count)
    if not connection.execute(change).rowcount:
        connection.execute(projects.insert().values(project=_COUNTER, created_at=0, retention_days=count))
    return count


def test_no_update_is_lost_between_servers(postgres: PostgresServer) -> None:
    """Three servers and 24 tasks count the same row up: every number is given once."""
    address = postgres.new_database()

    async def whole() -> None:
        async with opened(address) as one, opened(address) as two, opened(address) as three:
            servers = [one, two, three]

            async def counted(server: PostgresControl) -> list[int]:
                return [await server.executor.write(count_up) for _ in range(10)]

            found = await asyncio.gather(*(counted(server) for server in servers for _ in range(8)))
            assert sorted(number for part in found for number in part) == list(range(1, 241))
            assert await one.executor.read(read_count) == 240
            assert sum(server.stats.again for server in servers) > 0
            assert all(server.stats.waiting_bytes == 0 for server in servers)

    asyncio.run(whole())


def test_a_key_that_is_taken_for_good(postgres: PostgresServer) -> None:
    """The work is run again a few times, for another transaction may have come first; then it fails as on SQLite."""

    async def work(control: PostgresControl) -> None:
        runs = []

        def insert(connection: sa.Connection) -> None:
            runs.append(1)
            connection.execute(projects.insert().values(project="p", created_at=0))

        await control.executor.write(insert)
        with pytest.raises(sa.exc.IntegrityError):
            await control.executor.write(insert)
        assert 2 < len(runs) < 20

    run(postgres.new_database(), work)


def test_more_constants_than_a_statement_takes_are_refused(postgres: PostgresServer) -> None:
    async def work(control: PostgresControl) -> None:
        named = sa.select(projects.c.project).where(projects.c.project.in_([f"p{number}" for number in range(70_000)]))
        with pytest.raises(InvalidRequest, match=r"The query is too complex: .*65535"):
            await control.executor.read(lambda connection: connection.execute(named).all())

    run(postgres.new_database(), work)


def test_what_work_raises_undoes_it(postgres: PostgresServer) -> None:
    async def work(control: PostgresControl) -> None:
        def refuse(connection: sa.Connection) -> None:
            count_up(connection)
            raise NotFound("no")

        with pytest.raises(NotFound):
            await control.executor.write(refuse)
        assert await control.executor.read(read_count) == 0
        with pytest.raises(sa.exc.ProgrammingError):
            await control.executor.write(lambda connection: connection.execute(sa.text("SELECT nothing")))

    run(postgres.new_database(), work)


def test_readers_cannot_write(postgres: PostgresServer) -> None:
    async def work(control: PostgresControl) -> None:
        with pytest.raises(Unavailable, match="read-only transaction"):
            await control.executor.read(count_up)

    run(postgres.new_database(), work)


def test_a_query_that_takes_too_long(postgres: PostgresServer) -> None:
    async def work(control: PostgresControl) -> None:
        for executor in (control.executor, control.keys, control.spans):
            with pytest.raises(QueryTimeout):
                await executor.read(lambda connection: connection.execute(sa.text("SELECT pg_sleep(60)")).all())

    run(postgres.new_database(), work, query_timeout=0.2)


def test_too_much_waits(postgres: PostgresServer) -> None:
    """Beyond the setting write_queue_bytes writers are told to wait; what waits already is stored."""

    async def work(control: PostgresControl) -> None:
        lock = sa.text("SELECT pg_advisory_xact_lock(1)")
        held = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold(connection: sa.Connection) -> None:
            connection.execute(lock)
            loop.call_soon_threadsafe(held.set)
            asyncio.run_coroutine_threadsafe(released.wait(), loop).result(30)

        released = asyncio.Event()
        holding = asyncio.create_task(control.executor.write(hold, 10))
        await held.wait()

        def wait(connection: sa.Connection) -> int:
            connection.execute(lock)
            return 1

        waiting = asyncio.create_task(control.executor.write(wait, 900))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await control.executor.write(wait, 200)
        released.set()
        assert await waiting == 1
        await holding
        assert await control.executor.write(wait, 5000) == 1

    run(postgres.new_database(), work, write_queue_bytes=1024)


@pytest.mark.parametrize("end", with_breadth([PostgresServer.kill, PostgresServer.stop]))
def test_an_outage_is_told_and_passes(end: Callable[[PostgresServer], None]) -> None:
    """While PostgreSQL is away everything is 503; when it is back the first request works, and nothing is lost."""
    with PostgresServer() as server:

        async def work(control: PostgresControl) -> None:
            written = 0
            for _ in range(3):
                written = await control.executor.write(count_up)
                assert await control.executor.read(read_count) == written
                await asyncio.to_thread(end, server)
                for attempt in (control.executor.write(count_up), control.executor.read(read_count)):
                    with pytest.raises(Unavailable) as caught:
                        await attempt
                    assert caught.value.headers["Retry-After"]
                await asyncio.to_thread(server.start)
            assert await control.executor.write(count_up) == written + 1

        run(server.new_database(), work)


def test_a_restart_between_two_requests_is_not_noticed() -> None:
    """Connections that have died since are made anew, without a failed request."""
    with PostgresServer() as server:

        async def work(control: PostgresControl) -> None:
            names = [f"project{number}" for number in range(12)]
            await asyncio.gather(*(Projects(control.executor).make(name, name) for name in names))
            await asyncio.gather(*(Projects(control.executor).exists(name) for name in names))
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(Projects(control.executor).make(name, "again") for name in names))
            found = await asyncio.gather(*(Projects(control.executor).description(name) for name in names))
            assert found == ["again"] * len(names)

        run(server.new_database(), work)


def test_a_connection_that_is_lost_during_the_commit(postgres: PostgresServer) -> None:
    """Whether it was stored is not known then: it is not done again, and not said to be stored."""

    async def work(control: PostgresControl) -> None:
        runs = []

        def work_and_cut(connection: sa.Connection) -> None:
            runs.append(count_up(connection))
            number = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            asyncio.run_coroutine_threadsafe(end(number), loop).result(30)

        async def end(number: int) -> None:
            statement = sa.text("SELECT pg_terminate_backend(:number, 10000)").bindparams(number=number)
            await control.executor.read(lambda connection: connection.execute(statement).all())

        loop = asyncio.get_running_loop()
        with pytest.raises(Unavailable):
            await control.executor.write(work_and_cut)
        assert runs == [1]
        assert await control.executor.read(read_count) == 0

    run(postgres.new_database(), work)


def test_a_connection_that_is_lost_before_the_commit(postgres: PostgresServer) -> None:
    """What was not committed is done again."""

    async def work(control: PostgresControl) -> None:
        runs = []

        def cut_and_work(connection: sa.Connection) -> int:
            runs.append(1)
            if len(runs) == 1:
                number = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
                asyncio.run_coroutine_threadsafe(end(number), loop).result(30)
            return count_up(connection)

        async def end(number: int) -> None:
            statement = sa.text("SELECT pg_terminate_backend(:number, 10000)").bindparams(number=number)
            await control.executor.read(lambda connection: connection.execute(statement).all())

        loop = asyncio.get_running_loop()
        assert await control.executor.write(cut_and_work) == 1
        assert len(runs) == 2
        assert await control.executor.read(read_count) == 1

    run(postgres.new_database(), work)


def test_a_connection_that_is_lost_between_rows(postgres: PostgresServer) -> None:
    """Rows that were passed on already are not passed on again."""

    async def work(control: PostgresControl) -> None:
        rows = []

        def take_and_cut(connection: sa.Connection) -> None:
            statement = sa.text("SELECT pg_backend_pid() AS number FROM generate_series(1, 3)")
            for row in connection.execute(statement, execution_options={"yield_per": 1}):
                rows.append(row.number)
                asyncio.run_coroutine_threadsafe(end(row.number), loop).result(30)

        async def end(number: int) -> None:
            statement = sa.text("SELECT pg_terminate_backend(:number, 10000)").bindparams(number=number)
            await control.executor.read(lambda connection: connection.execute(statement).all())

        loop = asyncio.get_running_loop()
        with pytest.raises(Unavailable):
            await control.executor.read(take_and_cut)
        assert len(rows) == 1

    run(postgres.new_database(), work)


def test_what_waits_is_written_when_a_server_stops(postgres: PostgresServer) -> None:
    address = postgres.new_database()

    async def whole() -> None:
        async with opened(address) as control:
            writes = [asyncio.create_task(control.executor.write(count_up)) for _ in range(30)]
            await asyncio.sleep(0)
        assert sorted(await asyncio.gather(*writes)) == list(range(1, 31))
        with pytest.raises(Unavailable, match="stopping"):
            await control.executor.write(count_up)

    asyncio.run(whole())


@pytest.mark.parametrize("text", ["\x00", "a\x00b\x00", "\U0010ffff", "\U0010ffff0", "\U0010ffff1\x00", "ä😀", ""])
def test_every_text_can_be_stored(postgres: PostgresServer, text: str) -> None:
    async def work(control: PostgresControl) -> None:
        store = Projects(control.executor)
        await store.make(f"p{text}", text)
        assert await store.description(f"p{text}") == text
        assert await store.exists(f"p{text}") and not await store.exists(f"p{text}x")

    run(postgres.new_database(), work)


def test_names_are_in_the_order_of_code_points(postgres: PostgresServer) -> None:
    """As in SQLite, whatever language the database sorts by."""
    names = ["b", "B", "a", "A", "_", "é", "Z", "z", "😀", "1", " ", "-"]

    async def work(control: PostgresControl) -> None:
        for name in names:
            await Projects(control.executor).make(name, None)
        query = sa.select(projects.c.project).order_by(projects.c.project)
        found = await control.executor.read(lambda connection: list(connection.execute(query).scalars()))
        assert found == sorted(names)
        later = sa.select(projects.c.project).where(projects.c.project > "Z").order_by(projects.c.project)
        found = await control.executor.read(lambda connection: list(connection.execute(later).scalars()))
        assert found == sorted(name for name in names if name > "Z")

    run(postgres.new_database(), work)


def test_sizes(postgres: PostgresServer, tmp_path: Any) -> None:
    async def work(control: PostgresControl) -> None:
        found = await control.sizes()
        assert found.database > 1_000_000 and found.disk > 0

    run(postgres.new_database(), work, data=str(tmp_path))


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("57014", QueryTimeout),
        ("53100", StorageFull),
        ("22003", InvalidRequest),
        ("54001", InvalidRequest),
        ("53300", Unavailable),
        ("57P03", Unavailable),
        ("08006", Unavailable),
        ("40001", Unavailable),
        ("25006", Unavailable),
        ("42P01", None),
    ],
)
def test_what_failures_mean(state: str, kind: type[HeddleError] | None) -> None:
    class Failure(Exception):
        sqlstate = state

    found = explain(sa.exc.DBAPIError("SELECT 1", None, Failure("said")))
    assert (None if found is None else type(found)) is kind
    assert type(explain(sa.exc.TimeoutError())) is Unavailable and explain(ValueError("x")) is None
