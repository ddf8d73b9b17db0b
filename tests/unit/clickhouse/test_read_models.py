"""The sums that pages show are the same on ClickHouse as on SQLite."""

import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest

from heddle.store.base import CallAggregateStore
from heddle.store.clickhouse.aggregates import CallAggregates
from heddle.store.clickhouse.trace_spans import TraceSpans
from heddle.wire import refs, times
from heddle.wire.aggregates import ALL_TIME, CALLS_AND_ERRORS, CallAggregate, Measure, Value, cut_run
from heddle.wire.calls import CallsQuery, End, Filter, Start, UniformRun, Usage, UsageSum
from heddle.wire.outline import Outline
from heddle.wire.query import parse_query
from tests.support.clickhouse import MISSING
from tests.support.selection import spread, with_breadth
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
each_seed = pytest.mark.parametrize("seed", with_breadth(SEEDS))


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
    status, problem = chance.choice(
        [(0, None), (0, None), (2, None), (1, "KeyError: 7"), (1, "TypeError: 'x' is none")]
    )
    return End(call.project, call.id, call.started_at + took, "1", "{}", status, problem, usage=usage)


def _tokens(chance: random.Random) -> tuple[int, int, int, int | None, int, int]:
    prompt, completion = chance.randrange(2000), chance.choice([0, 1, chance.randrange(500), 2**40])
    return chance.randrange(3), prompt, completion, chance.choice([None, prompt + completion, 0]), prompt // 2, 1


def bag(rows: Iterable[Any]) -> Counter[Any]:
    """Rows whose order says nothing."""
    return Counter(rows)


def priced(rows: Iterable[UsageSum], changes: list[int]) -> Counter[UsageSum]:
    """Sums of usage with the number of the price that holds, whichever instant of its time they name."""
    return bag(row._replace(priced_at=bisect_right(changes, row.priced_at)) for row in rows)


@each_seed
def test_usage_and_ops(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        expected, found = stores.sqlite.call_aggregates, CallAggregates(stores.clickhouse, stores.control)
        cuts = sorted(chance.randrange(*WHOLE) for _ in range(20))
        for project in (*PROJECTS, "unknown"):
            assert await found.first_usage(project) == await expected.first_usage(project)
            assert await found.bounds(project) == await expected.bounds(project)
            runs = (
                (UniformRun(0, WHOLE[0], times.DAY, *WHOLE), cuts),
                (UniformRun(0, 0, 2**62, *WHOLE), NOTHING),
                (UniformRun(0, 0, 10**6, *cuts[2:4]), cuts),
                (ALL_TIME, cuts),
            )
            for by, (run, pieces) in spread(product(("", "op", "user", "thread_id"), runs)):
                asked = (CallsQuery(project), cut_run(run, pieces), by)
                rows = await expected.usage(*asked)
                assert priced(await found.usage(*asked), pieces) == priced(rows, pieces)
                assert project == "unknown" or run.lower != WHOLE[0] or rows
            ops = {activity.op: activity for activity in await expected.ops(project)}
            for activity in await found.ops(project):
                own = ops.pop(activity.op)
                assert sorted(activity.seconds) == sorted(own.seconds)
                assert activity._replace(seconds=()) == own._replace(seconds=())
            assert not ops

    compared(tmp_path, seed, work)


FUNCTIONS = ("count", "sum", "avg", "min", "max", "count_true", "count_false", "values")
METRICS = {
    "calls": ("latency_ms", "call_count", "error_count", "seconds"),
    "usage": (
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ),
}

OF_ERRORS = (
    Measure("calls"),
    Measure("traces", "count_distinct", Value("trace_id")),
    Measure("users", "count_distinct", Value("user")),
    Measure("last", "max", Value("started_at")),
    Measure("newest", "newest"),
)


@pytest.mark.thorough
@each_seed
def test_the_groups_with_most_calls(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        del chance
        for store in (stores.sqlite.call_aggregates, CallAggregates(stores.clickhouse, stores.control)):
            every = CallAggregate(CallsQuery(PROJECT), OF_ERRORS, ("name", "error_group"))
            counts = sorted((row.values["calls"] for row in await store.aggregate(every)), reverse=True)
            first = await store.aggregate(replace(every, order="calls", most=2))
            assert sorted((row.values["calls"] for row in first), reverse=True) == counts[:2]

    compared(tmp_path, seed, work)


@each_seed
@pytest.mark.parametrize("project", with_breadth((*PROJECTS, "unknown")))
def test_every_measure(tmp_path: Path, project: str, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        found = CallAggregates(stores.clickhouse, stores.control)
        for query, kind in spread(product(_queries(project), range(5)), 4):
            runs = _kinds_of_runs(chance)[kind]
            for keys in ((), ("op",), ("user",), ("thread_id",)):
                counts = CallAggregate(query, CALLS_AND_ERRORS, keys, runs)
                await _compare(found, stores.sqlite.call_aggregates, counts)
            errors = CallAggregate(query, OF_ERRORS, ("name", "error_group"), runs)
            await _compare(found, stores.sqlite.call_aggregates, errors)
            for of, names in METRICS.items():
                measures = [
                    Measure(f"{function}_{name}", function, Value(name)) for name in names for function in FUNCTIONS
                ]
                asked = CallAggregate(query, measures, ("model",) if of == "usage" else (), runs, of)
                await _compare(found, stores.sqlite.call_aggregates, asked)

    compared(tmp_path, seed, work)


def _kinds_of_runs(chance: random.Random) -> list[list[UniformRun]]:
    """Times cut in one, in days, in runs of their own, in two lengths, and not at all."""
    start, middle = BEGIN - chance.randrange(times.DAY), BEGIN + chance.randrange(SPREAD)
    days = WHOLE[0] // times.DAY * times.DAY
    return [
        [UniformRun(0, start, 10**10 + 1, start, WHOLE[1])],
        [UniformRun(0, days, times.DAY, days + 5, WHOLE[1] - 7)],
        [UniformRun(n, days + n * times.DAY, times.DAY, *_day(days, n)) for n in range(5)],
        [UniformRun(0, WHOLE[0], times.DAY, WHOLE[0] + 5, middle), UniformRun(50, middle, 3 * 10**9, middle, WHOLE[1])],
        [],
    ]


def _day(days: int, number: int) -> tuple[int, int]:
    return days + number * times.DAY, days + (number + 1) * times.DAY


async def _compare(found: CallAggregateStore, expected: CallAggregateStore, asked: CallAggregate) -> None:
    """The same groups; floating-point numbers are summed up in another order."""
    rows, own = [sorted(await store.aggregate(asked), key=lambda row: row[:2]) for store in (found, expected)]
    assert [row[:2] for row in rows] == [row[:2] for row in own]
    for row, expected_row in zip(rows, own, strict=True):
        for name, value in expected_row.values.items():
            assert row.values[name] == (pytest.approx(value) if isinstance(value, float) else value)


@each_seed
def test_a_sample_holds_some_of_the_values(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        del chance
        for store in (stores.sqlite.call_aggregates, CallAggregates(stores.clickhouse, stores.control)):
            measures = [Measure("calls"), Measure("all", "values", Value("seconds"))]
            whole = CallAggregate(CallsQuery(PROJECT), measures)
            (row,), (some,) = await store.aggregate(whole), await store.aggregate(replace(whole, sample=10))
            assert some.values["calls"] == row.values["calls"]
            assert 0 < len(some.values["all"]) < len(row.values["all"])
            assert set(some.values["all"]) <= set(row.values["all"])
            (same,) = await store.aggregate(replace(whole, sample=10**6))
            assert same == row

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


@each_seed
def test_activity_of_projects(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores, chance: random.Random) -> None:
        await stores.sqlite.projects.make(refs.internal_project("team/empty"), None)
        cuts = {project: [BEGIN + chance.randrange(SPREAD) for _ in range(chance.randrange(3))] for project in PROJECTS}

        async def changes(project: str) -> list[int]:
            return sorted(cuts[project])

        since = BEGIN + chance.randrange(SPREAD // 2)
        found = await CallAggregates(stores.clickhouse, stores.control).projects(since, changes)
        own = await stores.sqlite.call_aggregates.projects(since, changes)
        assert len(own) == len(PROJECTS) + 1
        plain = {activity.project: (activity[:5], bag(activity.usage)) for activity in own}
        assert {activity.project: (activity[:5], bag(activity.usage)) for activity in found} == plain

    compared(tmp_path, seed, work)


@pytest.mark.thorough
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
