"""The index of agent spans: what is written, what is hidden, what goes, and that PostgreSQL could run it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.control.agents import spans as index
from heddle.store.control.agents.aggregates import Ranges, SpanAggregate
from heddle.store.control.agents.fields import (
    COSTS,
    DERIVED,
    Fields,
    GroupFilter,
    SpanFilter,
    Targets,
    condition,
)
from heddle.store.control.agents.reads import SpansRequest
from heddle.store.control.agents.table import MORE_NUMBERS, MORE_TEXTS, TEXTS, TOKENS, agent_traces
from heddle.store.control.costs import PriceRow
from heddle.store.control.erasure import Erasure
from heddle.store.control.project_tables import FoundCalls
from heddle.store.control.row_queries import Sort
from heddle.wire.aggregates import Key, Measure, Value
from heddle.wire.calls import UniformRun
from heddle.wire.query import parse_query
from heddle.wire.spans import AgentSpan
from tests.support.memory import MemoryExecutor

T = TypeVar("T")
PROJECT = "cA"


def span(number: int, trace: str = "t", **said: Any) -> AgentSpan:
    """The span of that number, a second after the one before."""
    at = number * 1_000_000
    return AgentSpan(PROJECT, trace, f"s{number}", at, at + 500_000, **said)


@pytest.fixture
def executor() -> MemoryExecutor:
    """A database in memory."""
    return MemoryExecutor()


@pytest.fixture
def store(executor: MemoryExecutor) -> index.AgentSpans:
    """An empty index."""
    return index.AgentSpans(executor)


def run(work: Awaitable[T]) -> T:
    """The result of a coroutine."""

    async def awaited() -> T:
        return await work

    return asyncio.run(awaited())


def rows(store: index.AgentSpans, **chosen: Any) -> list[dict[str, Any]]:
    """The rows of a filter, oldest first."""
    request = SpansRequest(SpanFilter(PROJECT, **chosen), [Sort("started_at")], 1000)
    return run(store.page(request))[0]


def columns(store: index.AgentSpans, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of all rows, oldest first."""
    return [tuple(row[name] for name in names) for row in rows(store)]


def test_a_span_written_again_takes_the_new_values(store: index.AgentSpans) -> None:
    run(store.write([span(1, agent_name="a", custom_attrs_int={"n": 1}, request_temperature=0.0)]))
    assert columns(store, "custom", "more") == [('{"custom_attrs_int":{"n":1}}', '{"request_temperature":0.0}')]
    run(store.write([replace(span(1), tool_name="x"), span(2)]))
    assert columns(store, "span_id", "tool_name", "custom", "more") == [("s1", "x", None, None), ("s2", "", None, None)]


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)])
def test_identity_is_that_of_the_earliest_declaration(store: index.AgentSpans, order: Sequence[int]) -> None:
    """Whatever the order of writing; name, version and id always come from one span."""
    spans = {
        1: span(1),
        2: span(2, agent_name="first", agent_version="1", conversation_id="c1"),
        3: span(3, agent_name="second", agent_id="x", conversation_id="c2"),
        4: span(4),
    }
    for number in order:
        run(store.write([spans[number]]))
    assert columns(store, "agent_name", "agent_version", "agent_id", "conversation_id") == [
        ("first", "1", "", "c1"),
        ("first", "1", "", "c1"),
        ("second", "", "x", "c2"),
        ("first", "1", "", "c1"),
    ]


def test_traces_and_projects_are_kept_apart(store: index.AgentSpans) -> None:
    other = replace(span(1, agent_name="other"), project="cB")
    run(store.write([span(1), span(2, trace="u", agent_name="a"), other]))
    assert columns(store, "trace_id", "agent_name") == [("t", ""), ("u", "a")]


def test_hidden_spans_stay_hidden(store: index.AgentSpans, executor: MemoryExecutor) -> None:
    run(store.write([span(1), span(2), span(1, trace="u")]))
    run(executor.write(lambda connection: index.hide(connection, PROJECT, ["t"], ["s1", "unknown"])))
    assert columns(store, "trace_id", "span_id") == [("u", "s1"), ("t", "s2")]
    run(store.write([span(1)]))
    assert len(rows(store)) == 2


def test_what_is_too_old_goes_in_slices(store: index.AgentSpans, executor: MemoryExecutor) -> None:
    run(store.write([span(number, trace=f"t{number}") for number in range(10)]))

    def purge() -> int:
        return run(executor.write(lambda connection: index.purge_older(connection, PROJECT, 7_000_000, 5)))

    assert [purge(), purge(), purge()] == [5, 2, 0]
    assert columns(store, "span_id") == [("s7",), ("s8",), ("s9",)]
    left = run(executor.read(lambda connection: connection.execute(sa.select(agent_traces.c.trace_id)).fetchall()))
    assert sorted(row[0] for row in left) == ["t7", "t8", "t9"]


def purge_spans(executor: MemoryExecutor, *span_ids: str) -> dict[str, int]:
    """Purge the calls of some spans of the trace t; returns how many rows of each table went."""
    counts: dict[str, int] = {}
    run(Erasure(executor).calls(FoundCalls(PROJECT, span_ids, ["t"]), counts))
    return counts


def test_a_trace_that_is_purged_in_part_shows_what_the_spans_that_stay_say(
    store: index.AgentSpans, executor: MemoryExecutor
) -> None:
    secret = {"agent_name": "gone", "agent_version": "1", "conversation_id": "c1", "conversation_name": "secret"}
    said = [span(1, **secret), span(2), span(3, agent_name="stays", agent_id="x"), span(4, conversation_id="c2")]
    said += [span(5, agent_name="late", conversation_id="c3"), span(6, trace="u", conversation_name="secret")]
    run(store.write(said))
    assert purge_spans(executor, "s1") == {"agent_spans": 1}
    shown = ("span_id", "agent_name", "agent_version", "agent_id", "conversation_id", "conversation_name")
    stay = [("s2", "stays", "", "x", "c2", ""), ("s3", "stays", "", "x", "c2", ""), ("s4", "stays", "", "x", "c2", "")]
    stay += [("s5", "late", "", "", "c3", ""), ("s6", "", "", "", "", "secret")]
    assert columns(store, *shown) == stay
    run(store.write([span(7)]))
    assert columns(store, *shown) == [*stay, ("s7", "stays", "", "x", "c2", "")]
    purge_spans(executor, "s2", "s3", "s4", "s5", "s7")
    run(store.write([span(8)]))
    assert columns(store, *shown) == [("s6", "", "", "", "", "secret"), ("s8", "", "", "", "", "")]


def test_repeated_tokens_stay_uncounted_while_a_span_of_a_model_stays(
    store: index.AgentSpans, executor: MemoryExecutor
) -> None:
    def total() -> Any:
        request = SpanAggregate(SpanFilter(PROJECT), [Measure("m", "total", Value("input_tokens"))])
        [row] = run(store.groups(request))[0]
        return row.values["m"]

    run(store.write([span(1, operation_name="invoke_agent", input_tokens=12)]))
    assert total() == 12
    run(store.write([span(number, operation_name="chat", input_tokens=number) for number in (5, 7)]))
    assert total() == 12
    purge_spans(executor, "s7")
    run(store.write([span(8, operation_name="invoke_agent", input_tokens=5)]))
    assert total() == 5
    purge_spans(executor, "s5")
    run(store.write([span(9, operation_name="invoke_agent", input_tokens=3)]))
    assert total() == 3


def test_spans_of_evaluated_calls(store: index.AgentSpans) -> None:
    call = {"eval_predict_and_score_call_id": "p1"}
    run(store.write([span(2, **call), span(1, **call), span(3)]))
    assert run(store.of_evaluated(PROJECT, ["p1", "p2"])) == {"p1": [("t", "s1"), ("t", "s2")]}


def test_many_targets_fit_one_condition(store: index.AgentSpans) -> None:
    """Far more than SQLite takes parameters."""
    run(store.write([span(1), span(2)]))
    assert len(rows(store, targets=[Targets(span_ids=[f"s{number}" for number in range(2, 60_000)])])) == 1
    assert rows(store, targets=[Targets()]) == []


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ({"$eq": [{"$getField": "nonsense"}, {"$getField": "agent_name"}]}, InvalidField),
        ({"$eq": [{"$getField": "custom_attrs_int"}, {"$literal": 1}]}, InvalidField),
        ({"$eq": [{"$getField": "input_messages"}, {"$literal": "x"}]}, InvalidField),
        ({"$gt": [{"$getField": "input_tokens"}, {"$literal": None}]}, InvalidRequest),
        ({"$in": [{"$getField": "size"}, [{"$literal": 1}, {"$literal": "a"}]]}, InvalidRequest),
        ({"$eq": [{"$getField": "size"}, {"$getField": "agent_name"}]}, InvalidField),
        ({"$not": [{"$search": {"text": "words"}}]}, InvalidRequest),
    ],
)
def test_queries_that_mean_nothing(expression: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        condition(parse_query({"$expr": expression}), Fields())


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ({"$in": [{"$getField": "size"}, [{"$literal": 1}, {"$literal": 2.5}]]}, ["s1", "s2"]),
        ({"$gt": [{"$convert": {"input": {"$getField": "size"}, "to": "double"}}, {"$literal": 2}]}, ["s2"]),
        ({"$eq": [{"$size": {"$getField": "agent_name"}}, {"$literal": 3}]}, ["s3"]),
        ({"$or": [{"$eq": [{"$getField": "size"}, {"$literal": 1}]}, {"$contains": {
            "input": {"$getField": "agent_name"}, "substr": {"$literal": "ad"}}}]}, ["s1", "s3"]),
    ],
)  # fmt: skip
def test_queries_choose_spans(store: index.AgentSpans, expression: Any, found: list[str]) -> None:
    spans = [span(1, custom_attrs_int={"size": 1}, custom_attrs_float={"size": 1.0})]
    spans += [span(2, custom_attrs_float={"size": 2.5}, custom_attrs_string={"size": "2.5"})]
    run(store.write([*spans, span(3, trace="u", agent_name="ada")]))
    chosen = rows(store, query=parse_query({"$expr": expression}))
    assert [row["span_id"] for row in chosen] == found


_NAMES = (Key("agent_name", alias="a"),)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"measures": [Measure("m", "sum")]}, InvalidRequest, "sum requires a value (measure m)"),
        ({"measures": [Measure("m", "sum", Value("agent_name"))]}, InvalidRequest, "sum cannot be computed for"),
        (
            {"measures": [Measure("m", "count_true", Value("started_at"))]},
            InvalidRequest,
            "for values of type datetime",
        ),
        ({"measures": [Measure("p", "percentile", Value("agent_name"), rank=5)]}, InvalidRequest, "expected number"),
        ({"measures": [Measure("m", "min", Value("nonsense"))]}, InvalidField, "Unknown field: nonsense"),
        ({"measures": [Measure("m", "count", Value("input_messages"))]}, InvalidField, "cannot be used in a query"),
        ({"measures": [Measure("m", "sum", Value("x", "derived"))]}, InvalidField, "Unknown derived value: x"),
        ({"group_by": (Key("started_at", alias="a"),)}, InvalidField, "cannot be grouped by started_at"),
        ({"sort": [Sort("nonsense")]}, InvalidField, "Invalid sort field: nonsense; expected one of a, m"),
        (
            {"having": [GroupFilter(_NAMES, Measure("first", "min", Value("started_at")), 1, None)]},
            InvalidRequest,
            "The bounds of first must have its type, datetime",
        ),
    ],
)
def test_figures_that_mean_nothing_are_refused(
    store: index.AgentSpans, asked: dict[str, Any], error: type[Exception], words: str
) -> None:
    request = SpanAggregate(SpanFilter(PROJECT), group_by=_NAMES, measures=[Measure("m")])
    with pytest.raises(error, match=re.escape(words)):
        run(store.groups(replace(request, **asked)))


def test_ranges_of_what_is_no_number_and_orders_without_a_key_are_refused(store: index.AgentSpans) -> None:
    request = SpanAggregate(SpanFilter(PROJECT), group_by=_NAMES)
    with pytest.raises(InvalidRequest, match="must be a number, got datetime"):
        run(store.by_range(request, Measure("m", "min", Value("started_at")), Ranges(5)))
    with pytest.raises(InvalidField, match="custom_attrs_int requires a key"):
        run(store.page(SpansRequest(SpanFilter(PROJECT), [Sort("custom_attrs_int")])))


def test_ranges_of_one_value_of_none_and_of_the_wrong_order(store: index.AgentSpans) -> None:
    def counts(name: str, ranges: Ranges) -> list[tuple[float, float, Any]]:
        found = run(store.by_range(SpanAggregate(SpanFilter(PROJECT)), Value(name), ranges))
        return [(each.low, each.high, each.values.get("count")) for each in found]

    run(store.write([span(number, input_tokens=5, reasoning_tokens=number) for number in (1, 2, 4)]))
    assert counts("input_tokens", Ranges(9)) == [(5.0, 5.0, 3)]
    assert counts("output_tokens", Ranges(9)) == []
    assert counts("reasoning_tokens", Ranges(9, low=3, high=2)) == []
    assert counts("reasoning_tokens", Ranges(3)) == [(1.0, 2.0, 1), (2.0, 3.0, 1), (3.0, 4.0, 1)]


def test_no_spans_are_written_as_nothing(store: index.AgentSpans) -> None:
    run(store.write([]))
    assert rows(store) == []


def test_every_statement_compiles_for_postgresql() -> None:
    """The statements are collected instead of run, and written in the other dialect."""
    price = PriceRow("p", "m", "default", 5, 1, 2, 3, 4, "USD", "USD", "system", 5)
    prices = [(5, price), (None, price)]
    names = [*TEXTS, *TOKENS, *MORE_TEXTS, *MORE_NUMBERS, "started_at", "duration_ms", "custom_attrs_bool.x"]
    tests: list[Any] = [{"$eq": [{"$getField": name}, {"$literal": 1}]} for name in names]
    tests.append({"$eq": [{"$getField": "size"}, {"$literal": 1.5}]})
    tests.append({"$eq": [{"$getField": "agent_id"}, {"$literal": None}]})
    query = parse_query({"$expr": {"$or": tests}})
    chosen = SpanFilter(PROJECT, 1, 2, query, [Targets(["a"], ["b"], ["c"])])
    keys = (Key("agent_name", alias="a"), Key("n", "custom_attrs_int", "n"))
    value = Value("duration_ms", "derived")
    measure = Measure("m", "sum", value, filter=query)
    filters = [GroupFilter(keys, measure, 1, 2)]
    measures = [Measure(f"n_{name}", "count", Value(name, "derived"), kind) for name, kind in DERIVED.items()]
    measures += [Measure("a", "avg", value), Measure("p", "percentile", value, rank=50)]
    measures += [Measure("l", "list", Value("agent_name")), Measure("t", "total", value)]
    groups = SpanAggregate(chosen, [measure, *measures[-2:]], keys, filters, sort=[Sort("m")], prices=prices)
    stats = SpanAggregate(chosen, measures, keys, within=filters, prices=prices, limit=5)
    spans = SpanAggregate(chosen, measures, within=filters, prices=prices)
    runs = [UniformRun(0, 0, 10, 0, 100), UniformRun(10, 100, 20, 100, 200)]
    work: list[Callable[[index.AgentSpans], Awaitable[Any]]] = [
        lambda store: store.page(SpansRequest(chosen, [Sort(name) for name in names + list(COSTS)], prices=prices)),
        lambda store: store.groups(groups),
        lambda store: store.over_time(stats, runs),
        lambda store: store.by_range(spans, value, Ranges(5)),
        lambda store: store.by_range(groups, measure, Ranges(5)),
        lambda store: store.distributions(chosen, keys[0], ["a", None], Value("n", "custom_attrs_int"), 5, 5),
        lambda store: store.distributions(chosen, keys[0], ["a"], Value("n", "custom_attrs_bool"), 5, 5),
        lambda store: store.attributes(chosen),
        lambda store: store.turns(PROJECT, "c", 1, 2, 3),
        lambda store: store.nodes(PROJECT, ["t"], 1),
        lambda store: store.conversations(chosen, ["c"], 5),
        lambda store: store.ranked(chosen, ["c"], 1, True),
        lambda store: store.newest(chosen, (1, 2), 5),
        lambda store: store.models(chosen),
    ]
    executor = MemoryExecutor()
    seen: list[Any] = []
    sa.event.listen(executor.engine, "before_execute", lambda _c, statement, *_: seen.append(statement))
    store = index.AgentSpans(executor)
    run(store.write([span(1, agent_name="a", custom_attrs_int={"n": 1})]))
    for each in work:
        run(each(store))
    selects = [statement for statement in seen if isinstance(statement, sa.sql.expression.ClauseElement)]
    assert len(selects) >= len(work)
    for statement in selects:
        text = str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        assert "json_each" not in text and "json_group_array" not in text
