"""Kept counts and sums agree with the tables that they are made of, whatever is written, deleted and purged."""

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from heddle import settings
from heddle.store.query.aggregates import USED
from heddle.store.sqlite import blocks
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.wire import times
from heddle.wire.aggregates import ALL_TIME, CallAggregate, Measure, Value
from heddle.wire.calls import CallsQuery, Filter, UniformRun
from heddle.wire.query import Compare, Field, In, Literal
from tests.support import written_calls
from tests.support.written_calls import OTHER, PROJECT

_SUMS = """calls, totals, tokens, requests, prompt, completion, total, cache_read, cache_creation"""
_REAL = """count(*), count(total), sum(ifnull(total, prompt + completion)), sum(requests), sum(prompt), sum(completion),
    sum(ifnull(total, 0)), sum(cache_read), sum(cache_creation)"""
FIRST = -(10**15) - 7
DAYS = UniformRun(0, FIRST // times.DAY * times.DAY, times.DAY, FIRST, 6 * 10**15)
TOKENS = [Measure("count"), *(Measure(f"sum_{name}", "sum", Value(name)) for name in ("input_tokens", "total_tokens"))]


def check_blocks(folder: Path) -> int:
    """Compare every kept number with what the tables hold; returns how many rows of usage there are."""
    with closing(sqlite3.connect(folder / DATABASE)) as raw:
        for width in blocks.WIDTHS:
            number = f"(started_at - (started_at < 0) * ({width} - 1)) / {width}"
            kept = f"SELECT project, block, model, repeated, {_SUMS} FROM usage_blocks WHERE width = {width} AND calls"
            real = f"SELECT project, {number}, model, repeated, {_REAL} FROM usage GROUP BY 1, 2, 3, 4"
            assert sorted(raw.execute(kept)) == sorted(raw.execute(real))
            kept = f"SELECT project, block, op, root, status, calls FROM call_blocks WHERE width = {width} AND calls"
            real = f"""SELECT project, {number}, op, parent_id IS NULL, status, count(*) FROM calls
                WHERE started_at IS NOT NULL AND deleted_at IS NULL GROUP BY 1, 2, 3, 4, 5"""
            assert sorted(raw.execute(kept)) == sorted(raw.execute(real))
        left = raw.execute(f"SELECT count(*) FROM usage_blocks WHERE NOT calls AND ({_SUMS.replace(',', ' OR')})")
        assert left.fetchone() == (0,)
        return int(raw.execute("SELECT count(*) FROM usage").fetchone()[0])


def count_empty(folder: Path, project: str) -> int:
    """How many blocks of a project have no calls."""
    with closing(sqlite3.connect(folder / DATABASE)) as raw:
        mine = "project = (SELECT k FROM names WHERE v = ?) AND calls = 0"
        tables = ("call_blocks", "usage_blocks")
        return sum(
            raw.execute(f"SELECT count(*) FROM {table} WHERE {mine}", (project,)).fetchone()[0] for table in tables
        )


async def check_answers(store: SqliteStore) -> None:
    """Compare counts and sums with those that are computed of every row."""
    status = Compare("eq", Field("summary.weave.status"), Literal("error"))
    ops = In(Field("op_name"), (Literal("op"), Literal("op-2")))
    for project in (PROJECT, OTHER):
        for query in (status, ops, None):
            chosen = CallsQuery(project, Filter(roots_only=query is ops), query)
            slow = [row async for rows in store.calls.stream(replace(chosen, columns=frozenset())) for row in rows]
            assert await store.calls.count(chosen) == len(slow)
            assert await store.calls.count(replace(chosen, limit=2)) == min(2, len(slow))
        for of in ("usage", "totals"):
            for runs in ([ALL_TIME], [DAYS]):
                for measures in (USED, TOKENS):
                    request = CallAggregate(CallsQuery(project), measures, ("model",), runs, of)
                    kept = await store.call_aggregates.aggregate(request)
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(blocks, "reader_of", lambda *_: None)
                        computed = await store.call_aggregates.aggregate(request)
                    found, real = [
                        sorted((row.bucket, row.keys, row.values | {"priced_at": 0}) for row in rows)
                        for rows in (kept, computed)
                    ]
                    assert found == real


def test_random_writes(tmp_path: Path) -> None:
    chance = random.Random(8)

    async def run() -> int:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        most = 0
        for turn in range(150):
            names = [written_calls.call_id(number) for number in range(40)]
            starts = [written_calls.start(chance, chance.choice(names)) for _ in range(chance.randrange(5))]
            ends = [written_calls.end(chance, chance.choice(names)) for _ in range(chance.randrange(5))]
            for start in starts:
                start.parent_id = chance.choice([None, *names])
                start.otel_dump = chance.choice([None, None, "{}"])
            for end in ends:
                end.usage = written_calls.tokens(chance)
            await store.calls.write(starts, ends)
            if turn % 7 == 0:
                await store.calls.delete(chance.choice((PROJECT, OTHER)), chance.sample(names, 2), "ada")
            if turn % 25 == 24:
                before = chance.choice((-1, written_calls.AT + 1))
                project = chance.choice((PROJECT, OTHER))
                if await store.calls.purge_older(project, before):
                    assert count_empty(tmp_path, project) == 0
            most = max(most, check_blocks(tmp_path))
            if turn % 10 == 0:
                await check_answers(store)
        await store.close()
        return most

    assert asyncio.run(run()) > 20
