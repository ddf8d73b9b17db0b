"""Halves of calls in any order, again and again, come to the same calls on ClickHouse as on SQLite."""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from clickhouse_connect.driver.exceptions import DatabaseError

from heddle.errors import Busy, HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.store.clickhouse import call_writes, client
from heddle.store.clickhouse.assembly import Change
from heddle.store.clickhouse.call_writes import CallWrites, Flusher
from heddle.store.control import pending_calls
from heddle.store.control.agents.table import agent_spans
from heddle.store.control.audit import audit_log
from heddle.wire.calls import End, Start
from heddle.wire.spans import AgentSpan
from tests.support import two_stores, written_calls
from tests.support.selection import with_breadth
from tests.support.two_stores import TwoStores
from tests.support.written_calls import AT, OTHER, PROJECT, statuses, waiting
from tests.support.written_calls import first_half as start
from tests.support.written_calls import second_half as end

Json = Any
SOAK = os.environ.get("HEDDLE_SOAK") == "1"


async def assert_equal(stores: TwoStores) -> int:
    """Both stores hold the same; returns how many live calls that is."""
    total = 0
    for project in (PROJECT, OTHER):
        embedded = await written_calls.in_sqlite(stores, project)
        assert await written_calls.in_clickhouse(stores, project) == embedded
        in_sqlite, in_clickhouse = await written_calls.refs_and_files(stores, project)
        assert in_clickhouse == in_sqlite
        total += len(embedded)
    return total


@pytest.mark.soak
@pytest.mark.parametrize("seed", with_breadth(range(200 if SOAK else 3)))
def test_random_writing_comes_to_the_same_calls(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def step(stores: TwoStores) -> None:
        kind = chance.random()
        call_id = written_calls.call_id(chance.randrange(8))
        if kind < 0.85:
            await stores.write(*written_calls.halves(chance, 8, with_usage=seed % 2 == 0))
        elif kind < 0.95:
            await stores.rename(PROJECT, call_id, f"named-{chance.randrange(9)}")
        else:
            deleted, also = await stores.delete(PROJECT, [call_id, "unknown"])
            assert deleted == also

    async def work(stores: TwoStores) -> None:
        found = 0
        for number in range(30):
            await step(stores)
            if number % 10 == 9:
                found += await assert_equal(stores)
        assert found > 4

    two_stores.in_both(tmp_path, work)


def test_only_the_halves_that_calls_lack_are_added(tmp_path: Path) -> None:
    """Imports add so: what clients have stored meanwhile stays."""

    async def work(stores: TwoStores) -> None:
        await stores.write([start("runs"), start("whole"), start("gone")], [end("whole"), end("waits"), end("gone")])
        await stores.delete(PROJECT, ["gone"])
        starts = [start(name, display_name="import") for name in ("new", "open", "runs", "waits", "whole", "gone")]
        ends = [End(PROJECT, one.id, AT + 9, '"import"', "{}", 0) for one in starts if one.id != "open"]
        for calls in (stores.sqlite.calls, stores.writes):
            assert [await calls.add_missing(starts, ends) for _ in range(2)] == [4, 0]
        found = await written_calls.in_clickhouse(stores, PROJECT)
        assert {name: (row["display_name"], row["output"]) for name, row in found.items()} == {
            "new": ("import", '"import"'),
            "open": ("import", None),
            "runs": (None, '"import"'),
            "waits": ("import", '"out"'),
            "whole": (None, '"out"'),
        }
        assert await assert_equal(stores) == 5 and await waiting(stores) == {"open"}

    two_stores.in_both(tmp_path, work)


def test_what_comes_together_with_an_addition_stays(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        added = asyncio.create_task(
            stores.writes.add_missing([start()], [End(PROJECT, "c", AT + 9, '"import"', "{}", 0)])
        )
        await asyncio.gather(stores.writes.write([], [end()]), added)
        assert (await written_calls.in_clickhouse(stores, PROJECT))["c"]["output"] == '"out"'
        assert await waiting(stores) == set()

    two_stores.in_both(tmp_path, work)


def test_a_start_runs_until_its_end_and_then_nothing_waits(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.writes.write([start()], [])
        assert await statuses(stores) == {"c": 3}
        assert await waiting(stores) == {"c"}
        await stores.writes.write([], [end()])
        assert await statuses(stores) == {"c": 0}
        assert await waiting(stores) == set()

    two_stores.in_both(tmp_path, work)


def test_an_end_before_its_start_is_hidden(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.writes.write([], [end()])
        assert await statuses(stores) == {}
        assert await stores.control.read(lambda connection: pending_calls.has_half(connection, PROJECT, "c"))
        await stores.writes.write([start()], [])
        assert await statuses(stores) == {"c": 0}
        assert await waiting(stores) == set()

    two_stores.in_both(tmp_path, work)


def test_whole_calls_never_wait(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        written = []

        class Recorder:
            read = stores.control.read

            async def write(self, work: Json, size: int = 0) -> Json:
                written.append(size)
                return await stores.control.write(work, size)

        writes = CallWrites(stores.clickhouse, Recorder(), two_stores.QUEUE_BYTES)
        await writes.write([start("a"), start("b")], [end("b"), end("a")])
        assert await statuses(stores) == {"a": 0, "b": 0}
        assert written == []
        await writes.write([start("a")], [])
        assert len(written) == 2  # one to meet the other half, one to take it away again

    two_stores.in_both(tmp_path, work)


@pytest.mark.parametrize(
    "moved", [start(at=AT - 40 * 86400 * 10**6), Start(PROJECT, "c", "other trace", "op", AT, "{}", "{}", "ada")]
)
def test_a_call_that_moves_is_there_once(tmp_path: Path, moved: Start) -> None:
    async def work(stores: TwoStores) -> None:
        for first, second in (([start()], []), ([moved], []), ([start()], [end()]), ([moved], []), ([start()], [])):
            await stores.write(first, second)
            assert await assert_equal(stores) == 1
        await stores.write([start("d")], [])
        await stores.write([Start(PROJECT, "d", moved.trace_id, "op", moved.started_at, "{}", "{}", "ada")], [])
        await stores.write([], [end("d")])
        assert await assert_equal(stores) == 2

    two_stores.in_both(tmp_path, work)


def test_deleted_calls_stay_hidden_and_are_audited(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        starts = [start("top"), start("child", parent_id="top"), start("grandchild", parent_id="child"), start("else")]
        await stores.write(starts, [end("top"), end("child"), end("early")])
        assert await stores.delete(PROJECT, ["child", "early"]) == (3, 3)
        await stores.write([start("grandchild"), start("child", at=AT + 7), start("early")], [end("grandchild")])
        await stores.rename(PROJECT, "child", "again")
        assert await assert_equal(stores) == 2
        assert await waiting(stores) == {"else"}
        assert await stores.delete(PROJECT, ["child"]) == (0, 0)
        query = sa.select(audit_log.c.action, audit_log.c.details)
        lines = await stores.control.read(lambda connection: [tuple(row) for row in connection.execute(query)])
        assert len(lines) == 2
        assert lines[0] == lines[1]

    two_stores.in_both(tmp_path, work)


def test_what_is_older_is_removed_for_good(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(f"c{day}", at=AT + day * 86400 * 10**6) for day in range(90)], [end("c3")])
        await stores.delete(PROJECT, ["c5"])
        assert await stores.purge_older(PROJECT, AT + 50 * 86400 * 10**6) == (50, 50)
        assert await assert_equal(stores) == 40
        assert await stores.purge_older(PROJECT, AT + 50 * 86400 * 10**6) == (0, 0)
        assert len(await waiting(stores)) == 40
        kept = await stores.clickhouse.rows("SELECT count(), uniq(id) FROM call_keys FINAL")
        assert kept == [(40, 40)]

    two_stores.in_both(tmp_path, work)


def test_ended_calls_of_watched_projects_are_noted_as_on_sqlite(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        for calls in (stores.sqlite.calls, stores.writes):
            calls.watch([PROJECT, OTHER], seen=0)
            await calls.write([start("a"), start("b")], [end("a"), end("stub")])
            await calls.write([Start(OTHER, "o", "t", "op", AT, "{}", "{}", "ada")], [])
            await calls.write([start("stub")], [End(OTHER, "o", AT, None, "{}", 1), end("b")])
            calls.watch([], seen=0)
            await calls.write([], [end("a")])
            assert calls.has_endings.is_set()
            assert await calls.count_endings() == 4
            taken = await calls.take_endings(2)
            assert [ending.call_id for ending in taken] == ["a", "stub"]
            assert await calls.take_endings(9) == taken
            assert [ending.call_id for ending in await calls.take_endings(9, [PROJECT])] == ["o"]
            await calls.drop_endings(taken)
            assert [ending.call_id for ending in await calls.take_endings(9, [OTHER])] == ["b"]

    two_stores.in_both(tmp_path, work)


def test_ended_calls_are_noted_before_a_change_of_monitors_elsewhere_is_seen(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        calls = stores.writes
        await calls.write([start("unwatched")], [end("unwatched")])
        calls.watch([OTHER], seen=1)
        await calls.write([start("a")], [end("a")])
        calls.watch([OTHER], seen=0)
        await calls.write([start("b")], [end("b")])
        assert [ending.call_id for ending in await calls.take_endings(9)] == ["a"]

    two_stores.in_both(tmp_path, work)


def test_spans_of_agents_are_indexed_with_their_calls(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        spans = [AgentSpan(PROJECT, "t", "s", AT, AT + 1)]
        await stores.writes.write([start("s")], [end("s")], spans)
        count = sa.select(sa.func.count()).select_from(agent_spans).where(agent_spans.c.hidden == 0)
        assert await stores.control.read(lambda connection: connection.execute(count).scalar_one()) == 1
        await stores.writes.delete(PROJECT, ["s"], "ada")
        assert await stores.control.read(lambda connection: connection.execute(count).scalar_one()) == 0

    two_stores.in_both(tmp_path, work)


def test_halves_of_stored_calls_are_forgotten_after_a_day(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.writes.write([start("a"), start("b", display_name="kept")], [end("early")])
        assert await stores.writes.sweep(0) == 0
        assert await stores.writes.sweep(2**62) == 2
        assert await waiting(stores) == {"early"}
        await stores.writes.write([], [end("b")])
        found = await written_calls.in_clickhouse(stores, PROJECT)
        assert (found["b"]["status"], found["b"]["display_name"], found["a"]["status"]) == (0, "kept", 3)
        assert await waiting(stores) == {"early"}

    two_stores.in_both(tmp_path, work)


def test_what_waits_is_written_together_and_too_much_is_refused(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        async def one(number: int) -> None:
            await stores.writes.write([start(f"c{number}")], [end(f"c{number}")])

        await asyncio.gather(*(one(number) for number in range(300)))
        assert len(await statuses(stores)) == 300
        figures = stores.writes.stats
        assert (figures.items, figures.waiting_bytes) == (300, 0)
        assert figures.groups <= 3
        small = CallWrites(stores.clickhouse, stores.control, 1000)
        sizes: Sequence[int] = (10, 900, 900)
        outcomes = await asyncio.gather(
            *(small.write([start(f"d{size}-{number}", size=size)], []) for number, size in enumerate(sizes)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), Busy, Busy]
        await small.write([start("d", size=5000)], [])
        await small.close()
        with pytest.raises(Unavailable, match="stopping"):
            await small.write([start("e")], [])

    two_stores.in_both(tmp_path, work)


def test_a_caller_that_goes_away_undoes_nothing(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        writing = [asyncio.create_task(stores.writes.write([start(f"c{number}")], [])) for number in range(3)]
        await asyncio.sleep(0)
        writing[1].cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        assert await statuses(stores) == {"c0": 3, "c1": 3, "c2": 3}

    two_stores.in_both(tmp_path, work)


def test_a_group_that_cannot_be_put_together_in_time_is_not_tried_one_by_one() -> None:
    async def main() -> None:
        groups: list[int] = []

        async def flush(group: Sequence[Change]) -> None:
            groups.append(len(group))
            raise QueryTimeout()

        flusher = Flusher(flush, 1000)
        outcomes = await asyncio.gather(*(flusher.add(Change(), 1) for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
        assert groups == [3]
        await flusher.close()

    asyncio.run(main())


def test_one_change_that_is_refused_fails_alone_and_a_group_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        groups: list[int] = []

        async def flush(group: Sequence[Change]) -> None:
            groups.append(len(group))
            if any(change.names for change in group):
                raise InvalidRequest("a name that cannot be stored")

        changes = [Change(), Change(names=[((PROJECT, "c"), "bad")]), Change()]
        flusher = Flusher(flush, 1000)
        writing = [asyncio.create_task(flusher.add(change, 4)) for change in changes]
        await asyncio.sleep(0)
        await flusher.close()
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), InvalidRequest, type(None)]
        assert groups == [3, 1, 1, 1]
        assert (flusher.stats.items, flusher.stats.waiting_bytes) == (2, 0)
        monkeypatch.setattr(call_writes, "MAX_GROUP_BYTES", 10)
        groups.clear()
        flusher = Flusher(flush, 1000)
        await asyncio.gather(*(flusher.add(Change(), size) for size in (4, 4, 4, 30, 4)))
        assert groups == [2, 1, 1, 1]
        await flusher.close()

    asyncio.run(main())


def test_calls_that_are_below_each_other_are_deleted_once(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start("a", parent_id="b"), start("b", parent_id="a"), start("c", parent_id="c")], [])
        assert await stores.delete(PROJECT, ["a"]) == (2, 2)
        assert await assert_equal(stores) == 1
        assert await stores.delete(PROJECT, ["c"]) == (1, 1)
        assert await assert_equal(stores) == 0

    two_stores.in_both(tmp_path, work)


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        (516, HeddleError, 500),
        (243, StorageFull, 507),
        (252, Unavailable, 503),
        (236, Unavailable, 503),
        (None, Unavailable, 503),
        (159, QueryTimeout, 504),
        (168, InvalidRequest, 400),
    ],
)
def test_failures_of_clickhouse_are_ours(code: int | None, kind: type[HeddleError], status: int) -> None:
    found = client.explain(DatabaseError("what it says", code=code))
    assert type(found) is kind
    assert found.status == status
    assert client.explain(DatabaseError("unknown column", code=47)) is None
    assert client.explain(ValueError("ours")) is None
