"""The sums that pages show are the same on ClickHouse as on SQLite."""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from heddle.store.base import Quantiles
from heddle.store.clickhouse.sums import (
    CALL_METRICS,
    USAGE_METRICS,
    Breakdowns,
    CallCounts,
    CallStats,
    Overviews,
    ProjectActivities,
    ThreadSums,
)
from heddle.store.clickhouse.trace_spans import TraceSpans
from heddle.wire import refs, times
from heddle.wire.calls import CallsQuery, End, Filter, MetricRow, Start, UniformRun, Usage
from heddle.wire.inference import CostOf
from heddle.wire.outline import Outline
from heddle.wire.overview import CallCounts as BucketCounts
from heddle.wire.overview import TimeSpan
from heddle.wire.query import parse_query
from tests.support.clickhouse import MISSING
from tests.support.two_stores import TwoStores, in_both

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(30 if SOAK else 2)
PROJECTS = tuple(refs.internal_project(f"team/p{number}") for number in range(3))
PROJECT = PROJECTS[0]
BEGIN = 1_770_000_000_000_000
SPREAD = 3 * times.DAY
WHOLE = (BEGIN - times.DAY, BEGIN + 2 * SPREAD)
THREADS = ["a", "b'\\", "ü", "never"]
NOTHING: list[Usage] = []

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")
each_seed = pytest.mark.parametrize("seed", SEEDS)


def compared(folder: Path, seed: int, work: Callable[[TwoStores, random.Random], Awaitable[None]]) -> None:
    """Write random calls to both stores, then run `work`."""
    chance = random.Random(seed)

    async def run(stores: TwoStores) -> None:
        for first in range(0, 40, 8):
            parts = [trace(chance, number) for number in range(first, first + 8)]
            starts, ends = [half for some, _ in parts for half in some], [half for _, some in parts for half in some]
            # Spans come whole, in any order and in several requests; an SDK sends the halves of calls.
            spans = {half.id for half in starts if half.otel_dump is not None}
            early = {call_id for call_id in sorted(spans) if chance.random() < 0.5}
            for ids in (early, spans - early):
                await stores.write(*([half for half in halves if half.id in ids] for halves in (starts, ends)))
            await stores.write([half for half in starts if half.id not in spans], [])
            await stores.write([], [half for half in ends if half.id not in spans])
        for number in range(0, 40, 9):
            assert len(set(await stores.delete(PROJECT, [f"{number}-0"]))) == 1
        await work(stores, chance)

    in_both(folder, run)


def trace(chance: random.Random, number: int) -> tuple[list[Start], list[End]]:
    """The halves of one trace, in any order; its calls are those of an SDK or spans."""
    project, is_otel, size = chance.choice(PROJECTS), chance.random() < 0.4, chance.randrange(1, 9)
    begin = BEGIN + chance.randrange(SPREAD)
    starts, ends = [], []
    for index in range(size):
        parent = None if not index else chance.choice([None, "gone", *(f"{number}-{above}" for above in range(index))])
        call = start(chance, project, number, index, begin + index * chance.randrange(10**6), parent)
        call.otel_dump = "{}" if is_otel else None
        starts.append(call)
        if chance.random() < 0.85:
            ends.append(end(chance, call))
    chance.shuffle(starts)
    chance.shuffle(ends)
    return starts, ends


def start(chance: random.Random, project: str, number: int, index: int, at: int, parent: str | None) -> Start:
    """A first half."""
    op = chance.choice(["plain", "ünï", f"{refs.INTERNAL}{project}/op/named:{'v' * 43}"])
    kinds: Sequence[Any] = [{}, {"weave": {"kind": "tool"}}, {"kind": "llm"}, {"kind": 7}, {"weave": {"kind": None}}]
    attributes = orjson.dumps(kinds[hash_of(op) % len(kinds)]).decode()
    call_id = f"{number}-{index}"
    thread = chance.choice([None, *THREADS[:3]])
    turn = chance.choice([None, call_id, f"{number}-0"])
    names = [None, None, "shown"]
    return Start(
        *(project, call_id, f"trace-{number}", op, at, "{}", attributes, chance.choice(["ada", "bob"]), parent, thread),
        *(turn, chance.choice(names)),
    )


def hash_of(text: str) -> int:
    """A number that is the same in each process."""
    return sum(text.encode())


def end(chance: random.Random, call: Start) -> End:
    """A second half."""
    models = chance.sample(["gpt", "klaude", "ünpriced"], chance.choice([0, 0, 1, 2]))
    usage = [Usage(model, *_tokens(chance)) for model in models]
    took = chance.choice([0, 1, 999, 10**6, 86_400 * 10**6, chance.randrange(10**8)])
    return End(call.project, call.id, call.started_at + took, "1", "{}", chance.choice([0, 0, 1, 2]), usage=usage)


def _tokens(chance: random.Random) -> tuple[int, int, int, int | None, int, int]:
    prompt, completion = chance.randrange(2000), chance.choice([0, 1, chance.randrange(500), 2**40])
    return chance.randrange(3), prompt, completion, chance.choice([None, prompt + completion, 0]), prompt // 2, 1


def price(model: str, at: int, *, requests: int, prompt_tokens: int, completion_tokens: int, **_: int) -> float | None:
    """Prices that change after a day."""
    return None if model == "ünpriced" else (1 + (at > BEGIN + times.DAY)) * (prompt_tokens + 2 * completion_tokens)


def bag(rows: Iterable[Any]) -> Counter[Any]:
    """Rows whose order says nothing."""
    return Counter(rows)


@each_seed
def test_breakdowns(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        expected, found = stores.sqlite.breakdowns, Breakdowns(stores.clickhouse)
        cuts = sorted(chance.randrange(*WHOLE) for _ in range(20))
        for project in (*PROJECTS, "unknown"):
            assert await found.first_usage(project) == await expected.first_usage(project)
            for by in ("", "op", "user"):
                for asked in (
                    (*WHOLE, WHOLE[0], times.DAY, cuts),
                    (*WHOLE, 0, 2**62, ()),
                    (*cuts[2:4], 0, 10**6, cuts),
                ):
                    rows = await expected.usage(project, by, *asked)
                    assert bag(await found.usage(project, by, *asked)) == bag(rows)
                    assert project == "unknown" or asked[0] != WHOLE[0] or rows
            ops = {activity.op: activity for activity in await expected.ops(project)}
            for activity in await found.ops(project):
                own = ops.pop(activity.op)
                assert sorted(activity.seconds) == sorted(own.seconds)
                assert activity._replace(seconds=()) == own._replace(seconds=())
            assert not ops

    compared(tmp_path, seed, work)


@each_seed
def test_overviews(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        expected, found = stores.sqlite.overviews, Overviews(stores.clickhouse)
        for project in (*PROJECTS, "unknown"):
            assert await found.first_started_at(project) == await expected.first_started_at(project)
            for width in (times.DAY, 3600 * times.SECOND, 7 * times.SECOND):
                lower = BEGIN // width * width
                span = TimeSpan(lower, lower + chance.randrange(SPREAD), width)
                rows, own = await found.read(project, span), await expected.read(project, span)
                assert [_rounded(row) for row in rows.counts] == [_rounded(row) for row in own.counts]
                assert _rounded(rows.whole) == _rounded(own.whole)

    compared(tmp_path, seed, work)


def _rounded(row: BucketCounts) -> tuple[Any, ...]:
    return tuple(round(value, 6) if isinstance(value, float) else value for value in row)


@each_seed
def test_counts_and_stats(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        counts, stats = CallCounts(stores.clickhouse, stores.control), CallStats(stores.clickhouse, stores.control)
        for project in (*PROJECTS, "unknown"):
            assert await counts.bounds(project) == await stores.sqlite.call_counts.bounds(project)
            assert bag(await counts.ops(project, 50)) == bag(await stores.sqlite.call_counts.ops(project, 50))
            for query in _queries(project):
                asked = (BEGIN - chance.randrange(times.DAY), chance.choice([times.DAY, 10**10 + 1]), 30)
                assert await counts.sums(query, *asked) == await stores.sqlite.call_counts.sums(query, *asked)
                middle = BEGIN + chance.randrange(SPREAD)
                runs = [
                    UniformRun(0, WHOLE[0], times.DAY, WHOLE[0] + 5, middle),
                    UniformRun(50, middle, 3 * 10**9, middle, WHOLE[1]),
                ]
                for metrics, kind in ((list(USAGE_METRICS), "usage"), (list(CALL_METRICS), "calls")):
                    own = await getattr(stores.sqlite.call_stats, kind)(query, runs, metrics, metrics[:3:2])
                    assert _ordered(await getattr(stats, kind)(query, runs, metrics, metrics[:3:2])) == _ordered(own)

    compared(tmp_path, seed, work)


def _queries(project: str) -> list[CallsQuery]:
    status = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}
    text = {"$contains": {"input": {"$getField": "op_name"}, "substr": {"$literal": "nam"}}}
    return [
        CallsQuery(project),
        CallsQuery(project, Filter(roots_only=True, op_names=("plain",))),
        CallsQuery(project, Filter(thread_ids=("a", "ü"))),
        CallsQuery(project, query=parse_query({"$expr": status})),
        CallsQuery(project, query=parse_query({"$expr": text})),
    ]


def _ordered(answer: tuple[list[MetricRow], Quantiles]) -> tuple[list[MetricRow], Quantiles]:
    # Floating-point numbers are summed up in another order.
    rows = [row._replace(total=round(row.total, 3)) for row in answer[0]]
    return sorted(rows, key=lambda row: (row.bucket, row.model, row.metric)), answer[1]


@each_seed
def test_activity_of_projects(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        await stores.sqlite.projects.make(refs.internal_project("team/empty"), None)
        cuts = {project: [BEGIN + chance.randrange(SPREAD) for _ in range(chance.randrange(3))] for project in PROJECTS}

        async def changes(project: str) -> list[int]:
            return sorted(cuts[project])

        since = BEGIN + chance.randrange(SPREAD // 2)
        found = await ProjectActivities(stores.clickhouse, stores.control).all(since, changes)
        own = await stores.sqlite.project_activity.all(since, changes)
        assert len(own) == len(PROJECTS) + 1
        plain = {activity.project: (activity[:5], bag(activity.usage)) for activity in own}
        assert {activity.project: (activity[:5], bag(activity.usage)) for activity in found} == plain

    compared(tmp_path, seed, work)


@each_seed
def test_figures_of_threads(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        cost: CostOf = price
        for project in (*PROJECTS, "unknown"):
            own = await stores.sqlite.thread_sums.figures(project, THREADS, cost)
            assert await ThreadSums(stores.clickhouse).figures(project, THREADS, cost) == own
        assert await ThreadSums(stores.clickhouse).figures(PROJECT, [], cost) == []

    compared(tmp_path, seed, work)


@each_seed
def test_spans_of_traces(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        embedded, found = stores.sqlite.trace_spans, TraceSpans(stores.clickhouse)
        for number in range(41):
            for project in PROJECTS:
                for limit in (100, 3):
                    asked = (project, f"trace-{number}", limit, f"{number}-2")
                    own, outline = await embedded.outline(*asked), await found.outline(*asked)
                    assert _facts(outline) == _facts(own)
                    for start in range(0, len(own.rids), 3):
                        expected = await embedded.spans(own, start, start + 3)
                        assert [_used(span) for span in await found.spans(outline, start, start + 3)] == [
                            _used(span) for span in expected
                        ]
        assert await found.spans(outline, 50, 60) == []

    compared(tmp_path, seed, work)


def _facts(outline: Outline) -> Any:
    own = (outline.parents, outline.orphans, outline.selected, outline.total, outline.ended)
    return (*own, outline.starts, len(outline.rids), outline.version)


def _used(span: Any) -> Any:
    return span and span._replace(usage=bag(span.usage))
