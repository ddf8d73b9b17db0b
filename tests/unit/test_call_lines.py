"""What a row of the list of calls says of a value, in one line."""

from collections.abc import Callable
from typing import Any

import pytest

from heddle.ui.reads.calls_row import _line

LEVELS = 900
"""As deep as archives may be."""
NESTS: dict[str, Callable[[Any], Any]] = {
    "objects": lambda inner: {"a": inner},
    "lists": lambda inner: [inner],
    "rows": lambda inner: [{"a": inner}],
    "objects of SDKs": lambda inner: {"_type": "CustomWeaveType", "val": inner},
}


@pytest.mark.parametrize("kind", NESTS)
def test_a_value_of_any_depth_has_a_line(kind: str) -> None:
    value: Any = "x"
    for _ in range(LEVELS):
        value = NESTS[kind](value)
    assert len(_line(value)) <= 100


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": {"b": {"c": "deep"}}}, "a: b: c: deep"),
        ({"a": {"b": "x" * 80}}, "a: b: " + "x" * 56 + "…"),
        ([{"a": 1}, {"a": 2}], "2 rows: a: 1"),
        ([[["x"]]], '[[["x"]]]'),
        ({"_type": "CustomWeaveType", "val": {"markup": "# Title"}}, "Title"),
    ],
)
def test_the_line_of_a_value(value: Any, line: str) -> None:
    assert _line(value) == line
