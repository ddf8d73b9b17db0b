"""A table as requests see it: fields, filters, orders, counts, and what is refused."""

from typing import Any

import pytest
import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.row_queries import MAX_PATH_LENGTH, Column, RowRequest, RowTable, Sort, pins
from heddle.store.query.compiler import Kind
from heddle.store.sqlite.database import open_scratch
from heddle.wire import jsontext
from heddle.wire.query import parse_query

table = sa.Table(
    "rows",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.Text) for name in ("payload", "reasons", "ratings", "tags")),
    sa.Column("at", sa.BigInteger),
)
KINDS = {"payload": Kind.JSON, "reasons": Kind.TEXT_MAP, "ratings": Kind.NUMBER_MAP, "tags": Kind.TEXTS}
KINDS |= {"id": Kind.TEXT, "at": Kind.INSTANT}
ROWS = RowTable(table, {name: Column(kind, table.c[name]) for name, kind in KINDS.items()}, [table.c.id], ("id",))


def row(id: str, payload: Any, reasons: Any, ratings: Any, tags: Any, at: int | None) -> dict[str, Any]:
    texts = {"payload": payload, "reasons": reasons, "ratings": ratings, "tags": tags}
    return {"id": id, "at": at, **{name: jsontext.dumps(value) for name, value in texts.items()}}


STORED = [
    row("a", {"n": 2, "deep": {"x": "y"}}, {"good": "because"}, {"good": 0.5}, ["x"], 1_000_000),
    row("b", {"n": "10"}, {}, {"good": 2}, [], None),
    row("c", {"n": None}, {"good": "so"}, {}, ["x", "y"], 2_000_000),
]


def selected(**request: Any) -> tuple[list[Any], int]:
    """The rows that a request selects, and how many match."""
    session = open_scratch()
    table.create(session.control)
    session.control.execute(table.insert(), STORED)
    if "query" in request:
        request["query"] = parse_query({"$expr": request["query"]})
    found = ROWS.select(session.control, sa.true(), RowRequest(**request))
    session.close()
    return jsontext.loads(jsontext.dumps_bytes(found.rows)), found.total


def ids(**request: Any) -> list[str]:
    return [each["id"] for each in selected(fields=["id"], **request)[0]]


def compared(path: str, value: Any, op: str = "$eq") -> Any:
    return {op: [{"$getField": path}, {"$literal": value}]}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (compared("payload.n", 2), ["a"]),
        (compared("payload_dump.deep.x", "y"), ["a"]),
        (compared("reasons.good", "so"), ["c"]),
        (compared("ratings.good", 1, "$gt"), ["b"]),
        (compared("at", "1970-01-01T00:00:01Z"), ["a"]),
        ({"$contains": {"input": {"$getField": "tags"}, "substr": {"$literal": "y"}}}, ["c"]),
        ({"$and": [{"$getField": "tags"}, compared("id", "a")]}, ["a"]),
        (compared("payload", '{"n":null}'), ["c"]),
        (compared("payload.zz", None), []),
    ],
)
def test_a_filter_reads_each_kind_of_field(query: Any, found: list[str]) -> None:
    assert ids(query=query) == found
    assert selected(query=query)[1] == len(found)


def test_fields_are_answered_as_they_are_and_each_once() -> None:
    rows, total = selected(fields=["id", "payload.deep", "ratings.good", "at", "tags", "id"], limit=1)
    assert rows == [{"id": "a", "payload.deep": '{"x":"y"}', "ratings.good": 0.5, "at": rows[0]["at"], "tags": ["x"]}]
    assert rows[0]["at"].startswith("1970-01-01T00:00:01") and total == 3
    everything = selected()[0]
    assert [list(each) for each in everything] == [list(KINDS)] * 3 and everything[1]["at"] is None


def test_orders_have_nulls_last_and_json_by_existence_number_and_text() -> None:
    assert ids(sort_by=[Sort("at")]) == ["a", "c", "b"]
    assert ids(sort_by=[Sort("at", descending=True)]) == ["c", "a", "b"]
    assert ids(sort_by=[Sort("payload.n")]) == ["a", "b", "c"]
    assert ids(sort_by=[Sort("payload.n", descending=True)]) == ["b", "a", "c"]
    assert ids(sort_by=[Sort("ratings.good", descending=True)]) == ["b", "a", "c"]
    assert ids(sort_by=[Sort("at")], query={"$or": [compared("id", "c"), compared("id", "a")]}) == ["a", "c"]


def test_slices_tell_how_many_match() -> None:
    assert selected(fields=["id"], limit=2) == ([{"id": "a"}, {"id": "b"}], 3)
    assert selected(fields=["id"], limit=2, offset=2) == ([{"id": "c"}], 3)
    assert selected(fields=["id"], offset=9) == ([], 3)
    assert selected(fields=["id"], limit=0) == ([], 3)
    assert selected(fields=["id"], limit=2**70, offset=2**70) == ([], 3)


def test_a_count_is_one_row() -> None:
    assert selected(fields=["count(*)"]) == ([{"count(*)": 3}], 3)
    assert selected(fields=["id", "count(*)"]) == ([{"id": "c", "count(*)": 3}], 3)
    assert selected(fields=["id", "count(*)"], query=compared("id", "no")) == ([{"id": None, "count(*)": 0}], 0)
    assert selected(fields=["count(*)"], limit=0) == ([], 3)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"limit": -1}, "Limit must be non-negative"),
        ({"offset": -1}, "Offset must be non-negative"),
        ({"fields": ["nowhere"]}, "Unknown field: nowhere"),
        ({"fields": ["id.x"]}, "Unknown field: id.x"),
        ({"fields": ["reasons."]}, "Unknown field: reasons."),
        ({"sort_by": [Sort("tags.x")]}, "Unknown field: tags.x"),
        ({"fields": ["payload." + "x" * MAX_PATH_LENGTH]}, "Unknown field: payload.x"),
        ({"query": compared("at.x", 1)}, "Unknown field: at.x"),
    ],
)
def test_what_is_no_request_is_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        selected(**request_)


@pytest.mark.parametrize(
    ("query", "is_pinned"),
    [
        (compared("id", "a"), True),
        (compared("id", "a", "$gt"), False),
        ({"$eq": [{"$literal": "a"}, {"$getField": "id"}]}, True),
        ({"$in": [{"$getField": "id"}, [{"$literal": "a"}]]}, True),
        ({"$and": [compared("id", "a"), compared("at", 1)]}, True),
        ({"$or": [compared("id", "a"), compared("at", 1)]}, False),
        ({"$or": [compared("id", "a"), compared("id", "b")]}, True),
        ({"$not": [compared("id", "a")]}, False),
    ],
)
def test_a_query_that_names_values_of_a_selective_field_leaves_few_rows(query: Any, is_pinned: bool) -> None:
    assert pins(parse_query({"$expr": query}), ("id",)) is is_pinned
