"""The index of text search as it lies in the file."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

from heddle import settings
from heddle.store.sqlite.store import open_store
from heddle.wire.calls import Start
from tests.support.written_calls import AT, PROJECT

HASH_SIZE = "SELECT v FROM search_config WHERE k = 'hashsize'"


def search_after_open(folder: Path, *starts: Start) -> tuple[int, list[int]]:
    """Open a folder and store calls there: the memory for new words, and the rows that hold `oslo`."""

    async def run() -> None:
        store = await open_store(settings.load({"data": str(folder), "search": "on"}, {}))
        await store.calls.write(starts, [])
        while (await store.calls.search_progress(PROJECT)).left:
            await asyncio.sleep(0)
        await store.close()

    asyncio.run(run())
    with contextlib.closing(sqlite3.connect(folder / "heddle.db")) as database:
        rows = database.execute("SELECT rowid FROM search WHERE search MATCH 'oslo' ORDER BY rowid").fetchall()
        return database.execute(HASH_SIZE).fetchone()[0], [row[0] for row in rows]


def test_an_older_index_gets_the_memory_for_words_of_a_new_one_and_is_kept(tmp_path: Path) -> None:
    first, second = (Start(PROJECT, f"call-{n}", "t", "op", AT + n, '{"city":"Oslo"}', "{}", "ada") for n in (1, 2))
    new = search_after_open(tmp_path, first)
    with contextlib.closing(sqlite3.connect(tmp_path / "heddle.db")) as database, database:
        database.execute("DELETE FROM search_config WHERE k = 'hashsize'")
    older = search_after_open(tmp_path, second)
    assert (new[0], new[1]) == (older[0], [1])
    assert older[1] == [1, 2]
