"""What the columns of an archive's records may hold."""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.moving import plan, tables
from heddle.moving.archive_names import CALLS, RECORDS
from heddle.moving.members import FOLDER
from heddle.store.control.mapping import stored_type
from heddle.wire import jsontext
from heddle.wire.calls import COLUMNS, STATUS_WORDS, CallColumn, ColumnType

Row = Mapping[str, Any]
Check = Callable[[Any], str | None]
"""What is wrong with a value, None for nothing."""
MOST_NODES = 5_000_000
"""The most values of one JSON text."""
_DEPTH = 10_000
_SHORT = 1 << 20
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONG, _INTEGER = 2**63, 2**31


def is_text(value: Any) -> str | None:
    """Whether it is a text."""
    return None if isinstance(value, str) else "is no text"


def has_shape(shape: plan.Shape) -> Check:
    """Whether it is a text that holds JSON of bounded depth and size, and of a shape."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return "is no text"
        text = value.encode("utf-8", "surrogatepass")
        if len(text) > _SHORT and count_nodes(text) > MOST_NODES:
            return f"holds more than {MOST_NODES} values"
        try:
            found = jsontext.loads(text, True, _DEPTH)
        except HeddleError as error:
            return f"is no JSON: {error.reason[:200]}"
        if not isinstance(found, shape.kind):
            return f"is no {shape.name}"
        items = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        return None if all(isinstance(item, shape.items) for item in items) else f"is no {shape.name}"

    return check


is_json = has_shape(plan.ANY)


def count_nodes(text: bytes) -> int:
    """About how many values a JSON text holds, without parsing it."""
    bare = _STRINGS.sub(b"", text)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{") + 1


def is_number(value: Any) -> str | None:
    """Whether it is a finite number."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_one and math.isfinite(value) else "is no number"


def is_whole(bound: int) -> Check:
    """Whether it is a whole number between -bound and bound."""

    def check(value: Any) -> str | None:
        is_one = isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
        return None if is_one else "is no whole number in reach"

    return check


def matches(pattern: re.Pattern[str], what: str) -> Check:
    """Whether it is a text of a form."""

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and pattern.fullmatch(value) else f"is no {what}"

    return check


def one_of(*words: str) -> Check:
    """Whether it is one of a few words."""
    return lambda value: None if value in words else f"is none of {', '.join(words)}"


def is_digests(value: Any) -> str | None:
    """Whether it is a list of texts."""
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if is_list else "is no list of digests"


@cache
def checks(group: str) -> dict[str, tuple[Check, bool]]:
    """The check of each column of a group, and whether it may be null or missing."""
    if group == CALLS:
        return _OF_CALLS
    if group == tables.ROWS:
        return {name: (is_json if name == "val" else is_text, False) for name in ("project", "digest", "val")}
    if group == tables.TABLES:
        counts = dict.fromkeys(("row_count", "chunk"), (is_whole(_LONG), False))
        return {"project": (is_text, False), "digest": (is_text, False), "row_digests": (is_digests, False), **counts}
    moved = plan.BY_NAME[group.removeprefix(RECORDS + "/")]
    return {column.name: (_check_of(column), _may_miss(column)) for column in moved.columns}


def _check_of(column: "sa.Column[Any]") -> Check:
    if column in plan.BLOB_COLUMNS:
        return matches(_SHA256, "SHA-256")
    if column in plan.FOLDER_COLUMNS:
        return matches(FOLDER, "folder of an adapter or a checkpoint")
    if column in plan.PATH_COLUMNS:
        return matches(_PART, "id")
    if column in plan.ENDED:
        return one_of(*plan.ENDED[column])
    if (shape := plan.JSON_COLUMNS.get(column.table.name, {}).get(column.name)) is not None:
        return has_shape(shape)
    kept = stored_type(column)
    if isinstance(kept, sa.Text):
        return is_text
    if isinstance(kept, sa.Float):
        return is_number
    return is_whole(_LONG if isinstance(kept, sa.BigInteger) else _INTEGER)


def _may_miss(column: "sa.Column[Any]") -> bool:
    is_made = column.name == plan.SECRETS.get(column.table.name)
    return bool(column.nullable) or column.server_default is not None or is_made


def _check_of_call(column: CallColumn) -> Check:
    if column.type in (ColumnType.INTEGER, ColumnType.INSTANT):
        return is_whole(_LONG)
    return is_json if column.type is ColumnType.JSON else is_text


_OF_CALLS: dict[str, tuple[Check, bool]] = {
    "project": (is_text, False),
    **{item.name: (_check_of_call(item), item.of_end or not item.is_required) for item in COLUMNS},
}
_OF_CALLS["status"] = (one_of(*STATUS_WORDS), False)


def problem_of(group: str, row: Any) -> tuple[str, str] | None:
    """The first column of a record that is not as it must be, and what is wrong with it."""
    if not isinstance(row, dict):
        return "", "is no record"
    for name, (check, may_miss) in checks(group).items():
        value = row.get(name)
        problem = (None if may_miss else "is missing") if value is None else check(value)
        if problem is not None:
            return name, problem
    return None
