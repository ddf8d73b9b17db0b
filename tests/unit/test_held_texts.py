"""A first filter on a JSON text is answered with the help of text search, with the count of reading every call."""

import asyncio
import random
from pathlib import Path
from typing import Any

import orjson

from heddle import settings
from heddle.store.sqlite.call_table import select
from heddle.store.sqlite.database import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.search import calls_that_may_hold, index_next
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.wire.calls import CallsQuery, End, Start
from heddle.wire.query import Compare, Field, Literal, Not, Operation
from heddle.wire.search import MAX_TEXT
from tests.support.written_calls import AT, PROJECT

TEXTS = ("customer-7", "customer-70", "customer 7", "getUserName", "getUserName-7", "user_getName", "abc*", "e.g. this")
TEXTS += (
    "Nobody",
    "x" * 159,
    "y" * 200,
    "z1," * 20,
    "z1," * 10,
    "a1+b/c=",
    "q\\n7",
    'a "b"',
    "naïve",
    "true",
    "",
    "nan1",
)
TEXTS += ("HTTPServer of 2.5", "line\nbreak", "tab\there", "co\u0301de", "tail" + " word" * 24, "ab🙂cd", "A", "ſet")
PATHS = ("inputs.deep.b", "attributes.list.0", "output.a", "summary.a")


def body(chance: random.Random) -> str:
    """A document with some of the texts, of which few have more than text search reads."""
    found: dict[str, Any] = {"a": chance.choice(TEXTS), "list": [chance.choice(TEXTS), 7], "n": [0.7, *range(20)]}
    found |= {"deep": {"b": chance.choice((*TEXTS, 5, None, {"c": "Nobody"}))}, "noise": "é" * chance.randrange(2)}
    if chance.random() < 0.05:
        found = {"pad": " word" * (MAX_TEXT // 5), **found}
    return orjson.dumps(found).decode()


async def write(store: SqliteStore, chance: random.Random, numbers: range) -> None:
    """Store calls with random bodies, one after the other."""
    for number in numbers:
        start = Start(PROJECT, f"call-{number}", "t", "op", AT + number, body(chance), body(chance), "ada")
        start.size = len(start.inputs) + len(start.attributes)
        end = End(PROJECT, start.id, start.started_at + 5, body(chance), body(chance), 0)
        end.size = len(end.output or "") + len(end.summary)
        await store.calls.write([start], [end] if number % 7 else [])


async def read_all(store: SqliteStore, query: Operation) -> int:
    """How many calls a query selects, by reading every call."""
    return sum([len(rows) async for rows in store.calls.stream(CallsQuery(PROJECT, query=query))])


async def look_up(store: SqliteStore, query: Operation) -> list[int] | None:
    """The calls that text search names for a query, None where it is not asked."""

    def work(session: Session) -> list[int] | None:
        names = NameReader()
        chosen = select(session.raw, names, CallsQuery(PROJECT, query=query))
        number = names.number(session.raw, PROJECT) or 0
        return calls_that_may_hold(session.raw, number, chosen.held) if chosen and chosen.held else None

    return await store._readers.read(work)


async def stop_indexing(store: SqliteStore) -> None:
    """Let text search know no more calls than it does now."""
    assert store._indexing is not None
    store._indexing.cancel()
    await asyncio.gather(store._indexing, return_exceptions=True)


async def index_all(store: SqliteStore) -> None:
    """Let text search know every call that is stored."""
    while await store._control.writer.write(lambda session: index_next(session.raw)):
        pass


def test_counts_are_those_of_reading_every_call(tmp_path: Path) -> None:
    chance = random.Random(3)

    async def run() -> int:
        store = await open_store(settings.load({"data": str(tmp_path), "search": "on"}, {}))
        await stop_indexing(store)
        await write(store, chance, range(300))
        await index_all(store)
        await write(store, chance, range(280, 310))
        await store.calls.delete(PROJECT, ["call-3", "call-4"], "ada")
        helped = 0
        for path in PATHS:
            for text in TEXTS:
                query = Compare("eq", Field(path), Literal(text))
                count = await store.calls.count(CallsQuery(PROJECT, query=query))
                assert count == await read_all(store, query), query
                helped += len(await look_up(store, query) or range(330)) < 300
        refused = Not(query)
        assert await store.calls.count(CallsQuery(PROJECT, query=refused)) == await read_all(store, refused)
        await store.close()
        return helped

    assert asyncio.run(run()) > 30


def test_an_index_that_lags_is_not_asked(tmp_path: Path) -> None:
    chance = random.Random(4)

    async def run() -> None:
        store = await open_store(settings.load({"data": str(tmp_path), "search": "on"}, {}))
        await stop_indexing(store)
        await write(store, chance, range(30))
        equal = Compare("eq", Field("inputs.a"), Literal("customer-7"))
        assert await look_up(store, equal) is None
        assert await store.calls.count(CallsQuery(PROJECT, query=equal)) == await read_all(store, equal)
        await store.close()

    asyncio.run(run())
