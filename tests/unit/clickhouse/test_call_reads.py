"""The reading verbs of calls have the same answers on ClickHouse as on SQLite."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.clickhouse import calls
from heddle.wire.calls import CallsQuery, CostTest, End, Filter, ModelUsage, SortTerm, Start, Usage, UsageRow, UsageSum
from heddle.wire.query import Compare, Convert, Field, In, Literal, Not, Operand, Operation, Or, Size
from tests.support.clickhouse import MISSING
from tests.support.queried_calls import BODIES, PROJECT, asked, listed, reads_of, written
from tests.support.selection import examples, spread
from tests.support.two_stores import TwoStores, in_both

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")


def start(number: int, **fields: object) -> Start:
    """A small call, one of few instants."""
    made = Start(PROJECT, f"c{number:05}", "trace", "op", 1000 + number // 3, f'{{"n":{number}}}', "{}", "ada")
    return replace(made, **fields)  # type: ignore[arg-type]


def end(number: int, **fields: object) -> End:
    """Its end."""
    return replace(End(PROJECT, f"c{number:05}", 2000, '"out"', "{}", 0), **fields)  # type: ignore[arg-type]


def test_whole_calls_come_in_every_order_and_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (calls, "_FIRST_PAGE", 7),
        (calls, "_NEXT_PAGE", 11),
        (calls, "_SLICE_ROWS", 4),
        (calls, "_SPARE_ROWS", 0),
    ):
        monkeypatch.setattr(module, name, value)

    async def work(stores: TwoStores) -> None:
        numbers = [*range(50)]
        random.Random(5).shuffle(numbers)
        await stores.write([start(number) for number in numbers], [end(number) for number in numbers[:30]])
        reads = reads_of(stores)
        orders = (None, (SortTerm("started_at", True),), (SortTerm("inputs.n", True),), (SortTerm("id", True),))
        slices = ((None, 0), (0, 0), (13, 0), (13, 45), (None, 30), (100, 3), (4, 1))
        for order, (limit, offset) in spread(product(orders, slices)):
            query = CallsQuery(PROJECT, sort=order, limit=limit, offset=offset, columns=BODIES)
            assert await listed(reads, query) == await listed(stores.sqlite.calls, query), query
            counted = replace(query, offset=0)
            assert await reads.count(counted) == await stores.sqlite.calls.count(counted)

    in_both(tmp_path, work)


def test_stale_rows_at_the_begin_hide_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_SPARE_ROWS", 0)

    async def work(stores: TwoStores) -> None:
        await stores.write([start(n, parent_id=None if n % 25 == 0 else "c00000") for n in range(200)], [])
        for _ in range(6):
            await stores.write([start(199, parent_id="c00000")], [end(199)])
        await stores.delete(PROJECT, [f"c{n:05}" for n in range(150, 198)])
        for chosen in (Filter(), Filter(roots_only=True), Filter(op_names=("op",))):
            for descends in (False, True):
                order = (SortTerm("started_at", descends),)
                for limit, offset in ((3, 0), (5, 2), (7, 150)):
                    query = CallsQuery(PROJECT, chosen, sort=order, limit=limit, offset=offset)
                    assert await listed(reads_of(stores), query) == await listed(stores.sqlite.calls, query), query

    in_both(tmp_path, work)


def test_without_an_order_calls_come_as_they_were_written(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        numbers = [4, 2, 9, 0, 7]
        for number in numbers:
            await stores.write([start(number)], [end(number)])
        for limit in (None, 3):
            found = await listed(reads_of(stores), CallsQuery(PROJECT, sort=(), limit=limit))
            assert [row.id for row in found] == [f"c{number:05}" for number in numbers[:limit]]

    in_both(tmp_path, work)


def test_large_calls_come_in_small_slices(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        text = '"' + "x" * 1_500_000 + '"'
        await stores.write([start(number, inputs=text, size=len(text)) for number in range(6)], [])
        query = CallsQuery(PROJECT, columns=frozenset(("inputs",)))
        sizes = [len(rows) async for rows in reads_of(stores).stream(query)]
        assert sizes == [2, 2, 2]

    in_both(tmp_path, work)


def test_the_other_verbs_agree(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        world = await written(stores, 7, 60)
        reads, calls = reads_of(stores), stores.sqlite.calls
        everything = CallsQuery(PROJECT, columns=BODIES, trace_sizes=True)
        assert await listed(reads, everything) == await listed(calls, everything)
        assert await reads.storage_size(PROJECT) == await calls.storage_size(PROJECT)
        ids = [call.id for call in world.calls[:9]]
        assert sorted(await reads.traces_of(PROJECT, ids)) == sorted(await calls.traces_of(PROJECT, ids))
        assert await reads.traces_of(PROJECT, []) == []
        for call_id in [*ids, "nobody"]:
            assert await reads.exists(PROJECT, call_id) == await calls.exists(PROJECT, call_id)
        for _ in range(examples(40)):
            query = replace(asked(world).query, sort=None, offset=0)
            try:
                expected = await calls.usage(query), await calls.bytes_of(replace(query, limit=None))
            except InvalidField:
                continue
            found = await reads.usage(query), await reads.bytes_of(replace(query, limit=None))
            assert (by_model(found[0]), found[1]) == (by_model(expected[0]), expected[1])
        for ids_of, after, before in ((None, None, None), (("t1", "x"), None, None), (None, 10**15, 1_709_304 * 10**9)):
            asked_threads = (PROJECT, ids_of, after, before)
            assert await reads.threads(*asked_threads) == await calls.threads(*asked_threads)

    in_both(tmp_path, work)


def by_model(rows: list[UsageRow]) -> list[UsageRow]:
    """The entries of each call by model: how they are ordered is not fixed."""
    return [row._replace(usage=sorted(row.usage)) for row in rows]


def test_an_end_that_waits_for_its_start_exists(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([], [end(1)])
        assert await reads_of(stores).exists(PROJECT, "c00001") is await stores.sqlite.calls.exists(PROJECT, "c00001")

    in_both(tmp_path, work)


def test_spans_leave_their_usage_to_what_is_below_them(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        rng = random.Random(11)
        starts, ends = [], []
        for number in range(60):
            parent = f"c{number - 1 - rng.randrange(min(number, 4)):05}" if number % 12 and rng.random() < 0.9 else None
            dump = '{"span":1}' if number // 12 != 3 else None
            starts.append(start(number, trace_id=f"t{number // 12}", parent_id=parent, otel_dump=dump))
            entry = [Usage("m", 1, number, 2, None, 0, 0)] if rng.random() < 0.6 else []
            ends.append(end(number, usage=entry))
        await stores.write(starts, ends)
        reads, calls = reads_of(stores), stores.sqlite.calls
        assert await reads.usage(CallsQuery(PROJECT)) == await calls.usage(CallsQuery(PROJECT))
        for op, dollars in spread(product(("gt", "gte", "lt", "lte"), (0.0, 5.0, -1.0, 0.5))):
            query = CallsQuery(PROJECT, cost=CostTest(op, dollars, price))
            assert await listed(reads, query) == await listed(calls, query)
            assert await reads.count(query) == await calls.count(query)

    in_both(tmp_path, work)


def price(used: Usage | ModelUsage | UsageSum, at: int) -> float | None:
    """A dollar for ten tokens, nothing known of odd requests."""
    return used.prompt / 10 if used.requests == 1 and used.prompt % 7 else None


def test_dumps_come_in_the_order_of_ids_until_they_are_many(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        dumps = {number: f'{{"d":"{"y" * 1_000_000 if number % 2 else "z"}"}}' for number in range(12)}
        await stores.write([start(number, otel_dump=dumps.get(number)) for number in range(14)], [])
        ids = ["nobody", *(f"c{number:05}" for number in reversed(range(14)))]
        for containing in ("", "z", "%", "y"):
            expected = await stores.sqlite.calls.otel_dumps(PROJECT, ids, containing)
            assert await reads_of(stores).otel_dumps(PROJECT, ids, containing) == expected

    in_both(tmp_path, work)


def test_an_unknown_field_is_refused_before_the_first_slice(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        for query in (
            CallsQuery(PROJECT, query=Compare("eq", Field("nonsense"), Literal(1))),
            CallsQuery(PROJECT, sort=(SortTerm("nonsense", False),)),
        ):
            with pytest.raises(InvalidField):
                await anext(aiter(reads_of(stores).stream(query)))

    in_both(tmp_path, work)


def many(count: int) -> list[Operation]:
    """Queries with many constants: alternatives, a list, and a long text."""
    return [
        Or(tuple(Compare("eq", Field("id"), Literal(f"c{number:05}")) for number in range(count))),
        In(Field("id"), tuple(Literal(f"c{number:05}") for number in range(count * 10))),
        Compare("eq", Field("inputs.n"), Literal("é'\\" * 40_000)),
    ]


def test_many_constants_and_long_ones_are_answered(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(number) for number in range(5)], [])
        counts = [await reads_of(stores).count(CallsQuery(PROJECT, query=query)) for query in many(500)]
        assert counts == [5, 5, 0]
        chosen = Filter(call_ids=tuple(f"c{number:05}" for number in range(3, 20_000)))
        assert await reads_of(stores).count(CallsQuery(PROJECT, chosen)) == 2

    in_both(tmp_path, work)


def nested(levels: int) -> list[Operation]:
    """Queries as deep as the parser lets through."""
    negated: Operation = Compare("eq", Field("inputs.n"), Literal(1))
    either, equal = negated, negated
    converted: Operand = Field("inputs.n")
    for level in range(levels):
        negated = Not(negated)
        either = Or((either, Compare("eq", Field("inputs.n"), Literal(level))))
        equal = Compare("eq", equal, Literal(1))
        converted = Convert(converted, ("int", "string", "double", "bool")[level % 4])
    return [negated, either, equal, Compare("eq", converted, Literal(1)), Compare("eq", Size(converted), Literal(1))]


def test_what_is_nested_deep_is_answered_or_too_complex(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.write([start(1)], [])
        reads = reads_of(stores)
        for query in nested(3):
            expected = await stores.sqlite.calls.count(CallsQuery(PROJECT, query=query))
            assert await reads.count(CallsQuery(PROJECT, query=query)) == expected
        for query in nested(98):
            try:
                assert await reads.count(CallsQuery(PROJECT, query=query)) <= 1
            except InvalidRequest as error:
                assert "too complex" in str(error)

    in_both(tmp_path, work)
