"""The SQL of a query against a plain reading of the contract's typing rules (trace-core, section 5)."""

import json
import math
import sqlite3
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.store.query.compiler import Compiler
from heddle.store.sqlite import call_bodies
from heddle.store.sqlite.call_table import SqliteCallTable
from heddle.store.sqlite.names import NameReader
from heddle.wire import jsontext
from heddle.wire.calls import CallsQuery
from heddle.wire.query import parse_query
from tests.support.selection import examples

TEXTS = ["", "a", "abc", "5", "05", "5.0", "5.5", " 7 ", "-3", "true", "false", "x", "é", "[1]", "1e3", "+5", "nan"]
texts = st.sampled_from(TEXTS)
numbers = st.one_of(st.integers(-10, 10), st.sampled_from([0.5, 5.0, -3.0, 5.5, 1e22, 10**18]))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab0"), inner, max_size=2)),
)
documents = st.dictionaries(st.sampled_from(["a", "b", "c.d", "0"]), values, max_size=4)
paths = st.sampled_from(["a", "b", "a.b", "a.0", "0", "c\\.d", "a.1.a", "b.0.0", "zz"])
MISSING = object()


def follow(document: Any, path: str) -> Any:
    """The value at a dotted path: keys first, then list indexes."""
    parts = [part.replace("\0", ".") for part in path.replace("\\.", "\0").split(".")]
    for part in parts:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return MISSING
    return document


def text_of(value: Any) -> str:
    """Any JSON value as the text that comparisons see."""
    if value is MISSING or value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return value if isinstance(value, str) else jsontext.dumps(value) if isinstance(value, (dict, list)) else str(value)


def cast(text: str, like: Any) -> Any:
    """The text read as the type of a constant; None when it cannot be."""
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("+", "-") else stripped
    whole = int(stripped) if digits.isdigit() else None
    if isinstance(like, bool):
        return {"true": 1, "false": 0}.get(text, whole if whole is not None and 0 <= whole <= 255 else None)
    if isinstance(like, int):
        return whole
    if isinstance(like, float):
        try:
            number = float(stripped)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    return text


def compared(op: str, document: Any, path: str, constant: Any) -> bool | None:
    """What the contract says of one comparison of a JSON path with a constant."""
    if constant is None:
        return False if op == "$eq" else None
    value = cast(text_of(follow(document, path)), constant)
    if value is None:
        return None
    result = {
        "$eq": value == constant,
        "$gt": value > constant,
        "$gte": value >= constant,
        "$lt": value < constant,
        "$lte": value <= constant,
    }
    return bool(result[op])


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    raw = sqlite3.connect(":memory:")
    call_bodies.add_functions(raw)
    raw.execute(
        "CREATE TABLE calls (rid INTEGER PRIMARY KEY, project INTEGER, id TEXT, op INTEGER, started_at INTEGER)"
    )
    raw.execute("CREATE TABLE body_in (rid INTEGER PRIMARY KEY, inputs TEXT, attributes TEXT, otel_dump TEXT)")
    raw.execute("INSERT INTO calls VALUES (1, 1, 'c', 1, 0)")
    return raw


def answered(raw: sqlite3.Connection, document: Any, expression: Any, column: str = "inputs") -> bool | None:
    """The condition's value for one call with this document in a column: true, false or unknown."""
    table = SqliteCallTable(CallsQuery("ZS9w"), 1, raw, NameReader())
    sql = Compiler(table.dialect, table.resolve).condition(parse_query({"$expr": expression}))
    held = {"inputs": "{}", "attributes": "{}", "otel_dump": None, column: jsontext.dumps(document)}
    raw.execute("INSERT OR REPLACE INTO body_in VALUES (1, :inputs, :attributes, :otel_dump)", held)
    query = f"SELECT {sql} FROM calls c JOIN body_in bi ON bi.rid = c.rid"
    (value,) = raw.execute(query, table.parameters.given).fetchone()
    return None if value is None else bool(value)


def field(path: str) -> dict[str, str]:
    return {"$getField": f"inputs.{path}"}


quick = settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(documents, paths, st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte"]), scalars)
def test_comparisons_follow_the_typing_rules(
    database: sqlite3.Connection, document: Any, path: str, op: str, constant: Any
) -> None:
    expected = compared(op, document, path, constant)
    assert answered(database, document, {op: [field(path), {"$literal": constant}]}) == expected


@quick
@given(documents, paths, scalars)
def test_not_is_the_opposite_and_unknown_stays_unknown(
    database: sqlite3.Connection, document: Any, path: str, constant: Any
) -> None:
    expected = compared("$eq", document, path, constant)
    inverted = {"$not": [{"$eq": [field(path), {"$literal": constant}]}]}
    assert answered(database, document, inverted) == (None if expected is None else not expected)


@quick
@given(documents, paths, texts, st.booleans())
def test_contains_looks_into_the_text(
    database: sqlite3.Connection, document: Any, path: str, part: str, folded: bool
) -> None:
    if folded and not part.isascii():
        return
    text = text_of(follow(document, path))
    expected = part.lower() in text.lower() if folded else part in text
    expression = {"$contains": {"input": field(path), "substr": {"$literal": part}, "case_insensitive": folded}}
    assert answered(database, document, expression) == expected


@quick
@given(documents, paths, st.lists(texts, max_size=3))
def test_in_a_list_of_texts(database: sqlite3.Connection, document: Any, path: str, listed: list[str]) -> None:
    expression = {"$in": [field(path), [{"$literal": item} for item in listed]]}
    assert answered(database, document, expression) == (text_of(follow(document, path)) in listed)


@quick
@given(documents, paths, st.lists(st.integers(-10, 10), min_size=1, max_size=3))
def test_in_a_list_of_numbers_casts_once(
    database: sqlite3.Connection, document: Any, path: str, listed: list[int]
) -> None:
    value = cast(text_of(follow(document, path)), 1)
    expression = {"$in": [field(path), [{"$literal": item} for item in listed]]}
    assert answered(database, document, expression) == (None if value is None else value in listed)


@quick
@given(documents, paths)
def test_emptiness_is_tested_by_an_empty_text(database: sqlite3.Connection, document: Any, path: str) -> None:
    value = follow(document, path)
    expression = {"$not": [{"$eq": [field(path), {"$literal": ""}]}]}
    assert answered(database, document, expression) == (value is not MISSING and value is not None and value != "")


@pytest.mark.parametrize(
    ("stored", "constant", "expected"),
    [
        (5, 5, True),
        (5, 5.0, True),
        (5, "5", True),
        ("5", 5, True),
        (5.0, "5", True),
        (5.7, 5, None),
        (1e22, "1" + "0" * 22, True),
    ]
    + [(True, "true", True), (True, True, True), ("true", True, True), (None, "", True), ({"k": 1}, '{"k":1}', True)],
)
def test_the_examples_of_the_contract(
    database: sqlite3.Connection, stored: Any, constant: Any, expected: bool | None
) -> None:
    assert answered(database, {"a": stored}, {"$eq": [field("a"), {"$literal": constant}]}) == expected


SPELLED: list[tuple[Any, str, Any]] = [
    ({"a": {"b": {"c": 5}}}, "a.b.c", 5),
    ({"a": {"b.c": 5}}, "a.b.c", 5),
    ({"a.b.c": 5}, "a.b.c", 5),
    ({"a": 1, "a.b": {"x": 1}, "a.b.c": 5}, "a.b.c", 5),
    ({"a": {"b": {"c": None}, "b.c": 5}}, "a.b.c", 5),
    ({"a": {"b": {"c": 4}}, "a.b.c": 5}, "a.b.c", 4),
    ({"m": {"0": {"x.y": "z"}}}, "m.0.x.y", "z"),
    ({"m": [{"x.y": "z"}]}, "m.0.x.y", "z"),
    ({"a.b": True}, "a\\.b", True),
    ({"a": {"b": {"c": 5}}}, "a\\.b.c", None),
    ({"a.b": 5}, "a.c", None),
]
"""Attributes, a path, and the value that a filter sees there."""


@pytest.mark.parametrize(("document", "path", "value"), SPELLED)
def test_attributes_with_dots_in_their_keys(database: sqlite3.Connection, document: Any, path: str, value: Any) -> None:
    for column, prefix in (("attributes", "attributes"), ("otel_dump", "attributes.otel_span")):
        get = {"$getField": f"{prefix}.{path}"}
        missing = {"$eq": [get, {"$literal": ""}]}
        assert answered(database, document, missing, column) is (value is None)
        if value is not None:
            assert answered(database, document, {"$eq": [get, {"$literal": value}]}, column) is True
            assert answered(database, document, {"$eq": [get, {"$literal": 99}]}, column) is not True
        # Elsewhere a key with dots is meant by its escaped name only.
        plain = {"$eq": [{"$getField": f"inputs.{path}"}, {"$literal": ""}]}
        assert answered(database, document, plain) is (text_of(follow(document, path)) == "")


def test_constants_compare_with_constants(database: sqlite3.Connection) -> None:
    assert answered(database, {}, {"$eq": [{"$literal": 1}, {"$literal": 1}]}) is True
    assert answered(database, {}, {"$eq": [{"$literal": 1}, {"$literal": "1"}]}) is None
    assert answered(database, {}, {"$gt": [{"$literal": 2}, {"$literal": 1.5}]}) is True


@pytest.mark.parametrize("path", ["a'b", "a'); DROP TABLE calls; --", 'a"b', "a\\b", "a[0]", "$", "", "a" * 500])
def test_no_path_leaves_its_place_in_the_sql(database: sqlite3.Connection, path: str) -> None:
    document = {path: "here"}
    expression = {"$eq": [{"$getField": "inputs." + path.replace(".", "\\.")}, {"$literal": "nowhere"}]}
    assert answered(database, document, expression) is False
    assert json.loads(database.execute("SELECT inputs FROM body_in").fetchone()[0]) == document


LIKE: dict[str, Any] = {"int": 1, "double": 1.5, "bool": True, "string": "x"}


@quick
@given(document=documents, path=paths, target=st.sampled_from([*LIKE]), number=st.sampled_from([-3, 0, 1, 5]))
def test_a_value_is_converted_as_comparisons_read_it(
    database: sqlite3.Connection, document: Any, path: str, target: str, number: int
) -> None:
    constant: Any = str(number) if target == "string" else float(number) if target == "double" else number
    expression = {"$eq": [{"$convert": {"input": field(path), "to": target}}, {"$literal": constant}]}
    value = cast(text_of(follow(document, path)), LIKE[target])
    assert answered(database, document, expression) is (None if value is None else value == constant)


@pytest.mark.parametrize(
    ("given_value", "target", "converted"),
    [
        (True, "string", "true"),
        (2.0, "string", "2"),
        (2.5, "string", "2.5"),
        ("7", "int", 7),
        ("x", "int", None),
        ("2.5", "double", 2.5),
        ("false", "bool", 0),
        ("true", "bool", 1),
        (1, "bool", 1),
        (None, "int", None),
        (None, "exists", 0),
        ("", "exists", 1),
    ],
)
def test_a_constant_is_converted(database: sqlite3.Connection, given_value: Any, target: str, converted: Any) -> None:
    operand = {"$convert": {"input": {"$literal": given_value}, "to": target}}
    assert answered(database, {}, {"$eq": [operand, {"$literal": converted}]}) is True


@pytest.mark.parametrize(
    ("column", "target", "constant"),
    [("id", "string", "c"), ("started_at", "exists", 1), ("inputs.a", "exists", 1)],
)
def test_a_column_is_converted(database: sqlite3.Connection, column: str, target: str, constant: Any) -> None:
    operand = {"$convert": {"input": {"$getField": column}, "to": target}}
    assert answered(database, {}, {"$eq": [operand, {"$literal": constant}]}) is True


def test_numbers_are_not_looked_for_in_texts(database: sqlite3.Connection) -> None:
    for substring in ({"$literal": 5}, {"$convert": {"input": field("a"), "to": "int"}}):
        with pytest.raises(InvalidRequest, match=r"the substr of \$contains must be a string"):
            answered(database, {"a": "55"}, {"$contains": {"input": field("a"), "substr": substring}})
    assert answered(database, {"a": "55"}, {"$contains": {"input": field("a"), "substr": {"$literal": "5"}}}) is True


def test_alternatives_of_alternatives_are_one_list_of_any_length(database: sqlite3.Connection) -> None:
    for count in (1, 8, 9, 70):
        alternatives = [{"$eq": [field("a"), {"$literal": str(number)}]} for number in range(count)]
        for value in (0, count - 1, count):
            expected = value < count
            assert answered(database, {"a": value}, {"$or": [{"$or": alternatives}]}) is expected
            assert answered(database, {"a": value}, {"$not": [{"$or": alternatives}]}) is not expected


STARTED, EPOCH = {"$getField": "started_at"}, "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"$eq": [STARTED, {"$literal": EPOCH}]}, True),
        ({"$eq": [STARTED, {"$literal": 0}]}, True),
        ({"$gt": [STARTED, {"$literal": "1969-12-31T23:59:59Z"}]}, True),
        ({"$lt": [STARTED, {"$literal": -0.5}]}, False),
        ({"$eq": [STARTED, {"$literal": "no instant"}]}, False),
        ({"$gt": [STARTED, {"$literal": "no instant"}]}, None),
        ({"$eq": [STARTED, {"$literal": True}]}, False),
        ({"$in": [STARTED, [{"$literal": 5}, {"$literal": EPOCH}]]}, True),
        ({"$in": [STARTED, [{"$literal": "no instant"}]]}, False),
        ({"$eq": [{"$size": {"$literal": "abc"}}, {"$literal": 3}]}, True),
        ({"$eq": [{"$size": {"$literal": 5}}, {"$literal": 1}]}, None),
        ({"$eq": [{"$size": {"$getField": "id"}}, {"$literal": 1}]}, True),
        ({"$eq": [{"$size": STARTED}, {"$literal": 1}]}, None),
        ({"$in": [field("a"), [field("b"), {"$literal": "x"}]]}, True),
        ({"$in": [field("a"), [field("c"), {"$literal": "x"}]]}, False),
        ({"$in": [field("a"), [field("c"), {"$literal": "1"}]]}, True),
        ({"$and": [field("a"), {"$size": field("a")}]}, True),
        ({"$or": [field("zz"), {"$size": field("zz")}, STARTED, {"$literal": ""}, {"$literal": 0}]}, False),
        ({"$and": [{"$literal": "x"}, {"$literal": 2}]}, True),
        ({"$or": [{"$literal": None}]}, False),
        ({"$not": [{"$not": [{"$eq": [field("a"), {"$literal": "1"}]}]}]}, True),
        ({"$not": [{"$not": [{"$eq": [field("a"), {"$literal": "2"}]}]}]}, False),
    ],
)
def test_instants_sizes_lists_and_double_negation(
    database: sqlite3.Connection, expression: Any, expected: bool | None
) -> None:
    assert answered(database, {"a": "1", "b": "1", "c": "2"}, expression) == expected


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 100])
def test_many_conditions_are_one(database: sqlite3.Connection, count: int) -> None:
    wrong, right = ({"$eq": [field("a"), {"$literal": text}]} for text in ("2", "1"))
    for place in range(count):
        some = [right if number == place else wrong for number in range(count)]
        others = [wrong if number == place else right for number in range(count)]
        assert answered(database, {"a": "1"}, {"$or": some}) is True
        assert answered(database, {"a": "1"}, {"$and": others}) is False
