"""Attributes as trees: dotted keys split, JSON texts parsed (contract: trace-core, 12), and back."""

import re
from collections.abc import Iterable
from typing import Any

from heddle.errors import HeddleError
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

MAX_PARTS = 64
"""A key of more parts is kept whole."""
MAX_JSON_DEPTH = 100
_KNOWN_KEYS = 20_000
_Route = tuple[tuple[str, ...], tuple[str, ...], str]
_routes: dict[str, _Route] = {}
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class Conflict(ValueError):
    """A scalar and a subtree under the same key."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"attribute {key[:200]!r} has both a value of its own and attributes below it ('{key[:200]}.…'); "
            "give the value another key"
        )


def parts(key: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    found = tuple(key.split("."))
    return found if len(found) <= MAX_PARTS else (key,)


def _route(key: str) -> _Route:
    """The parts of a key, those on the way and the last one; remembered, as keys repeat."""
    path = parts(key)
    found = (path, path[:-1], path[-1])
    if len(_routes) >= _KNOWN_KEYS:
        _routes.clear()
    if len(key) <= 200:
        _routes[key] = found
    return found


def expand(flat: Json) -> tuple[Json, list[str]]:
    """The tree, and the keys whose value came as JSON text; raises Conflict."""
    tree: Json = {}
    parsed_keys: list[str] = []
    for key, value in flat.items():
        if type(value) is str and value[:1] in ("[", "{"):
            parsed = _parsed(value)
            if parsed is not value:
                parsed_keys.append(key)
                value = parsed
        path, way, last = _routes.get(key) or _route(key)
        node = tree
        for part in way:
            below = node.get(part)
            if type(below) is not dict:
                below = node[part] = {} if below is None else _opened(below, tree, path)
            node = below
        if last in node:
            _join(node, last, value, key)
        else:
            node[last] = value
    return tree, parsed_keys


def _parsed(text: str) -> Any:
    """What JSON text means; the text itself when it is none."""
    try:
        return jsontext.loads(text.encode("utf-8", "replace"), max_depth=MAX_JSON_DEPTH)
    except HeddleError:
        return text


def _opened(held: Any, tree: Json, path: tuple[str, ...]) -> Json:
    """A list on the way down as a dict of its indices; raises Conflict for what has no inside."""
    node: Any = tree
    for place, part in enumerate(path):
        node = node[part]
        if node is held:
            if isinstance(held, list) and _INDEX.fullmatch(path[place + 1]):
                return _indexed(held)
            raise Conflict(".".join(path[: place + 1]))
    raise AssertionError("the value lies on its own path")


def _indexed(items: list[Any]) -> Json:
    return {str(index): item for index, item in enumerate(items)}


def _join(node: Json, last: str, value: Any, key: str) -> None:
    """Put a value where there is one: two structures are merged, a scalar beside a structure is a conflict."""
    held = node[last]
    if not isinstance(held, (dict, list)):
        node[last] = value
    elif isinstance(value, (dict, list)):
        node[last] = _merged(held, value)
    elif value is not None:
        raise Conflict(key)


def _merged(held: Any, value: Any) -> Json:
    base: Json = _indexed(held) if isinstance(held, list) else held
    for key, item in (_indexed(value) if isinstance(value, list) else value).items():
        known = base.get(key)
        both = isinstance(known, (dict, list)) and isinstance(item, (dict, list))
        base[key] = _merged(known, item) if both else item
    return base


def pick(tree: Any, path: Iterable[str]) -> Any:
    """What lies under a path; None when there is nothing."""
    for part in path:
        if type(tree) is dict:
            tree = tree.get(part)
        elif type(tree) is list and _INDEX.fullmatch(part):
            index = int(part)
            tree = tree[index] if index < len(tree) else None
        else:
            return None
    return tree


def listed(value: Any) -> Any:
    """The value with dicts whose keys are exactly "0" to "n-1" as lists, at any depth of dicts."""
    if type(value) is not dict:
        return value
    changed = {key: new for key, item in value.items() if type(item) is dict and (new := listed(item)) is not item}
    found = {**value, **changed} if changed else value
    if "0" in found and all(str(index) in found for index in range(len(found))):
        return [found[str(index)] for index in range(len(found))]
    return found


def flatten(tree: Json, texts: Iterable[str] = ()) -> Json:
    """The flat attributes of a tree; the keys of `texts` hold JSON text again."""
    flat: Json = {}
    _flatten(tree, "", frozenset(texts), flat)
    return flat


def _flatten(node: Json, prefix: str, texts: frozenset[str], into: Json) -> None:
    for part, value in node.items():
        key = f"{prefix}{part}"
        if key in texts:
            into[key] = jsontext.dumps(value)
        elif isinstance(value, dict) and value:
            _flatten(value, f"{key}.", texts, into)
        else:
            into[key] = value
