"""The index of text search is merged once more entries were taken out than it may hold: their words leave the file."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from heddle import settings
from heddle.store import base
from heddle.store.sqlite.calls import PURGE_SLICE
from heddle.store.sqlite.search import count_removed, index_next, needs_merge
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.wire.calls import Start
from tests.support.patience import strain
from tests.support.written_calls import AT, PROJECT


async def write_calls(store: SqliteStore, word: str, numbers: range) -> None:
    """Store calls that hold a word, and let the index know them."""
    for number in numbers:
        start = Start(PROJECT, f"{word}-{number}", "t", "op", AT + number, f'{{"a":"{word}{number}"}}', "{}", "ada")
        start.size = len(start.inputs)
        await store.calls.write([start], [])
    while await store._control.writer.write(lambda session: index_next(session.raw)):
        pass


def holds(folder: Path, word: str) -> bool:
    """True where a page of the index has a word that begins so."""
    with closing(sqlite3.connect(folder / "heddle.db")) as raw:
        return any(word.encode() in bytes(block) for (block,) in raw.execute("SELECT block FROM search_data"))


def test_words_of_removed_calls_leave_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "UPKEEP_SECONDS", 0.02)

    async def run() -> None:
        store = await open_store(settings.load({"data": str(tmp_path), "search": "on"}, {}))
        await write_calls(store, "early", range(600))
        await store.calls.purge_older(PROJECT, AT + 600)
        assert not await read(store, needs_merge), "less was taken out than a merge is worth"
        assert holds(tmp_path, "early")
        await write_calls(store, "later", range(600, 1300))
        await store.calls.purge_older(PROJECT, AT + 1200)
        async with asyncio.timeout(60 * strain()):
            while holds(tmp_path, "early"):
                await asyncio.sleep(0.02)
            while await read(store, needs_merge):
                await asyncio.sleep(0.02)
        # A merge between the two slices of the purge leaves those of the second.
        assert await read(store, count_removed) in (0, 1200 - 600 - PURGE_SLICE)
        assert holds(tmp_path, "later")
        await store.close()

    asyncio.run(run())


async def read(store: SqliteStore, work: Callable[[sqlite3.Connection], int]) -> int:
    """What the store holds now."""
    return await store._control.writer.write(lambda session: work(session.raw))
