"""Names of spans as names of ops, and long names cut."""

import hashlib
import re
from functools import lru_cache

OP_NAME_MAX = 128
DISPLAY_NAME_MAX = 1024
NAMELESS = "unknown"
_DELIMITER = re.compile(r"[,;| /?.]")
_UNSAFE = re.compile(r"[^\w.-]")
_REMEMBERED = 300


def op_object_id(span_name: str) -> str:
    """The name of the op object that stands for spans of a name."""
    return _remembered(span_name) if len(span_name) <= _REMEMBERED else _object_id(span_name)


def _object_id(name: str) -> str:
    if len(name) > OP_NAME_MAX:
        name = cut(name, OP_NAME_MAX, f":{hashlib.sha256(name.encode()).hexdigest()[:4]}")
    safe = _UNSAFE.sub("", name.replace(" ", "_").replace("/", "_")).lower()
    # Lower-casing a few letters makes two of one, of which the second is no letter.
    return _UNSAFE.sub("", safe)[:OP_NAME_MAX] or NAMELESS


_remembered = lru_cache(maxsize=20_000)(_object_id)


def cut(name: str, most: int, ending: str = "...") -> str:
    """The name, at most so long: cut before a delimiter where there is one, then the ending."""
    if len(name) <= most:
        return name
    room = most - len(ending)
    first = _DELIMITER.search(name)
    if first is None or first.start() > room:
        return name[:room] + ending
    places = [match.start() for match in _DELIMITER.finditer(name, 0, room)]
    return name[: places[-1] if places else room].rstrip(",;| /?.") + ending
