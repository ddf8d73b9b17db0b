"""Several servers write to one ClickHouse, and each step can fail: nothing acknowledged is lost or doubled."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import HeddleError, Unavailable
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.control.repository import Executor
from tests.support import two_stores, written_calls
from tests.support.clickhouse import ClickhouseProcess
from tests.support.selection import with_breadth
from tests.support.two_stores import TwoStores
from tests.support.written_calls import AT, PROJECT, first_half, second_half, statuses, waiting

Json = Any


class Held(Clickhouse):
    """A way to ClickHouse on which rows wait until they may go on."""

    def __init__(self, address: str) -> None:
        super().__init__(address, 2, 30)
        self.reached = asyncio.Event()
        self.may_go = asyncio.Event()

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Wait, then add rows."""
        self.reached.set()
        await self.may_go.wait()
        await super().insert(table, columns, rows)


class HeldControl:
    """A way to the control tables on which answers to writes wait until they may come."""

    def __init__(self, control: Executor) -> None:
        self._control = control
        self.reached = asyncio.Event()
        self.may_go = asyncio.Event()

    async def write(self, work: Callable[[Any], Json], size: int = 0) -> Json:
        """Run the work, then wait."""
        found = await self._control.write(work, size)
        self.reached.set()
        await self.may_go.wait()
        return found

    async def read(self, work: Callable[[Any], Json]) -> Json:
        """Run the work."""
        return await self._control.read(work)


class Faults:
    """Fails one step of all, before it is taken or behind it."""

    def __init__(self, number: int, behind: bool) -> None:
        self.left = number
        self.behind = behind
        self.happened = False

    async def step(self, work: Awaitable[Json]) -> Json:
        """Take a step, unless it is the one that fails."""
        self.left -= 1
        if self.left == 0:
            self.happened = True
            if self.behind:
                await work
            else:
                asyncio.ensure_future(work).cancel()
            raise Unavailable("the connection broke")
        return await work


class FaultyClickhouse(Clickhouse):
    """A way to ClickHouse that breaks."""

    def __init__(self, address: str, faults: Faults) -> None:
        super().__init__(address, 2, 30)
        self._faults = faults

    async def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows, perhaps."""
        await self._faults.step(super().insert(table, columns, rows))


class FaultyControl:
    """A way to the control tables that breaks."""

    def __init__(self, control: Executor, faults: Faults) -> None:
        self._control = control
        self._faults = faults

    async def write(self, work: Callable[[Any], Json], size: int = 0) -> Json:
        """Run the work, perhaps."""
        return await self._faults.step(self._control.write(work, size))

    async def read(self, work: Callable[[Any], Json]) -> Json:
        """Run the work."""
        return await self._control.read(work)


def test_halves_that_two_servers_bring_at_once_meet(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        other = CallWrites(stores.clickhouse, stores.control, two_stores.QUEUE_BYTES)
        ids = [f"c{number}" for number in range(60)]
        for part in (ids[:20], ids[20:40], ids[40:]):
            starts = (stores.writes.write([first_half(call_id)], []) for call_id in part)
            ends = (other.write([], [second_half(call_id)]) for call_id in part)
            await asyncio.gather(*starts, *ends)
        assert await statuses(stores) == dict.fromkeys(ids, 0)
        assert await waiting(stores) == set()
        await other.close()

    two_stores.in_both(tmp_path, work)


def run_beside_an_end(folder: Path, beside: Callable[[TwoStores], Awaitable[Json]]) -> dict[str, Json]:
    """The calls after something that another server does while the end of the call `c` is on its way to ClickHouse."""
    found: dict[str, Json] = {}

    async def work(stores: TwoStores) -> None:
        await stores.writes.write([first_half()], [])
        held = Held(stores.address)
        slow = CallWrites(held, stores.control, two_stores.QUEUE_BYTES)
        ending = asyncio.create_task(slow.write([], [second_half()]))
        await held.reached.wait()
        await beside(stores)
        held.may_go.set()
        await ending
        assert await waiting(stores) == set()
        found.update(await written_calls.in_clickhouse(stores, PROJECT))
        await slow.close()
        await asyncio.to_thread(held.close)

    two_stores.in_both(folder, work)
    return found


def test_a_name_given_while_the_call_ends_stays(tmp_path: Path) -> None:
    found = run_beside_an_end(tmp_path, lambda stores: stores.writes.rename(PROJECT, "c", "named"))
    assert (found["c"]["display_name"], found["c"]["status"]) == ("named", 0)


def test_a_start_that_moves_the_call_while_it_ends_leaves_one(tmp_path: Path) -> None:
    moved = first_half(at=AT - 90 * 86400 * 10**6)
    found = run_beside_an_end(tmp_path, lambda stores: stores.writes.write([moved], []))
    assert (found["c"]["started_at"], found["c"]["status"]) == (moved.started_at, 0)


def test_a_call_that_is_deleted_while_it_ends_is_gone(tmp_path: Path) -> None:
    assert run_beside_an_end(tmp_path, lambda stores: stores.writes.delete(PROJECT, ["c"], "ada")) == {}


def test_a_start_that_another_server_has_replaced_is_not_written(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        held = HeldControl(stores.control)
        slow = CallWrites(stores.clickhouse, held, two_stores.QUEUE_BYTES)
        starting = asyncio.create_task(slow.write([first_half()], []))
        await held.reached.wait()
        await stores.writes.write([first_half(at=AT + 1)], [])
        held.may_go.set()
        await starting
        assert await statuses(stores) == {"c": 3}
        await stores.writes.write([], [second_half()])
        found = await written_calls.in_clickhouse(stores, PROJECT)
        assert (found["c"]["started_at"], found["c"]["status"]) == (AT + 1, 0)
        await slow.close()

    two_stores.in_both(tmp_path, work)


async def insist(verb: Callable[..., Awaitable[Json]], *arguments: Json) -> None:
    """What a client does: once more after a failure."""
    try:
        await verb(*arguments)
    except Unavailable:
        await verb(*arguments)


async def use(writes: CallWrites, name: str) -> None:
    """Everything that a client can write, step by step, to calls whose ids end in a name."""
    await insist(writes.write, [first_half(f"pair{name}")], [])
    await insist(writes.write, [], [second_half(f"pair{name}")])
    await insist(writes.write, [first_half(f"whole{name}")], [second_half(f"whole{name}")])
    await insist(writes.write, [], [second_half(f"early{name}")])
    await insist(writes.write, [first_half(f"early{name}")], [])
    await insist(writes.rename, PROJECT, f"pair{name}", "named")
    await insist(writes.write, [first_half(f"moved{name}")], [])
    await insist(writes.write, [first_half(f"moved{name}", AT + 9)], [second_half(f"moved{name}")])
    await insist(writes.write, [first_half(f"gone{name}")], [])
    await insist(writes.delete, PROJECT, [f"gone{name}"], "ada")
    await insist(writes.write, [], [second_half(f"gone{name}")])


@pytest.mark.thorough
@pytest.mark.parametrize("behind", with_breadth([True, False]), ids=["behind", "before"])
def test_each_step_may_fail_and_is_repeated(tmp_path: Path, behind: bool) -> None:
    async def attempt(stores: TwoStores, number: int) -> bool:
        faults = Faults(number, behind)
        clickhouse = FaultyClickhouse(stores.address, faults)
        writes = CallWrites(clickhouse, FaultyControl(stores.control, faults), two_stores.QUEUE_BYTES)
        await use(writes, f"-{number}")
        await writes.close()
        await asyncio.to_thread(clickhouse.close)
        assert await waiting(stores) == set()
        return faults.happened

    async def work(stores: TwoStores) -> None:
        number = 1
        while await attempt(stores, number):
            number += 1
        assert number > 20
        expected = [f"{kind}-{each}" for each in range(1, number + 1) for kind in ("pair", "whole", "early", "moved")]
        found = await written_calls.in_clickhouse(stores, PROJECT)
        assert {call_id: row["status"] for call_id, row in found.items()} == dict.fromkeys(expected, 0)
        assert {row["display_name"] for call_id, row in found.items() if call_id.startswith("pair")} == {"named"}
        assert {row["started_at"] for call_id, row in found.items() if call_id.startswith("moved")} == {AT + 9}

    two_stores.in_both(tmp_path, work)


def test_a_faulty_half_fails_alone(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        faulty = stores.writes.write([first_half("faulty", run_step=2**70)], [second_half("faulty")])
        fine = (stores.writes.write([first_half(f"c{number}")], []) for number in range(5))
        outcomes = await asyncio.gather(faulty, *fine, return_exceptions=True)
        assert isinstance(outcomes[0], Exception)
        assert outcomes[1:] == [None] * 5
        assert await statuses(stores) == {f"c{number}": 3 for number in range(5)}

    two_stores.in_both(tmp_path, work)


@pytest.mark.thorough
def test_what_was_acknowledged_outlives_a_killed_clickhouse(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    refused: list[HeddleError] = []

    async def write(stores: TwoStores, call_id: str) -> None:
        for half in (([first_half(call_id)], []), ([], [second_half(call_id)])):
            while True:
                try:
                    await stores.writes.write(*half)
                    break
                except Unavailable as error:
                    refused.append(error)
                    await asyncio.sleep(0.05)
        acknowledged.append(call_id)

    async def run(process: ClickhouseProcess) -> None:
        async with two_stores.opened(tmp_path / "data", process.new_database()) as stores:
            writers = [asyncio.create_task(write(stores, f"before-{number}")) for number in range(3)]
            await asyncio.gather(*writers)
            writers = [asyncio.create_task(write(stores, f"during-{number}")) for number in range(30)]
            await asyncio.sleep(0)
            process.kill()
            while not refused:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(process.start)
            await asyncio.gather(*writers)
            assert len(acknowledged) == 33
            assert await statuses(stores) == dict.fromkeys(acknowledged, 0)
            assert await waiting(stores) == set()

    with ClickhouseProcess(tmp_path / "clickhouse") as process:
        asyncio.run(run(process))
    assert all(error.headers["Retry-After"] for error in refused)
