"""Slices of calls that are read, bounded in rows and bytes, so that who reads all holds little; reads of a purge."""

import asyncio
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from heddle import settings
from heddle.store.sqlite import call_table, calls
from heddle.store.sqlite.store import open_store
from heddle.wire.calls import CallsQuery, Start
from heddle.wire.query import parse_query

PROJECT = "p"


async def slices_of(folder: Path, count: int, size: int, columns: frozenset[str]) -> list[list[str]]:
    """The ids in each slice of so many calls with inputs of so many bytes, oldest first."""
    store = await open_store(settings.load({"data": str(folder)}, {}))
    try:
        text = '"' + "x" * (size - 2) + '"'
        starts = [
            Start(PROJECT, f"{number:04}", "t", "op", number, text, "{}", "user", size=size) for number in range(count)
        ]
        await store.calls.write(starts, [])
        found = store.calls.stream(CallsQuery(PROJECT, columns=columns))
        return [[row.id for row in slice_] async for slice_ in found]
    finally:
        await store.close()


def test_a_slice_of_large_calls_ends_with_its_bytes(tmp_path: Path) -> None:
    found = asyncio.run(slices_of(tmp_path, 300, call_table.SLICE_BYTES // 8, frozenset(("inputs",))))
    assert max(map(len, found)) == 8
    assert list(chain(*found)) == [f"{number:04}" for number in range(300)]


def test_a_slice_of_small_calls_ends_with_its_rows(tmp_path: Path) -> None:
    found = asyncio.run(slices_of(tmp_path, 600, 20, frozenset(("inputs",))))
    assert max(map(len, found)) == call_table.SLICE
    assert list(chain(*found)) == [f"{number:04}" for number in range(600)]


def test_bytes_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    found = asyncio.run(slices_of(tmp_path, 200, call_table.SLICE_BYTES // 8, frozenset()))
    assert [len(slice_) for slice_ in found] == [200]


def test_calls_are_found_by_any_text_that_an_id_may_be(tmp_path: Path) -> None:
    above, below = "a\x00b", "a\x00c\U0001f642"

    async def read() -> tuple[list[str], list[str], set[str], int]:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            root = Start(PROJECT, above, "t1", "op", 1, '"above"', "{}", "user")
            await store.calls.write([root, replace(root, id=below, parent_id=above, inputs='"below"')], [])
            children = await store.calls.children(PROJECT, [above, "a"])
            content = await store.calls.content(PROJECT, [above, *children])
            return children, content.texts, content.traces, await store.calls.purge(PROJECT, [below, above])
        finally:
            await store.close()

    assert asyncio.run(read()) == ([below], ['"above"', "{}", '"below"', "{}"], {"t1"}, 2)


def test_old_calls_go_in_slices_that_let_writers_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PURGE_SLICE", 4)

    async def purge() -> tuple[int, int, int, list[str]]:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            starts = [Start(PROJECT, f"{n:02}", "t", "op", n, "{}", "{}", "user") for n in range(11)]
            await store.calls.write(starts, [])
            before = store.stats.items
            removed = await store.calls.purge_older(PROJECT, 9)
            written = store.stats.items - before
            left = [row.id async for rows in store.calls.stream(CallsQuery(PROJECT)) for row in rows]
            return removed, written, await store.calls.purge_older("unknown", 9), left
        finally:
            await store.close()

    removed, written, unknown, left = asyncio.run(purge())
    assert (removed, unknown, left) == (9, 0, ["09", "10"])
    assert written == 4


def test_a_project_without_calls_has_nothing_of_anything(tmp_path: Path) -> None:
    async def ask(project: str) -> list[object]:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            await store.calls.write([Start(PROJECT, "a", "t", "op", 1, '"x"', "{}", "user", size=3)], [])
            asked = CallsQuery(
                project, query=parse_query({"$expr": {"$eq": [{"$getField": "inputs"}, {"$literal": "x"}]}})
            )
            return [
                await store.calls.count(asked),
                await store.calls.count(replace(asked, limit=5)),
                await store.calls.storage_size(project),
                await store.calls.traces_of(project, ["a"]),
                [row.id for row in await store.calls.usage(asked)],
            ]
        finally:
            await store.close()

    assert asyncio.run(ask("unknown")) == [0, 0, 0, [], []]
    assert asyncio.run(ask(PROJECT)) == [1, 1, 3, ["t"], ["a"]]


def test_a_call_that_is_removed_while_its_trace_is_shown_leaves_a_gap(tmp_path: Path) -> None:
    async def read() -> list[str | None]:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            starts = [Start(PROJECT, name, "t", "op", at, "{}", "{}", "user") for at, name in enumerate("abc")]
            await store.calls.write(starts, [])
            outline = await store.trace_spans.outline(PROJECT, "t", 10)
            assert await store.calls.purge(PROJECT, ["b"]) == 1
            return [span and span.id for span in await store.trace_spans.spans(outline, 0, 3)]
        finally:
            await store.close()

    assert asyncio.run(read()) == ["a", None, "c"]
