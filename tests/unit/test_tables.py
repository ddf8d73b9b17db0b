"""Edits of tables, sorting of rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.wire import table_rows
from heddle.wire.table_rows import Edit


def replayed(base: list[str], edits: list[Edit]) -> tuple[list[str], list[str]]:
    """The same edits on an ordinary list."""
    rows, touched = list(base), []
    for edit in edits:
        if edit.kind == "pop":
            assert edit.index is not None
            touched.append(rows.pop(edit.index))
        else:
            rows.insert(len(rows) if edit.index is None else edit.index, edit.row)
            touched.append(edit.row)
    return rows, touched


@st.composite
def edited(draw: Any) -> tuple[list[str], list[Edit]]:
    """A base table and edits that fit it."""
    base = [f"base{number}" for number in range(draw(st.integers(0, 12)))]
    count, edits = len(base), []
    for number in range(draw(st.integers(0, 20))):
        kind = draw(st.sampled_from(["append", "insert", "pop"] if count else ["append", "insert"]))
        if kind == "pop":
            edits.append(Edit("pop", draw(st.integers(0, count - 1))))
        else:
            index = None if kind == "append" else draw(st.integers(0, count))
            edits.append(Edit(kind, index, f"new{number}"))
        count += -1 if kind == "pop" else 1
    return base, edits


@given(edited())
def test_pieces_make_the_same_table_as_a_list(case: tuple[list[str], list[Edit]]) -> None:
    base, edits = case
    pieces, touched = table_rows.apply_edits(len(base), edits)
    made = [row for piece in pieces for row in (*piece.added, *base[piece.start : piece.stop])]
    named = [token if isinstance(token, str) else base[token] for token in touched]
    assert (made, named) == replayed(base, edits)
    assert sum(piece.count for piece in pieces) == len(made)


def test_an_untouched_base_stays_one_piece() -> None:
    pieces, _ = table_rows.apply_edits(1_000_000, [Edit("append", row="x")])
    assert [(piece.added, piece.start, piece.stop) for piece in pieces] == [((), 0, 1_000_000), (("x",), 0, 0)]


@pytest.mark.parametrize("edit", [Edit("pop", 2), Edit("pop", -1), Edit("insert", 3, "x"), Edit("insert", -1, "x")])
def test_indices_out_of_range_are_refused(edit: Edit) -> None:
    with pytest.raises(InvalidRequest, match="Index out of range"):
        table_rows.apply_edits(2, [edit])


def test_nothing_can_be_removed_from_a_table_without_rows() -> None:
    with pytest.raises(InvalidRequest, match="Index out of range: 0 is in a table without rows"):
        table_rows.apply_edits(0, [Edit("pop", 0)])


ROWS: list[Any] = [
    {"a": "x"},
    {"a": 2},
    {},
    {"a": True},
    {"a": None},
    {"a": {"b": 1}},
    {"a": [3, "y"]},
    {"a": 1.5},
    {"a": 10**400},
    [1],
]


def in_order(field: str, is_descending: bool = False) -> list[Any]:
    """ROWS sorted by one field."""
    return [
        ROWS[place] for place in table_rows.sort_rows(enumerate(ROWS), [table_rows.parse_sort(field, is_descending)])
    ]


def test_nulls_then_numbers_then_texts() -> None:
    up = [{}, {"a": None}, [1], {"a": True}, {"a": 1.5}, {"a": 2}, {"a": 10**400}]
    assert in_order("a") == [*up, {"a": [3, "y"]}, {"a": "x"}, {"a": {"b": 1}}]
    assert in_order("a", True)[:2] == [{"a": {"b": 1}}, {"a": "x"}]
    assert in_order("a", True)[-3:] == [{}, {"a": None}, [1]], "ties keep the table's order in both directions"


def test_paths_lead_into_objects_and_lists() -> None:
    assert in_order("a.b")[-1] == {"a": {"b": 1}}
    assert in_order("a.0")[-1] == {"a": [3, "y"]}
    assert in_order("a.00000000001") == ROWS


@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=1)), max_size=12))
def test_the_first_term_rules(pairs: list[tuple[int, str]]) -> None:
    rows = [{"n": number, "t": text} for number, text in pairs]
    keys = [table_rows.parse_sort("n", True), table_rows.parse_sort("t", False)]
    sorted_rows = [pairs[place] for place in table_rows.sort_rows(enumerate(rows), keys)]
    assert sorted_rows == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


@pytest.mark.parametrize("field", ["", " ", ".a", "a.", "a..b", "a. .b"])
def test_malformed_fields_are_refused(field: str) -> None:
    with pytest.raises(InvalidRequest):
        table_rows.parse_sort(field, False)
