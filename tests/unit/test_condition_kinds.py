"""Conditions over every kind of field, in SQLite: lists, maps, refs, instants, numbers, texts, and JSON or none."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.store.query.compiler import Compiler, JsonValue, Kind, Value, conjuncts_of
from heddle.store.query.sqlite import Parameters, SqliteDialect, path_literals, read
from heddle.store.sqlite.database import open_scratch
from heddle.wire import jsontext
from heddle.wire.query import And, Compare, Field, Literal, Operand, Or, Scalar, Search, parse_query

ROW: dict[str, Any] = {
    "name": "É",
    "other": "é",
    "unset": None,
    "number": 2.5,
    "whole": 5.0,
    "at": 1_500_000,
    "never": None,
    "tags": ["a", "Éa"],
    "no_tags": [],
    "ratings": {"good": 0.5},
    "no_ratings": {},
    "payload": {"a": "1", "d": "1.5", "e": [], "flag": True},
    "refs": ["r1", "r2"],
    "label": "x",
}


@dataclass(frozen=True)
class Refs:
    """Members of a list of refs, whose own SQL says nothing; of texts in any case only what contains them."""

    dialect: SqliteDialect

    def equals(self, constants: Sequence[Scalar]) -> str | None:
        texts = [constant for constant in constants if isinstance(constant, str)]
        test = f"value IN {self.dialect.bound.values(texts)}" if texts else "0"
        return f"EXISTS (SELECT 1 FROM json_each(t.refs) WHERE {test})"

    def contains(self, text: Scalar, folded: bool) -> str | None:
        return None if folded else self.equals([text])

    def missing(self) -> str | None:
        return "(json_array_length(t.refs) = 0)"


class Plain:
    """Members that leave every test to the field itself."""

    def equals(self, _constants: Sequence[Scalar]) -> str | None:
        return None

    def contains(self, _text: Scalar, _folded: bool) -> str | None:
        return None

    def missing(self) -> str | None:
        return None


class Fields:
    """What the paths of the queries below mean."""

    def __init__(self) -> None:
        self.dialect = SqliteDialect(Parameters())
        self.plain = {
            **dict.fromkeys(("name", "other", "unset"), Kind.TEXT),
            **dict.fromkeys(("number", "whole"), Kind.NUMBER),
            **dict.fromkeys(("at", "never"), Kind.INSTANT),
        }
        self.structures = {
            **dict.fromkeys(("tags", "no_tags"), Kind.TEXTS),
            **dict.fromkeys(("ratings", "no_ratings"), Kind.NUMBER_MAP),
        }

    def resolve(self, path: str) -> Value:
        head, _, tail = path.partition(".")
        parts = tuple(tail.split(".")) if tail else ()
        if head in self.plain:
            return Value(self.plain[head], f"t.{head}")
        if head in self.structures:
            return Value(self.structures[head], f"t.{head}", JsonValue(self.dialect, f"t.{head}"))
        if head == "payload":
            return Value(Kind.JSON, json=JsonValue(self.dialect, "t.payload", parts))
        if head == "referenced":
            found = "(SELECT t.payload WHERE t.unset IS NOT NULL)"
            return Value(Kind.JSON, json=JsonValue(self.dialect, found, parts, nullable=True))
        if head == "refs":
            return Value(Kind.REFS, "NULL", members=Refs(self.dialect))
        return Value(Kind.TEXT, "t.label", members=Plain())


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    session = open_scratch()
    raw = session.raw
    stored = {name: jsontext.dumps(value) if isinstance(value, list | dict) else value for name, value in ROW.items()}
    raw.execute(f"CREATE TABLE t ({', '.join(stored)})")
    raw.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(stored))})", tuple(stored.values()))
    yield raw
    session.close()


def answered(raw: sqlite3.Connection, expression: Any, null_equals: bool = True) -> bool | None:
    """What the condition says of the one row: true, false or unknown."""
    fields = Fields()
    compiler = Compiler(fields.dialect, fields.resolve, null_equals)
    sql = compiler.condition(parse_query({"$expr": expression}))
    assert isinstance(fields.dialect.bound, Parameters)
    (value,) = raw.execute(f"SELECT {sql} FROM t", fields.dialect.bound.given).fetchone()
    return None if value is None else bool(value)


def get(path: str) -> dict[str, str]:
    return {"$getField": path}


def eq(left: Any, right: Any) -> Any:
    return {"$eq": [left if isinstance(left, dict) else {"$literal": left}, operand(right)]}


def operand(value: Any) -> Any:
    return value if isinstance(value, dict) else {"$literal": value}


def within(left: Any, *items: Any) -> Any:
    return {"$in": [left, [operand(item) for item in items]]}


def contains(whole: Any, part: Any, folded: bool = False) -> Any:
    return {"$contains": {"input": whole, "substr": operand(part), "case_insensitive": folded}}


def convert(value: Any, target: str) -> Any:
    return {"$convert": {"input": operand(value), "to": target}}


def size(value: Any) -> Any:
    return {"$size": value}


TRUTHS = [
    (get("tags"), True),
    (get("no_tags"), False),
    (get("ratings"), True),
    (get("no_ratings"), False),
    (get("name"), True),
    (get("unset"), False),
    (get("number"), True),
    (get("never"), False),
    (get("payload.a"), True),
    (get("payload.zz"), False),
]
COMPARISONS = [
    *[(eq(get("tags"), value), None) for value in ("a", '["a","Éa"]', 1)],
    ({"$gt": [get("tags"), operand("a")]}, None),
    ({"$gt": [get("payload.flag"), operand("a")]}, True),
    ({"$lt": [get("payload.flag"), operand("u")]}, True),
    ({"$gt": [operand("a"), get("payload.flag")]}, False),
    ({"$lt": [get("payload.d"), operand("a")]}, True),
    (eq(get("name"), 5), None),
    (eq(get("number"), "2.5"), None),
    (eq(get("number"), 2.5), True),
    (eq(get("whole"), 2**70), False),
    ({"$lt": [get("whole"), operand(2**70)]}, True),
    ({"$gt": [get("number"), operand(True)]}, True),
    ({"$lte": [get("number"), get("whole")]}, True),
    ({"$gte": [get("number"), get("whole")]}, False),
    (eq(get("name"), get("other")), False),
    ({"$lt": [get("name"), get("other")]}, True),
    (eq(get("at"), 1.5), True),
    (eq("1970-01-01T00:00:01.5Z", get("at")), True),
    (eq(get("at"), "1970-01-01T00:00:01Z"), False),
    ({"$lt": [get("at"), operand(1e300)]}, True),
    ({"$gt": [get("at"), operand(-1e300)]}, True),
    (eq(get("at"), get("tags")), False),
    ({"$gt": [get("at"), get("tags")]}, None),
    (eq(get("never"), "no instant"), None),
    (eq(get("refs"), "r2"), True),
    (eq(get("refs"), "r3"), False),
    ({"$gt": [get("refs"), operand("r1")]}, None),
    (eq(get("refs"), get("name")), None),
    (eq(get("label"), "x"), True),
    (eq(get("label"), "y"), False),
]
NULLS = [
    (get("name"), False, None),
    (get("unset"), True, None),
    (get("at"), False, None),
    (get("never"), True, None),
    (get("refs"), False, False),
    (get("label"), False, None),
]
LISTED = [
    (within(get("refs"), "r3", "r1"), True),
    (within(get("refs"), "r3", 1), False),
    (within(get("label"), "y", "x"), True),
    (within(get("tags"), "a"), False),
    (within(get("name"), None), False),
    (within(get("unset"), None), None),
    (within(get("unset"), "a"), None),
    (within(get("name"), None, 1, "É"), True),
    (within(get("name"), None, 1, "e"), False),
    (within(get("number"), "2.5", 2.5), True),
    (within(get("number"), "2.5"), False),
    (within(get("at"), "no instant", 1.5), True),
    (within(get("at"), get("number"), get("at")), True),
    (within(get("name"), get("other")), False),
    (within(get("name"), get("other"), get("name")), True),
    (within(get("whole"), True, 5), True),
    (within(get("payload.a"), 1, 2), True),
    (within(get("payload.d"), 1, 1.5), True),
    (within(get("payload.a"), 1, get("number")), False),
    (within(get("payload.a"), "1", get("number")), True),
]
CONTAINED = [
    (contains(get("tags"), "a"), True),
    (contains(get("tags"), "É"), False),
    (contains(get("tags"), "éA", True), True),
    (contains(get("tags"), "éA"), False),
    (contains(get("tags"), get("payload.a")), False),
    (contains(get("tags"), get("at")), False),
    (contains(get("ratings"), "good"), False),
    (contains(get("refs"), "r1"), True),
    (contains(get("refs"), "r"), False),
    (contains(get("refs"), "r1", True), False),
    (contains(get("label"), "x"), True),
    (contains(get("label"), "X", True), True),
    (contains(get("name"), None), False),
    (contains(get("at"), "1"), False),
    (contains(get("name"), "é"), False),
    (contains(get("name"), "é", True), True),
    (contains(get("name"), get("other"), True), True),
    (contains(get("name"), get("other")), False),
    (contains(get("unset"), "a"), False),
]
CONVERTED = [
    (eq(convert(get("number"), "string"), "2.5"), True),
    (eq(convert(get("whole"), "string"), "5"), True),
    (eq(convert(get("at"), "string"), "1970-01-01T00:00:01.500000Z"), True),
    (eq(convert(get("number"), "int"), 2), None),
    (eq(convert(get("whole"), "int"), 5), True),
    (eq(convert(get("number"), "double"), 2.5), True),
    (eq(convert(get("whole"), "bool"), 5), True),
    (eq(convert(get("payload.d"), "double"), 1.5), True),
    (eq(convert(get("payload.d"), "int"), 1), None),
    (eq(convert(get("payload.flag"), "bool"), True), True),
    (eq(convert(get("payload.a"), "string"), "1"), True),
    (eq(convert(convert(get("payload.a"), "string"), "int"), 1), True),
    (eq(convert(get("name"), "int"), 1), None),
    *[(eq(convert(get(path), "exists"), 1), True) for path in ("name", "tags", "payload.zz", "at")],
    *[(eq(convert(get(path), "exists"), 0), True) for path in ("unset", "never", "referenced", "referenced.a")],
    (eq(convert({"$eq": [get("name"), get("name")]}, "string"), "1"), True),
]
SIZES = [
    (eq(size(get("tags")), 2), True),
    (eq(size(get("no_tags")), 0), True),
    (eq(size(get("ratings")), 1), True),
    (eq(size(get("payload")), 4), True),
    (eq(size(get("payload.e")), 0), True),
    (eq(size(get("name")), 1), True),
    (eq(size(get("number")), 1), None),
    (eq(size(get("unset")), 0), None),
]


@pytest.mark.parametrize(("expression", "expected"), TRUTHS)
def test_a_bare_field_is_true_when_it_holds_something(
    database: sqlite3.Connection, expression: Any, expected: bool
) -> None:
    assert answered(database, {"$and": [expression]}) is expected
    assert answered(database, {"$not": [expression]}) is not expected


@pytest.mark.parametrize(("expression", "expected"), [*COMPARISONS, *LISTED, *CONTAINED, *CONVERTED, *SIZES])
def test_every_kind_answers_every_test(database: sqlite3.Connection, expression: Any, expected: bool | None) -> None:
    assert answered(database, expression) is expected
    assert answered(database, expression, null_equals=False) is expected


@pytest.mark.parametrize(("field", "equal", "without"), NULLS)
def test_what_is_equal_to_null_lacks_a_value_where_that_is_asked_for(
    database: sqlite3.Connection, field: Any, equal: bool, without: bool | None
) -> None:
    """`without`: the answer of a table where null equals nothing; members answer all the same."""
    assert answered(database, eq(field, None)) is equal
    assert answered(database, eq(field, None), null_equals=False) is without
    assert answered(database, {"$gt": [field, operand(None)]}) is None
    assert answered(database, eq(None, field)) is None


def test_a_value_behind_a_ref_that_leads_nowhere_is_unknown(database: sqlite3.Connection) -> None:
    for constant in ("1", 1, 1.5, True, ""):
        assert answered(database, eq(get("referenced.a"), constant)) is None
    assert answered(database, eq(get("referenced.a"), None)) is True


def test_numbers_are_not_looked_for_in_lists(database: sqlite3.Connection) -> None:
    with pytest.raises(InvalidRequest, match="a string, not a number"):
        answered(database, contains(get("tags"), get("number")))


def test_a_table_without_an_index_of_texts_is_not_searched() -> None:
    fields = Fields()
    search = Search("words")
    with pytest.raises(InvalidRequest, match="Only calls can be searched"):
        Compiler(fields.dialect, fields.resolve).condition(search)
    assert Compiler(fields.dialect, fields.resolve, search=lambda each: each.text).condition(search) == "words"


def test_the_conditions_that_must_all_hold() -> None:
    a, b, c = (Compare("eq", Field(name), Literal(1)) for name in "abc")
    cases: list[tuple[Operand, list[Operand]]] = [
        (And((a, And((b, c)))), [a, b, c]),
        (Or((a, And((b, c)))), [Or((a, And((b, c))))]),
        (a, [a]),
    ]
    for operation, wanted in cases:
        assert list(conjuncts_of(operation)) == wanted


def test_a_number_in_a_path_is_an_index_or_a_key_the_first_three_times() -> None:
    assert path_literals(("a", "1")) == ["'$.\"a\"[1]'", '\'$."a"."1"\'']
    assert len(path_literals(("0",) * 3)) == len(path_literals(("0",) * 40)) == 8
    assert path_literals(("123456789",)) == ["'$[123456789]'", "'$.\"123456789\"'"]
    assert path_literals(("1234567890",)) == ["'$.\"1234567890\"'"]
    assert path_literals(("²",)) == ["'$.\"²\"'"]


@pytest.mark.parametrize(
    ("key", "is_found"),
    [("a'b", True), ('a"b', True), ("a\\b", True), ("a.b", True), ('a".b', False), ("a\\[0]", False), ("a\0b", False)],
)
def test_keys_that_sqlite_cannot_write_are_missing(key: str, is_found: bool) -> None:
    raw = sqlite3.connect(":memory:")
    document = jsontext.dumps({key: 5})
    wanted = {"text": "5", "integer": 5, "exists": 1, "present": 1, "scalar": 5, "fragment": "5", "word": 5}
    missing = {"text": "", "integer": None, "exists": 0, "present": 0, "scalar": None, "fragment": None, "word": ""}
    for reading, value in (wanted if is_found else missing).items():
        found = raw.execute(f"SELECT {read(':document', (key,), reading)}", {"document": document}).fetchone()[0]
        assert found == value, reading


def test_a_count_becomes_a_floating_point_number() -> None:
    sql = SqliteDialect(Parameters()).as_double("7")
    assert sqlite3.connect(":memory:").execute(f"SELECT typeof({sql}), {sql}").fetchone() == ("real", 7.0)
