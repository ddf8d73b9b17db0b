"""Reading attribute values, which exporters write in more types than they should."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_INT64 = 2**63
_MOST = 2**53


def text(value: Any) -> str | None:
    """A text that says something; numbers as their text, anything else is None."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def whole(value: Any) -> int | None:
    """An integer of 64 bits, also out of a float or a text that is one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    try:
        found = int(value)
    except ValueError:
        return None
    return found if -_INT64 <= found < _INT64 else None


def count(value: Any) -> int | None:
    """A count of tokens or the like: a whole number that is not negative, and that JavaScript can still hold."""
    found = whole(value)
    return found if found is not None and 0 <= found <= _MOST else None


def number(value: Any) -> float | None:
    """A finite number, also out of a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if found - found == 0 else None


def texts(value: Any) -> list[str] | None:
    """A list of texts; one text is a list of one, JSON text of a list is that list; None when nothing is in it."""
    if isinstance(value, str):
        found = parsed(value) if value[:1] == "[" else value
        value = found if isinstance(found, list) else [value]
    if not isinstance(value, list):
        return None
    return [item if isinstance(item, str) else as_text(item) for item in value if item not in (None, "")] or None


def parsed(value: Any) -> Any:
    """The value of a JSON text that holds an object, a list or a quoted text; everything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def as_object(value: Any) -> Json:
    """An object, also out of its JSON text; empty for anything else."""
    found = parsed(value)
    return found if isinstance(found, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list, also out of its JSON text; empty for anything else."""
    found = parsed(value)
    return found if isinstance(found, list) else []


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON text."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def told(value: Any) -> str | None:
    """A value as text, JSON text in one spelling whatever spelling it came in; None for no value."""
    return None if value is None else as_text(parsed(value))


class Scalar(NamedTuple):
    """Where a field comes from: of several rows for one field the first that gives a value counts."""

    key: str
    field: str
    convert: Callable[[Any], Any]


def fill(rows: Iterable[Scalar], values: Mapping[str, Any], into: AgentSpan) -> None:
    """Set every field that is still empty and that `values` have something for."""
    for key, field, convert in rows:
        if key in values and (value := values[key]) is not None and not filled(into, field):
            value = convert(value)
            if value is not None:
                setattr(into, field, value)


def filled(into: AgentSpan, field: str) -> bool:
    """True when the field holds something; 0 is something."""
    value = getattr(into, field)
    return value is not None and value != [] and value != ""


def offer(into: AgentSpan, field: str, value: Any) -> None:
    """Set the field unless there is nothing to set or something else is there."""
    if value is not None and value != [] and value != "" and not filled(into, field):
        setattr(into, field, value)


def branch(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What stands below a dotted prefix, as nested objects; objects with the keys 0, 1, ... become lists.

    `branch({"a.0.b": 1, "a.0.c": 2}, "a.")` is `[{"b": 1, "c": 2}]`; an index that is missing leaves no hole. None
    without any such key.
    """
    tree: Json = {}
    start = len(prefix)
    for key, value in attributes.items():
        if key.startswith(prefix):
            node = tree
            *path, last = key[start:].split(".")
            for name in path:
                below = node.get(name)
                if not isinstance(below, dict):
                    below = node[name] = {}
                node = below
            node[last] = value
    return _lists(tree) if tree else None


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() for key in node):
        return [_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _lists(value) for key, value in node.items()}


def objects(value: Any) -> list[Json]:
    """The objects of a list; empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
