"""How large a constraint may be; each refusal names the field and the limit."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from heddle.inference.structured.values import refusal

MAX_VALUE_BYTES = 256 * 1024
MAX_LEVELS = 200
"""Of lists and objects in each other, whatever they are."""

MAX_RULES = 5_000
"""Of a grammar."""
MAX_RULE_CHAIN = 400
"""Rules of a grammar that refer to each other in a row; the compiler follows them by recursion."""
MAX_REFERENCE_CHAIN = 150
"""`$ref`s of a schema that lead to each other in a row; the compiler needs more room for each."""


def check_size(value: Any, param: str) -> None:
    """Refuse a JSON value that is too large, nested too deeply, or not expressible as UTF-8."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise refusal(param, "is nested too deeply") from None
    _check_bytes(text, MAX_VALUE_BYTES, param)
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [item for part in level if isinstance(part, list | dict) for item in _items(part)]
    if level:
        raise refusal(param, "is nested too deeply")


def check_text(text: str, limit: int, param: str) -> None:
    """Refuse a text that is empty, too long or not expressible as UTF-8."""
    _check_bytes(text, limit, param)
    if not text.strip():
        raise refusal(param, "is empty")


def _check_bytes(text: str, limit: int, param: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refusal(param, "holds half of a surrogate pair, which is no character") from None
    if size > limit:
        raise refusal(param, f"is {size} bytes long; the limit is {limit}")


def _items(part: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return part if isinstance(part, list) else part.values()


def chain_length(starts: Sequence[str], references: Mapping[str, Sequence[str]]) -> int:
    """How deep a walk goes that follows each reference once, as compilers do."""
    seen, path, deepest = set(starts), [iter(starts)], 0
    while path:
        name = next(path[-1], None)
        if name is None:
            path.pop()
            continue
        path.append(_unseen(references.get(name, ()), seen))
        deepest = max(deepest, len(path) - 1)
    return deepest


def _unseen(names: Sequence[str], seen: set[str]) -> Iterator[str]:
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name
