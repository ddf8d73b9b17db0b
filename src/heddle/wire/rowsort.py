"""Sorting table rows by dotted paths inside them (contract: trace-core, section 11, tables)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.wire import refpath

_NULL, _NUMBER, _TEXT = 0, 1, 2
Rank = tuple[int, float | str]


@dataclass(frozen=True, slots=True)
class SortKey:
    """A path and its direction."""

    path: tuple[str, ...]
    is_descending: bool


def parse(field: str, is_descending: bool) -> SortKey:
    """The sort key of a dotted path; raises InvalidRequest for a malformed one."""
    parts = tuple(field.split("."))
    if not field.strip():
        raise InvalidRequest("Sort field cannot be empty")
    if any(not part.strip() for part in parts):
        raise InvalidRequest(f"Invalid sort field {field[:200]!r}: an empty part between, before or after dots")
    return SortKey(parts, is_descending)


def order(rows: Iterable[tuple[int, Any]], keys: Sequence[SortKey]) -> list[int]:
    """Positions of (position, parsed row) pairs in order: nulls, then numbers, then texts; ties stay as they are."""
    ranked = [(position, [rank(row, key.path) for key in keys]) for position, row in rows]
    for number, key in reversed(list(enumerate(keys))):
        ranked.sort(key=lambda item, number=number: item[1][number], reverse=key.is_descending)  # type: ignore[misc]
    return [position for position, _ in ranked]


def rank(row: Any, path: Sequence[str]) -> Rank:
    """Where the value at a path sorts; what is missing sorts like null."""
    value = row
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list):
            value = refpath.step(value, "index", part)
        else:
            return _NULL, 0
    if value is None:
        return _NULL, 0
    if isinstance(value, (bool, int, float)):
        return _NUMBER, _number(value)
    if isinstance(value, str):
        return _TEXT, value
    return _TEXT, orjson.dumps(value).decode()


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
