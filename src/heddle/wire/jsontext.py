"""JSON in and out: quick where the text is ordinary, forgiving where real clients are not.

Some SDKs write `NaN`, lone surrogates and integers beyond 64 bits. They are accepted, and what SQLite and strict
parsers could not read back is replaced: non-finite numbers and integers beyond every float by null, lone surrogates by
U+FFFD.
"""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import orjson

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.wire import jsonpieces
from heddle.wire.jsonpieces import PieceInvalid

MAX_DEPTH = 200
_WHOLE_NODES = 50_000
"""A text that may have more values is read in pieces; to read this many takes about 10 ms."""
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG, _LONG_NEGATIVE, _TWO = b"0" * 20, b"-" + b"0" * 19, b"00"
_LARGEST = int(sys.float_info.max)
_DEPTH_MESSAGE = f"JSON is nested deeper than {MAX_DEPTH} levels"


def loads(data: bytes, keep_non_finite: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Parse a request body; raises ValidationFailed when it is no JSON, InvalidRequest when it is nested too deep.

    In a thread, others go on meanwhile: no call into C takes long, however large the text is.
    """
    try:
        if _has_long_integer(data):
            value = _sanitise(_lenient_loads(data), keep_non_finite)
        else:
            value = _parse(data, orjson.loads)
    except (orjson.JSONDecodeError, PieceInvalid):
        value = _sanitise(_lenient_loads(data), keep_non_finite)
    except RecursionError:
        raise InvalidRequest(_DEPTH_MESSAGE) from None
    if data.count(b"[") + data.count(b"{") > max_depth and depth(value) > max_depth:
        raise InvalidRequest(_DEPTH_MESSAGE)
    return value


def _parse(data: bytes, parse: Callable[[bytes], Any]) -> Any:
    return jsonpieces.loads(data, parse) if jsonpieces.may_exceed(data, _WHOLE_NODES) else parse(data)


def _has_long_integer(data: bytes) -> bool:
    """True when there may be an integer beyond 64 bits, which orjson would read as a float."""
    if _TWO not in data[::9].translate(_DIGITS):
        return False  # of 19 digits in a row two lie nine apart
    digits = data.translate(_DIGITS)
    return _LONG in digits or _LONG_NEGATIVE in digits


def _lenient_loads(data: bytes) -> Any:
    try:
        return _parse(data, lambda text: json.loads(text.decode("utf-8")))
    except RecursionError:
        raise InvalidRequest(_DEPTH_MESSAGE) from None
    except PieceInvalid as invalid:
        raise _no_json(invalid.error, invalid.offset) from None
    except ValueError as error:
        raise _no_json(error) from None


def _no_json(error: ValueError, offset: int = 0) -> ValidationFailed:
    """What is said of a text that is no JSON; `offset` is where the part begins that the error is about."""
    if isinstance(error, UnicodeDecodeError):
        place, message = error.start, "not UTF-8"
    elif isinstance(error, json.JSONDecodeError):
        place, message = error.pos, str(error) if not offset else error.msg
    else:
        place, message = 0, str(error)
    return ValidationFailed.at(["body", place + offset], f"JSON decode error: {message}", "json_invalid")


def _sanitise(value: Any, keep_non_finite: bool) -> Any:
    """Replace what cannot be stored, level by level so that depth does not matter."""
    root = [value]
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if any(not key.isascii() for key in node):
                items = [(clean_text(key), item) for key, item in node.items()]
                node.clear()
                node.update(items)
            entries = list(node.items())
        else:
            entries = list(enumerate(node))
        for key, item in entries:
            if isinstance(item, str):
                node[key] = clean_text(item)
            elif isinstance(item, (int, float)) and not keep_non_finite and _is_beyond(item):
                node[key] = None
            elif isinstance(item, (dict, list)):
                pending.append(item)
    return root[0]


def _is_beyond(number: int | float) -> bool:
    """True for a number that strict parsers do not read."""
    return not math.isfinite(number) if isinstance(number, float) else abs(number) > _LARGEST


def clean_text(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def depth(value: Any) -> int:
    """How many containers lie inside each other at the deepest place; 0 for a scalar."""
    level, current = 0, [value] if isinstance(value, (dict, list)) else []
    while current:
        level += 1
        inner = []
        for node in current:
            for item in node.values() if isinstance(node, dict) else node:
                kind = type(item)
                if kind is dict or kind is list:
                    inner.append(item)
        current = inner
    return level


def dumps(value: Any) -> str:
    """Minified JSON text of a value that came through `loads`."""
    return dumps_bytes(value).decode()


def dumps_bytes(value: Any) -> bytes:
    """Minified UTF-8 JSON; integers beyond 64 bits are written in full, those beyond every float as null."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _dumps_seldom(value)


def _dumps_seldom(value: Any) -> bytes:
    """As `dumps_bytes`, for keys that are no texts and long integers; the options for them cost on every value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        text = jsonpieces.dumps(_plain(value), json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode)
        return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """The value with raw fragments parsed and numbers beyond every float as null, for the slow encoder."""
    if isinstance(value, orjson.Fragment):
        return json.loads(orjson.dumps(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, int | float) and _is_beyond(value) else value
