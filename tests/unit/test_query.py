"""The query language's parser: what is refused, where, and what becomes of what is accepted."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import HeddleError, InvalidField, InvalidRequest, ValidationFailed
from heddle.store.query.sqlite import Parameters
from heddle.wire import query
from heddle.wire.call_fields import FieldKind, resolve_field
from heddle.wire.query import And, Compare, Contains, Convert, Field, In, Literal, Not, Or, parse_query, split_path

ONE = {"$literal": 1}
NOT = ["body", "query", "$expr", "$not", 0]
CONTAINS = ["body", "query", "$expr", "$contains"]
SEARCH = ["body", "query", "$expr", "$search"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=10)
)
paths = st.text(max_size=20)
leaves = st.one_of(scalars.map(lambda value: {"$literal": value}), paths.map(lambda path: {"$getField": path}))


def operations(operands: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One level of operations over operands, as wire JSON."""
    pair = st.lists(operands, min_size=2, max_size=2)
    return st.one_of(
        st.sampled_from(["$and", "$or"]).flatmap(
            lambda name: st.lists(operands, min_size=1, max_size=3).map(lambda items: {name: items})
        ),
        operands.map(lambda item: {"$not": [item]}),
        st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte"]).flatmap(
            lambda name: pair.map(lambda items: {name: items})
        ),
        st.tuples(operands, st.lists(operands, max_size=3)).map(lambda pair: {"$in": [pair[0], pair[1]]}),
        st.tuples(operands, operands, st.booleans()).map(
            lambda items: {"$contains": {"input": items[0], "substr": items[1], "case_insensitive": items[2]}}
        ),
    )


def _conversions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    targets = st.sampled_from(["double", "string", "int", "bool", "exists"])
    return st.tuples(inner, targets).map(lambda pair: {"$convert": {"input": pair[0], "to": pair[1]}})


trees = operations(st.recursive(leaves, lambda inner: st.one_of(operations(inner), _conversions(inner)), max_leaves=8))


def written(node: query.Operand) -> Any:
    """A typed node back on the wire."""
    match node:
        case Literal(value):
            return {"$literal": value}
        case Field(path):
            return {"$getField": path}
        case Convert(inner, target):
            return {"$convert": {"input": written(inner), "to": target}}
        case And(operands):
            return {"$and": [written(item) for item in operands]}
        case Or(operands):
            return {"$or": [written(item) for item in operands]}
        case Not(inner):
            return {"$not": [written(inner)]}
        case Compare(op, left, right):
            return {f"${op}": [written(left), written(right)]}
        case In(left, items):
            return {"$in": [written(left), [written(item) for item in items]]}
        case Contains(inner, substr, folded):
            return {"$contains": {"input": written(inner), "substr": written(substr), "case_insensitive": folded}}


@given(trees)
def test_a_parsed_query_says_what_was_written(tree: Any) -> None:
    assert written(parse_query({"$expr": tree})) == tree


@given(
    st.recursive(
        st.one_of(scalars, st.just({})),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        max_leaves=20,
    )
)
def test_anything_else_is_refused_with_a_client_error(value: Any) -> None:
    try:
        parse_query(value)
    except HeddleError as error:
        assert error.status in (400, 422)


@pytest.mark.parametrize(
    ("value", "error", "place"),
    [
        ({"$expr": {"$getField": "id"}}, ValidationFailed, ["body", "query", "$expr"]),
        (
            {"$expr": {"$convert": {"input": {"$literal": 1}, "to": "int"}}},
            ValidationFailed,
            ["body", "query", "$expr"],
        ),
        ({}, ValidationFailed, ["body", "query", "$expr"]),
        ({"$expr": {"$nope": []}}, ValidationFailed, ["body", "query", "$expr", "$nope"]),
        ({"$expr": {"$eq": [{"$literal": 1}]}}, ValidationFailed, ["body", "query", "$expr", "$eq"]),
        ({"$expr": {"$eq": [{"$literal": 1}, 2]}}, ValidationFailed, ["body", "query", "$expr", "$eq", 1]),
        ({"$expr": {"$not": [{"$literal": 1}, {"$literal": 1}]}}, ValidationFailed, ["body", "query", "$expr", "$not"]),
        ([], ValidationFailed, ["body", "query", "$expr"]),
        ({"$expr": {"$and": {}}}, ValidationFailed, ["body", "query", "$expr", "$and"]),
        ({"$expr": {"$and": [{}]}}, ValidationFailed, ["body", "query", "$expr", "$and", 0]),
        (
            {"$expr": {"$eq": [{"$getField": 1}, ONE]}},
            ValidationFailed,
            ["body", "query", "$expr", "$eq", 0, "$getField"],
        ),
        ({"$expr": {"$in": [ONE]}}, ValidationFailed, ["body", "query", "$expr", "$in"]),
        ({"$expr": {"$in": {"0": ONE, "1": [ONE]}}}, ValidationFailed, ["body", "query", "$expr", "$in"]),
        ({"$expr": {"$in": [1, [ONE]]}}, ValidationFailed, ["body", "query", "$expr", "$in", 0]),
        ({"$expr": {"$in": [ONE, ONE]}}, ValidationFailed, ["body", "query", "$expr", "$in", 1]),
        ({"$expr": {"$in": [ONE, [2]]}}, ValidationFailed, ["body", "query", "$expr", "$in", 1, 0]),
        ({"$expr": {"$not": [{"$convert": 1}]}}, ValidationFailed, [*NOT, "$convert", "input"]),
        ({"$expr": {"$not": [{"$convert": {"input": ONE}}]}}, ValidationFailed, [*NOT, "$convert", "to"]),
        ({"$expr": {"$not": [{"$convert": {"input": 1, "to": "int"}}]}}, ValidationFailed, [*NOT, "$convert", "input"]),
        ({"$expr": {"$not": [{"$convert": {"input": ONE, "to": "date"}}]}}, ValidationFailed, [*NOT, "$convert", "to"]),
        ({"$expr": {"$not": [{"$size": 1}]}}, ValidationFailed, [*NOT, "$size"]),
        ({"$expr": {"$contains": {"input": ONE}}}, ValidationFailed, [*CONTAINS, "substr"]),
        ({"$expr": {"$contains": {"input": 1, "substr": ONE}}}, ValidationFailed, [*CONTAINS, "input"]),
        ({"$expr": {"$contains": {"input": ONE, "substr": 1}}}, ValidationFailed, [*CONTAINS, "substr"]),
        (
            {"$expr": {"$contains": {"input": ONE, "substr": ONE, "case_insensitive": 1}}},
            ValidationFailed,
            [*CONTAINS, "case_insensitive"],
        ),
        ({"$expr": {"$search": "text"}}, ValidationFailed, [*SEARCH, "text"]),
        ({"$expr": {"$search": {"text": 1}}}, ValidationFailed, [*SEARCH, "text"]),
        ({"$expr": {"$search": {"text": "a", "any_of_trace": None}}}, ValidationFailed, [*SEARCH, "any_of_trace"]),
        ({"$expr": {"$search": {"text": ""}}}, InvalidRequest, None),
        ({"$expr": {"$and": []}}, InvalidRequest, None),
        ({"$expr": {"$or": []}}, InvalidRequest, None),
        ({"$expr": {"$eq": [{"$literal": {}}, {"$literal": 1}]}}, InvalidRequest, None),
    ],
)
def test_what_is_wrong_is_named_by_its_place(value: Any, error: type[HeddleError], place: list[Any] | None) -> None:
    with pytest.raises(error) as caught:
        parse_query(value)
    if place is not None:
        assert isinstance(caught.value, ValidationFailed)
        assert caught.value.detail[0]["loc"] == place


def test_a_query_that_is_nested_too_deep_is_refused() -> None:
    tree: Any = {"$eq": [{"$literal": 1}, {"$literal": 1}]}
    for _ in range(query.MAX_NESTING - 1):
        tree = {"$not": [tree]}
    parse_query({"$expr": tree})
    with pytest.raises(InvalidRequest, match="nested deeper"):
        parse_query({"$expr": {"$not": [tree]}})


def test_a_query_that_is_too_large_is_refused() -> None:
    def listed(count: int) -> Any:
        return {"$expr": {"$in": [{"$getField": "id"}, [ONE] * count]}}

    parse_query(listed(query.MAX_LITERALS))
    with pytest.raises(InvalidRequest, match=f"at most {query.MAX_LITERALS} literals, got"):
        parse_query(listed(query.MAX_LITERALS + 1))
    many = {"$expr": {"$and": [{"$eq": [ONE, ONE]}] * (query.MAX_OPERATIONS - 1)}}
    parse_query(many)
    many["$expr"]["$and"] = [{"$eq": [ONE, ONE]}] * query.MAX_OPERATIONS
    with pytest.raises(InvalidRequest, match=f"this one has {query.MAX_OPERATIONS + 1}"):
        parse_query(many)


def test_searches_and_what_is_read_are_found() -> None:
    inner = {"$contains": {"input": {"$convert": {"input": {"$getField": "a"}, "to": "string"}}, "substr": ONE}}
    found = parse_query({"$expr": {"$or": [inner, {"$not": [{"$search": {"text": "x y", "any_of_trace": True}}]}]}})
    assert list(query.fields(found)) == ["a"]
    assert list(query.searches(found)) == [query.Search("x y", True)]
    assert parse_query(found) is found
    sized = parse_query({"$expr": {"$gt": [{"$size": {"$getField": "b"}}, ONE]}})
    assert sized == Compare("gt", query.Size(Field("b")), Literal(1))
    nothing = parse_query({"$expr": {"$contains": {"input": ONE, "substr": ONE, "case_insensitive": None}}})
    assert nothing == Contains(Literal(1), Literal(1), False)


def test_what_a_query_leaves_out_is_false() -> None:
    assert parse_query({"$expr": {"$search": {"text": "x"}}}) == query.Search("x", False)
    assert parse_query({"$expr": {"$contains": {"input": ONE, "substr": ONE}}}) == Contains(
        Literal(1), Literal(1), False
    )


def test_stored_queries_lose_the_names_of_classes() -> None:
    names = {"_type": "Query", "_class_name": "Query", "_bases": ["BaseModel"]}
    stored = {**names, "$expr": {**names, "$in": [{**names, "$getField": "id"}, [{**names, "$literal": 1}]]}}
    assert query.parse_stored(stored) == In(Field("id"), (Literal(1),))
    with pytest.raises(ValidationFailed):
        parse_query(stored)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (query.MAX_INTEGER, query.MAX_INTEGER),
        (-query.MAX_INTEGER, -query.MAX_INTEGER),
        (query.MAX_INTEGER + 1, float(query.MAX_INTEGER + 1)),
        (10**400, 1e300),
        (-(10**400), -1e300),
        (1.5, 1.5),
    ],
)
def test_numbers_are_bound(value: float, bound: float) -> None:
    assert query.bound_number(value) == bound and type(query.bound_number(value)) is type(bound)


@given(st.lists(st.text(st.characters(blacklist_characters="\\")), min_size=1))
def test_an_escaped_dot_stays_inside_its_part(parts: list[str]) -> None:
    assert split_path(".".join(part.replace(".", "\\.") for part in parts)) == parts


@pytest.mark.parametrize(
    ("path", "kind", "column", "rest"),
    [
        ("inputs.a.b", FieldKind.JSON, "inputs", ("a", "b")),
        ("inputs_dump.a", FieldKind.JSON, "inputs", ("a",)),
        ("output", FieldKind.JSON, "output", ()),
        ("started_at", FieldKind.TIME, "started_at", ()),
        ("summary.weave.status", FieldKind.COMPUTED, "status", ()),
        ("summary.usage.gpt-4\\.1", FieldKind.JSON, "summary", ("usage", "gpt-4.1")),
        ("feedback.[wandb.note.1].payload.note", FieldKind.FEEDBACK, "payload", ("note",)),
        ("annotation_queue_items.queue_id", FieldKind.QUEUE, "annotation_queue_items.queue_id", ()),
    ],
)
def test_fields_resolve(path: str, kind: FieldKind, column: str, rest: tuple[str, ...]) -> None:
    field = resolve_field(path)
    assert (field.kind, field.column, field.path) == (kind, column, rest)


@pytest.mark.parametrize(
    "path",
    ["", "nope", "inputs2.a", "summary.weave.costs", "summary.weave", "storage_size_bytes", "total_storage_size_bytes"]
    + ["feedback.[x].creator", "feedback.x.payload", "annotation_queue_items.id", "id; drop table calls", "inputs\x00"],
)
def test_unknown_fields_are_refused(path: str) -> None:
    with pytest.raises(InvalidField):
        resolve_field(path)


def test_the_text_of_a_query_is_refused_before_it_is_parsed() -> None:
    most = b'{"query": {"$expr": {"$and": [' + b'{"$eq": [{"$literal": 1}]},' * (query.MAX_OPERATIONS - 1)
    query.check_text(most)
    with pytest.raises(InvalidRequest, match=f"operations, this one has {query.MAX_OPERATIONS + 1};"):
        query.check_text(most + b'{"$not": [{"$getField": "id"}]}')
    query.check_text(most.replace(b"$expr", b"expr") * 2)


@pytest.mark.parametrize(
    ("some", "parameters"),
    [
        ([*map(str, range(40_000)), "a\0b", "\U0010ffff", "\U0010ffff0", "'"], 1),
        ([*range(-20_000, 20_000), 2**63 - 1, -(2**63)], 1),
        ([number / 3 for number in range(1001)], 1001),
    ],
)
def test_a_list_of_any_length_is_found_exactly(some: Sequence[str | int | float], parameters: int) -> None:
    """SQLite as it is usually built takes 32,766 parameters, and reads many slowly."""
    bound = Parameters()
    sql = f"SELECT count(*), min(v IN {bound.values(some)}) FROM held"
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE held (v)")
    connection.executemany("INSERT INTO held VALUES (?)", [(one,) for one in some])
    assert len(bound.given) == parameters
    assert connection.execute(sql, bound.given).fetchone() == (len(some), 1)
    other = "none" if isinstance(some[0], str) else 20_001
    assert connection.execute(f"SELECT {bound.value(other)} IN {bound.values(some)}", bound.given).fetchone() == (0,)
