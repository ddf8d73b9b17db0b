"""Slices of calls that are read: bounded in rows and in bytes, so that a reader of everything holds little."""

import asyncio
from itertools import chain
from pathlib import Path

from heddle import settings
from heddle.store.sqlite import calls
from heddle.store.sqlite.store import open_store
from heddle.wire.calls import CallsQuery, Start

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
    found = asyncio.run(slices_of(tmp_path, 300, calls.SLICE_BYTES // 8, frozenset(("inputs",))))
    assert max(map(len, found)) == 8
    assert list(chain(*found)) == [f"{number:04}" for number in range(300)]


def test_a_slice_of_small_calls_ends_with_its_rows(tmp_path: Path) -> None:
    found = asyncio.run(slices_of(tmp_path, 600, 20, frozenset(("inputs",))))
    assert max(map(len, found)) == calls.SLICE
    assert list(chain(*found)) == [f"{number:04}" for number in range(600)]


def test_bytes_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    found = asyncio.run(slices_of(tmp_path, 200, calls.SLICE_BYTES // 8, frozenset()))
    assert [len(slice_) for slice_ in found] == [200]
