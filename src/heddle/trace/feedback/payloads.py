"""Which values the payloads of feedback hold, found by looking at samples."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from heddle.trace.feedback.stats import JSON_PATH

_NUMBERS = (int, float, type(None))


def payload_paths(payloads: Iterable[str]) -> list[dict[str, str]]:
    """`{json_path, value_type}` of every leaf in payloads (JSON texts), sorted by path."""
    kinds: dict[str, set[type]] = {}
    for text in payloads:
        for path, value in leaves(orjson.loads(text), ""):
            if JSON_PATH.fullmatch(path):
                kinds.setdefault(path, set()).add(type(value))
    return [{"json_path": path, "value_type": _value_type(kinds[path])} for path in sorted(kinds)]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every scalar with its dotted path; scalars of a list have the list's path, containers in a list are skipped.

    Keys with a dot and blank keys are skipped: no path can name them.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if "." not in key and key.strip():
                yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield from ((path, item) for item in value if not isinstance(item, (dict, list)))
    else:
        yield path, value


def _value_type(kinds: set[type]) -> str:
    if kinds <= {bool, type(None)}:
        return "boolean"
    return "numeric" if kinds <= set(_NUMBERS) else "categorical"
