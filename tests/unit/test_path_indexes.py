"""Expression indexes: built after slow uses, used by the planner, and never a different answer."""

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from heddle import settings
from heddle.store import base
from heddle.store.sqlite import call_table
from heddle.store.sqlite import store as sqlite_store
from heddle.store.sqlite.call_table import select
from heddle.store.sqlite.names import NameReader
from heddle.wire.calls import CallsQuery, End, Start
from heddle.wire.query import parse_query

PROJECT = "p"
LITERALS = ["word", "", "5", 5, 5.0, True, "zz"]
OPERATORS = ["$eq", "$gt", "$gte", "$lt", "$lte"]


def asked(field: str, op: str, literal: Any) -> CallsQuery:
    return CallsQuery(PROJECT, query=parse_query({"$expr": {op: [{"$getField": field}, {"$literal": literal}]}}))


async def filled(folder: Path) -> sqlite_store.SqliteStore:
    """Calls whose inputs and output hold every kind of value, some without the value, some without an end."""
    store = await sqlite_store.open_store(settings.load({"data": str(folder)}, {}))
    values = ['"word"', '""', '"5"', "5", "5.0", "5.5", "true", "false", "null", "[1]", '{"a":1}', None]
    starts, ends = [], []
    for number, value in enumerate(values):
        text = "{}" if value is None else f'{{"k":{value}}}'
        for suffix, is_ended in (("ended", True), ("running", False)):
            call_id = f"{number}-{suffix}"
            starts.append(Start(PROJECT, call_id, "t", "op", number, text, "{}", "user"))
            if is_ended:
                ends.append(End(PROJECT, call_id, number + 1, text, "{}", 0))
    await store.calls.write(starts, ends)
    return store


def in_store(folder: Path, work: Callable[[sqlite_store.SqliteStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await filled(folder)
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


async def build(store: sqlite_store.SqliteStore, query: CallsQuery) -> int:
    """Build every index that could serve the query; returns how many."""
    expressions: list[call_table.Expression] = []

    def compiled(session: Any) -> None:
        selection = select(session.raw, NameReader(), query)
        assert selection is not None
        expressions.extend(selection.indexable)

    await store._readers.read(compiled)
    for expression in expressions:
        await store._control.writer.write(
            lambda session, expression=expression: store.indexes.build(session.raw, expression)
        )
        store.indexes.now_built(expression)
    return len(expressions)


@pytest.mark.parametrize("field", ["inputs.k", "output.k"])
def test_an_index_never_changes_the_answer(tmp_path: Path, field: str) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        queries = [asked(field, op, literal) for op in OPERATORS for literal in LITERALS]
        before = [[row.id async for rows in store.calls.stream(query) for row in rows] for query in queries]
        built = [await build(store, query) for query in queries]
        assert sum(built) > 0
        after = [[row.id async for rows in store.calls.stream(query) for row in rows] for query in queries]
        assert after == before

    in_store(tmp_path, work)


def test_the_planner_uses_the_index(tmp_path: Path) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        query = asked("inputs.k", "$eq", "word")
        assert await build(store, query) == 1

        def plan(session: Any) -> str:
            selection = store.calls._select(session, query)
            assert selection is not None
            sql = "EXPLAIN QUERY PLAN " + selection.sql("c.rid", order=False)
            return "\n".join(row[3] for row in session.raw.execute(sql, selection.parameters))

        assert "USING INDEX path_" in await store._readers.read(plan)

    in_store(tmp_path, work)


def test_a_path_is_wanted_after_three_slow_uses_and_dropped_when_unused(tmp_path: Path) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        indexes, expression = store.indexes, ("body_in", "inputs ->> '$.k'")
        for _ in range(call_table.USES_BEFORE_BUILD - 1):
            indexes.note([expression])
        assert indexes.wanted() is None
        indexes.note([expression])
        assert indexes.wanted() == expression
        await store._control.writer.write(lambda session: indexes.build(session.raw, expression))
        indexes.now_built(expression)
        assert indexes.wanted() is None and indexes.built([expression]) == expression
        assert await store._control.writer.write(lambda session: indexes.tidy(session.raw)) == set()
        await store._control.writer.write(
            lambda session: session.raw.execute("UPDATE path_indexes SET last_used = 0").rowcount
        )
        dropped = await store._control.writer.write(lambda session: indexes.tidy(session.raw))
        indexes.now_dropped(dropped)
        assert dropped == {expression} and indexes.built([expression]) is None

    in_store(tmp_path, work)


def test_a_path_is_counted_on_when_no_more_paths_are_noted(tmp_path: Path) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        indexes = store.indexes
        paths = [("body_in", f"inputs ->> '$.k{number}'") for number in range(1500)]
        for path in (*paths, paths[0], paths[-1], paths[-1], paths[-1]):
            indexes.note([path])
        assert indexes.wanted() is None
        indexes.note([paths[0]])
        assert indexes.wanted() == paths[0]

    in_store(tmp_path, work)


def test_there_are_so_many_indexes_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        indexes, first, second = store.indexes, ("body_in", "inputs ->> '$.a'"), ("body_in", "inputs ->> '$.b'")
        indexes.wish(first)
        await store._control.writer.write(lambda session: indexes.build(session.raw, first))
        indexes.now_built(first)
        for expression in (first, second):
            indexes.wish(expression)
            indexes.note([expression])
        assert indexes.wanted() == second
        assert indexes.built([second, first]) == first
        monkeypatch.setattr(call_table, "MAX_INDEXES", 1)
        assert indexes.wanted() is None

    in_store(tmp_path, work)


def test_upkeep_builds_what_is_wanted_while_nobody_writes_and_tidies_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: sqlite_store.SqliteStore) -> None:
        expression = ("body_in", "inputs ->> '$.k'")
        orphan = store.blobs.put_bytes(b"nobody names this")
        os.utime(store.blobs.path(orphan), (1, 1))
        store.indexes.wish(expression)
        await store._do_upkeep()
        assert store.indexes.built([expression]) is None
        await store._do_upkeep()
        assert store.indexes.built([expression]) == expression
        assert store.blobs.exists(orphan)
        await store._control.writer.write(
            lambda session: session.raw.execute("UPDATE path_indexes SET last_used = 0").rowcount
        )
        store.indexes._used.clear()
        monkeypatch.setattr(store, "_tidied_at", -math.inf)
        await store._do_upkeep()
        assert store.indexes.built([expression]) is None
        assert not store.blobs.exists(orphan)
        found = await store._readers.read(
            lambda session: session.raw.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE 'path#_%' ESCAPE '#'"
            ).fetchall()
        )
        assert found == [("path_indexes",)]

    monkeypatch.setattr(base, "UPKEEP_SECONDS", 3600)
    in_store(tmp_path, work)
