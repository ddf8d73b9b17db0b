"""What a purge finds and removes of calls is the same on ClickHouse as on SQLite, also of those that have not ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from heddle.store.clickhouse.call_writes import purge
from heddle.wire import jsontext
from heddle.wire.calls import CallsQuery, End, Start
from tests.support.clickhouse import MISSING
from tests.support.queried_calls import PROJECT, listed, reads_of
from tests.support.two_stores import TwoStores, in_both

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")

ATTRIBUTES = [
    {},
    {"user": {"id": "eve"}},
    {"user.id": "eve"},
    {"user_id": "eve"},
    {"user": "eve"},
    {"user": {"id": ["eve"]}},
]


def start(number: int) -> Start:
    """A call of a trace of four, below the first one of it."""
    return Start(
        PROJECT,
        f"c{number:02}",
        f"t{number // 4}",
        "op",
        1000 + number,
        jsontext.dumps({"secret": f"word {number}"}),
        jsontext.dumps(ATTRIBUTES[number % len(ATTRIBUTES)]),
        "eve" if number % 7 == 0 else "ada",
        parent_id=f"c{number // 4 * 4:02}" if number % 4 else None,
        thread_id=f"thread-{number % 3}" if number % 2 else None,
    )


SUBJECTS = [
    *(("call", f"c{number:02}") for number in (0, 5, 30, 99)),
    *(("trace", name) for name in ("t0", "t5", "none")),
    *(("thread", name) for name in ("thread-0", "thread-2", "none")),
    *(("user", name) for name in ("eve", "ada", "nobody")),
    ("project", ""),
]


def test_what_is_found_of_a_subject_is_the_same(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(number) for number in range(24)], [])
        ends = [End(PROJECT, f"c{n:02}", 2000, f'"answer {n}"', "{}", 0) for n in range(12)]
        await stores.write([], ends)
        reads, calls = reads_of(stores), stores.sqlite.calls
        for kind, name in SUBJECTS:
            found = await calls.find(PROJECT, kind, name)
            assert sorted(await reads.find(PROJECT, kind, name)) == sorted(found), (kind, name)
            assert sorted(await reads.children(PROJECT, found)) == sorted(await calls.children(PROJECT, found))
            ours, theirs = await reads.content(PROJECT, found), await calls.content(PROJECT, found)
            assert ours.traces == theirs.traces, (kind, name)
            said = [{text for text in each.texts if "word" in text or "answer" in text} for each in (ours, theirs)]
            assert said[0] == said[1], (kind, name)
        assert len(await reads.find(PROJECT, "project", "", 5)) >= 5

    in_both(tmp_path, work)


def test_what_is_deleted_is_told_from_what_is_not(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(number) for number in range(12)], [])
        await stores.write([], [End(PROJECT, f"c{n:02}", 2000, '"x"', "{}", 0) for n in range(6)])
        # One that has moved leaves a row where it was.
        await stores.write([replace(start(5), started_at=500)], [])
        assert await stores.delete(PROJECT, ["c00", "c09"]) == (5, 5)
        for calls in (reads_of(stores), stores.sqlite.calls):
            found = await calls.find_deleted(PROJECT, ["none", *(f"c{n:02}" for n in range(12))])
            assert found == {"c00", "c01", "c02", "c03", "c09"}
            assert await calls.find_deleted("b3RoZXI", ["c00"]) == set()
            assert await calls.find_deleted(PROJECT, []) == set()

    in_both(tmp_path, work)


def test_only_what_is_named_is_removed(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(number) for number in range(8)], [])
        await stores.write([], [End(PROJECT, f"c{n:02}", 2000, '"x"', "{}", 0) for n in range(8)])
        other = Start("b3RoZXI", "c00", "t0", "op", 1, "{}", "{}", "ada")
        await stores.write([other], [End("b3RoZXI", "c00", 2, '"x"', "{}", 0)])
        assert await purge(stores.clickhouse, PROJECT, ["c01", "c02", "none"]) == 2
        left = await listed(reads_of(stores), CallsQuery(PROJECT))
        assert [row.id for row in left] == ["c00", "c03", "c04", "c05", "c06", "c07"]
        assert await purge(stores.clickhouse, PROJECT, None) == 6
        assert await listed(reads_of(stores), CallsQuery(PROJECT)) == []
        assert [row.id for row in await listed(reads_of(stores), CallsQuery("b3RoZXI"))] == ["c00"]
        progress = await reads_of(stores).search_progress(PROJECT)
        assert 0 <= progress.left <= progress.total

    in_both(tmp_path, work)


def test_what_an_end_without_its_start_holds_is_found_too(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([], [End(PROJECT, "early", 2000, '"planted answer"', '{"planted":"summary"}', 0)])
        for each in (reads_of(stores), stores.sqlite.calls):
            content = await each.content(PROJECT, ["early", "none"])
            assert content.traces == set()
            assert sorted(text for text in content.texts if "planted" in text) == [
                '"planted answer"',
                '{"planted":"summary"}',
            ]

    in_both(tmp_path, work)
