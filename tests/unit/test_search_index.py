"""The index of text search as it lies in the file."""

import asyncio
import contextlib
import math
import sqlite3
from pathlib import Path
from random import Random

import orjson
import pytest

from heddle import settings
from heddle.store.integrity import SqliteIntegrity
from heddle.store.sqlite.search import count_removed, index_next, renew
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.wire.calls import End, Start
from heddle.wire.search import codes_of
from tests.support.selection import with_breadth
from tests.support.written_calls import AT, PROJECT, second_half

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


WORDS = ["oslo", "bergen", "getUserName", "tromsø", "東京都庁", "x-1.5"]
Held = tuple[list[tuple[str, int]], list[tuple[int, list[int]]]]


async def index_everything(store: SqliteStore, *, is_old: bool = False) -> Held:
    """Index what waits; what the index holds then."""
    writer = store._control.writer
    while await writer.write(lambda session: index_next(session.raw, is_old)):
        pass
    return await writer.write(lambda session: held(session.raw))


def held(raw: sqlite3.Connection) -> Held:
    """Words with their calls, and calls with the codes of their words, whatever the order of their fields."""
    raw.execute("CREATE VIRTUAL TABLE temp.held USING fts5vocab (main, search, instance)")
    words = raw.execute("SELECT term, doc FROM temp.held ORDER BY term, doc").fetchall()
    raw.execute("DROP TABLE temp.held")
    (project,) = raw.execute("SELECT k FROM names WHERE v = ?", (PROJECT,)).fetchone()
    codes = raw.execute("SELECT rid, codes FROM search_codes ORDER BY rid").fetchall()
    # The mark of the project may stand there twice.
    return words, [(rid, sorted(known.replace(codes_of(f"\ue000{project}"), b""))) for rid, known in codes]


def index_anew(raw: sqlite3.Connection) -> None:
    """Forget the index, so that every call is indexed again."""
    raw.execute("UPDATE search_state SET version = -1")
    renew(raw, is_wanted=True)


async def change_at_random(store: SqliteStore, random: Random) -> None:
    """Write, change or remove some calls, or index a slice."""

    def text() -> str:
        return orjson.dumps({"said": " ".join(random.choices(WORDS, k=4)), "at": random.randrange(50)}).decode()

    def start(call_id: str) -> Start:
        return Start(PROJECT, call_id, "t", "op", AT, text(), text(), "ada", otel_dump=text())

    def end(call_id: str) -> End:
        return second_half(call_id, exception=random.choice((None, f"TimeoutError: {text()}")))

    some = [f"call-{number}" for number in random.sample(range(12), k=2)]
    match random.randrange(16):
        case 0 | 1 | 2 | 3:
            await store.calls.write([start(one) for one in some], [])
        case 4 | 5 | 6 | 7:
            await store.calls.write([], [end(one) for one in some])
        case 8 | 9:
            await store.calls.write([start(one) for one in some], [end(some[0])])
        case 10:
            await store.calls.purge(PROJECT, some)
        case 11:
            await store.calls.rename(PROJECT, some[0], random.choice(WORDS))
        case _:
            await store._control.writer.write(lambda session: index_next(session.raw))


@pytest.mark.parametrize("seed", with_breadth(range(8)))
def test_an_index_that_followed_every_change_is_like_one_made_anew(seed: int, tmp_path: Path) -> None:
    async def run() -> tuple[Held, Held]:
        store = await open_store(settings.load({"data": str(tmp_path), "search": "on"}, {}))
        assert store._indexing is not None
        store._indexing.cancel()
        random = Random(seed)
        for number in range(300):
            await change_at_random(store, random)
            if number % 10 == 0:
                assert SqliteIntegrity(tmp_path / "heddle.db").check_search(math.inf).problems == []
        followed = await index_everything(store)
        await store._control.writer.write_alone(lambda session: index_anew(session.raw))
        anew = await index_everything(store, is_old=True)
        await store.close()
        return followed, anew

    followed, anew = asyncio.run(run())
    assert len(followed[0]) > 50
    assert followed == anew


async def write_indexed(folder: Path) -> None:
    """Store three calls, whose words are in the index; the end of the second is indexed behind its start."""
    store = await open_store(settings.load({"data": str(folder), "search": "on"}, {}))
    assert store._indexing is not None
    store._indexing.cancel()
    starts = [Start(PROJECT, f"call-{n}", "t", "op", AT, '"oslo bergen"', "{}", "ada") for n in (1, 2, 3)]
    await store.calls.write(starts[:2], [])
    await index_everything(store)
    await store.calls.write(starts[2:], [second_half("call-2", exception="no answer")])
    await index_everything(store)
    await store.close()


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("SELECT 1", []),
        ("INSERT INTO search (search, rowid, text) VALUES ('delete', 2, 'bergen')", ["call-2"]),
        ("UPDATE search_data SET block = replace_bytes(block, 'bergen', 'bergeo')", ["call-1", "call-2", "call-3"]),
        ("UPDATE search_codes SET codes = substr(codes, 2) WHERE rid = 3", ["call-3"]),
    ],
    ids=["whole", "a word of a call", "a flipped bit", "codes"],
)
def test_what_the_index_lacks_is_named(statement: str, lost: list[str], tmp_path: Path) -> None:
    asyncio.run(write_indexed(tmp_path))
    with contextlib.closing(sqlite3.connect(tmp_path / "heddle.db")) as database, database:
        database.create_function("replace_bytes", 3, lambda block, old, new: block.replace(old.encode(), new.encode()))
        database.execute(statement)
    looked = SqliteIntegrity(tmp_path / "heddle.db").check_search(math.inf)
    # It begins anywhere.
    assert sorted(looked.problems) == [f"words of call {name!r} are missing" for name in lost]
    assert looked.looked_at == looked.of == 3


def test_an_index_that_is_off_lacks_nothing(tmp_path: Path) -> None:
    asyncio.run(write_indexed(tmp_path))
    with contextlib.closing(sqlite3.connect(tmp_path / "heddle.db")) as database:
        renew(database, is_wanted=False)
    assert SqliteIntegrity(tmp_path / "heddle.db").check_search(math.inf) == (0, 0, [])


def test_the_end_of_a_call_adds_its_words_alone(tmp_path: Path) -> None:
    async def run() -> tuple[int, Held]:
        store = await open_store(settings.load({"data": str(tmp_path), "search": "on"}, {}))
        start = Start(PROJECT, "call", "t", "op", AT, '"oslo bergen"', "{}", "ada")
        for starts, ends in (([start], []), ([], [second_half("call", exception="no answer")])):
            await store.calls.write(starts, ends)
            while (await store.calls.search_progress(PROJECT)).left:
                await asyncio.sleep(0)
        found = await store._control.writer.write(lambda session: (count_removed(session.raw), held(session.raw)))
        await store.close()
        return found

    removed, (words, codes) = asyncio.run(run())
    assert removed == 0
    assert [word for word, _ in words if word.isascii()] == sorted(["oslo", "bergen", "op", "no", "answer", "out"])
    assert bytes(codes[0][1]) == bytes(sorted(codes_of("op oslo bergen no answer out")))
