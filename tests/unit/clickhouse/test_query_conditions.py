"""ClickHouse's SQL of a query against a plain reading of the contract's typing rules (trace-core, section 5)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.store.clickhouse.call_table import ClickhouseCallTable
from heddle.store.clickhouse.client import Bound, Clickhouse, rows_of
from heddle.store.query.compiler import Compiler
from heddle.wire import jsontext
from heddle.wire.calls import CallsQuery
from heddle.wire.query import parse_query
from tests.support.clickhouse import MISSING
from tests.support.selection import examples
from tests.support.two_stores import clickhouse_process
from tests.unit.test_conditions import SPELLED, cast, compared, documents, field, follow, paths, scalars, text_of, texts

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")
Answered = Callable[[Any, Any], bool | None]
quick = settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def answered() -> Iterator[Answered]:
    """The condition's value for a call with the inputs: true, false or unknown."""
    clickhouse = Clickhouse(clickhouse_process().new_database(), 1, 30)

    def answer(document: Any, expression: Any) -> bool | None:
        bound = Bound()
        table = ClickhouseCallTable(CallsQuery("ZS9w"), bound)
        condition = Compiler(table.dialect, table.resolve).condition(parse_query({"$expr": expression}))
        text = bound.value(jsontext.dumps(document))
        source = f"(SELECT {text} AS inputs, {text} AS attributes, {text} AS otel_dump) AS c"
        sql = f"{bound.with_clause()}SELECT {condition} FROM {source}"
        ((value,),) = clickhouse.run(lambda client: rows_of(client, sql, bound.parameters))
        return None if value is None else bool(value)

    yield answer
    clickhouse.close()


@quick
@given(documents, paths, st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte"]), scalars, st.booleans())
def test_comparisons_follow_the_typing_rules(
    answered: Answered, document: Any, path: str, op: str, constant: Any, negated: bool
) -> None:
    expected = compared(op, document, path, constant)
    expression = {op: [field(path), {"$literal": constant}]}
    assert answered(document, expression) == expected
    if negated:
        assert answered(document, {"$not": [expression]}) == (None if expected is None else not expected)


@quick
@given(documents, paths, texts, st.booleans())
def test_contains_looks_into_the_text(answered: Answered, document: Any, path: str, part: str, folded: bool) -> None:
    text = text_of(follow(document, path))
    expected = part.lower() in text.lower() if folded else part in text
    expression = {"$contains": {"input": field(path), "substr": {"$literal": part}, "case_insensitive": folded}}
    assert answered(document, expression) == expected


@quick
@given(documents, paths, st.one_of(st.lists(texts, max_size=3), st.lists(st.integers(-10, 10), min_size=1, max_size=3)))
def test_membership_casts_once(answered: Answered, document: Any, path: str, listed: list[Any]) -> None:
    text = text_of(follow(document, path))
    value = cast(text, 1) if listed and isinstance(listed[0], int) else text
    expression = {"$in": [field(path), [{"$literal": item} for item in listed]]}
    assert answered(document, expression) == (None if value is None else value in listed)


@pytest.mark.parametrize(("document", "path", "value"), SPELLED)
def test_attributes_with_dots_in_their_keys(answered: Answered, document: Any, path: str, value: Any) -> None:
    for prefix in ("attributes", "attributes.otel_span"):
        get = {"$getField": f"{prefix}.{path}"}
        assert answered(document, {"$eq": [get, {"$literal": ""}]}) is (value is None)
        if value is not None:
            assert answered(document, {"$eq": [get, {"$literal": value}]}) is True
            assert answered(document, {"$eq": [get, {"$literal": 99}]}) is not True


@pytest.mark.parametrize(
    "path", ["a'b", "a'); DROP TABLE calls; --", 'a"b', "a\\b", "a[0]", "{p0:String}", "$", "", "\n\t'"]
)
@pytest.mark.parametrize("constant", ["here", "'); DROP TABLE calls; --", "\\", "{p0:String}", "\n\t\r\0 ☃", "\\N"])
def test_no_path_or_constant_leaves_its_place(answered: Answered, path: str, constant: str) -> None:
    name = {"$getField": "inputs." + path.replace("\\", "\\\\").replace(".", "\\.")}
    for length in (1, 4000):
        text = f"x{constant}" * length
        found = answered({path.replace("\\", "\\\\"): text}, {"$eq": [name, {"$literal": text}]})
        assert found is True
        assert answered({path: text}, {"$eq": [name, {"$literal": f"{text}."}]}) is False


def test_constants_compare_with_constants(answered: Answered) -> None:
    assert answered({}, {"$eq": [{"$literal": 1}, {"$literal": 1}]}) is True
    assert answered({}, {"$eq": [{"$literal": 1}, {"$literal": "1"}]}) is None
    assert answered({}, {"$gt": [{"$literal": 2}, {"$literal": 1.5}]}) is True


NUMBERS = [2.0, -0.0, 1e16, 1.5e18, 2.5e-6, 1e-5, 1.25e300, 12345678901234567890, -(10**30), 0.1, 10**18, 0, -7, 1e22]
IN_TEXTS = ['"2.0"', "[2.0,1e5]", ":1e-5,", "\\,3.0", 'x",-4.0"', "[12345678901234567890123]"]


@pytest.mark.parametrize("path", ["a", "a.1", "a.1.k"])
def test_containers_are_read_as_they_were_written(answered: Answered, path: str) -> None:
    document = {"a": [NUMBERS, {"k": [*NUMBERS, *IN_TEXTS, {"2.0": NUMBERS, ",1e5": 1.0}]}, *IN_TEXTS]}
    text = text_of(follow(document, path))
    assert answered(document, {"$eq": [field(path), {"$literal": text}]}) is True
    assert answered(document, {"$eq": [field(path), {"$literal": text.replace("2.0", "2")}]}) is False
