"""Values that may have come as their JSON text."""

from collections.abc import Collection
from typing import Any

import orjson

from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

MAX_DEPTH = 100
"""JSON text that is nested deeper stays text."""
_FIRST = ("{", "[", '"')


def parse_json(value: Any) -> Any:
    """The value of a JSON text that holds an object, a list or a quoted text; everything else as it is."""
    if not isinstance(value, str) or value[:1] not in _FIRST:
        return value
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    if value.count("[") + value.count("{") > MAX_DEPTH and jsontext.depth(found) > MAX_DEPTH:
        return value
    return found


def as_object(value: Any) -> Json:
    """An object, also out of its JSON text; empty for anything else."""
    found = parse_json(value)
    return found if isinstance(found, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list, also out of its JSON text; empty for anything else."""
    found = parse_json(value)
    return found if isinstance(found, list) else []


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON text."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str).decode()
    except orjson.JSONEncodeError:
        return jsontext.dumps(value)


def objects(value: Any) -> list[Json]:
    """The objects of a list; empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def first_of(holder: Json, names: Collection[str]) -> Any:
    """The value of the first of these keys that holds any; None without one."""
    return next((holder[name] for name in names if holder.get(name) is not None), None)


def text_of(value: Any) -> str:
    """A text as it is, nothing as an empty one, anything else as JSON text."""
    return "" if value is None else as_text(value)
