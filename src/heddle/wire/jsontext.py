"""JSON in and out: quick where the text is ordinary, forgiving where real clients are not.

Some SDKs write `NaN`, lone surrogates and integers beyond 64 bits. They are accepted, and what SQLite and strict
parsers could not read back is replaced: non-finite numbers and integers beyond every float by null, lone surrogates by
U+FFFD.

Large JSON is read and written piece by piece, so that no call into C holds the interpreter for long. The text is cut
behind commas, wherever they stand. Each piece is completed with the brackets that are open at its ends and parsed
alone; what was cut is joined again. A token stands at each cut: it keeps `[1,]` an error, and shows which container was
open.
"""

import json
import math
import re
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from heddle.errors import HeddleError, InvalidRequest, ValidationFailed

PIECE_BYTES = 1 << 16
MAX_PIECE_NESTING = 1000
_SMALL, _SLICE = 10_000, 1000
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TO_COMMA = re.compile(rb'[^",]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^",]*+)*+,', re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
Container = dict[str, Any] | list[Any]
Parse = Callable[[bytes], Any]


class PieceInvalid(Exception):
    """A piece is no JSON; `offset` is what to add to a position in the piece for one in the whole text."""

    def __init__(self, error: ValueError, offset: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.offset = offset


def count_nodes(data: bytes) -> int:
    """How many values a JSON text has at most: one more than there are commas and opening brackets outside strings."""
    count, position = 1, 0
    while position < len(data):
        end, outside = _window(data, position)
        count += _marks(outside)
        position = end
    return count


def may_exceed(data: bytes | bytearray, nodes: int) -> bool:
    """False when a JSON text cannot have more values than `nodes`; found out without a look at its strings."""
    return len(data) >= nodes and _marks(data) >= nodes


def _marks(text: bytes | bytearray) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def loads_in_pieces(data: bytes, parse: Parse) -> Any:
    """The value of a JSON text, each piece read by `parse`.

    Raises PieceInvalid where that raises ValueError, RecursionError for what is nested deeper than MAX_PIECE_NESTING.
    """
    whole = _Whole(parse)
    position = 0
    while position < len(data):
        end, brackets = _piece(data, position)
        whole.add(data[position:end], brackets, position)
        position = end
    if whole.open or not data:
        whole.add(b"", b"", position)
    return whole.value


def dumps_in_pieces(value: Any, encode: Callable[[Any], str]) -> str:
    """What `encode` makes of a value, a piece at a time; it writes dictionaries in the order that they have here."""
    parts: list[str] = []
    _write(value, encode, parts)
    return "".join(parts)


def _write(value: Any, encode: Callable[[Any], str], parts: list[str]) -> None:
    if is_small(value):
        parts.append(encode(value))
        return
    comma = encode([0, 0])[2:-2]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    parts.append(opening)
    for number, piece in enumerate(_slices(value)):
        if number:
            parts.append(comma)
        if is_small(piece):
            parts.append(encode(piece)[1:-1])
        else:
            _write_each(piece, encode, comma, parts)
    parts.append(closing)


def _write_each(piece: Container, encode: Callable[[Any], str], comma: str, parts: list[str]) -> None:
    is_dict = isinstance(piece, dict)
    for number, item in enumerate(piece.items() if isinstance(piece, dict) else piece):
        if number:
            parts.append(comma)
        if is_dict:
            key, item = item
            parts.append(encode({key: 0})[1:-2])
        _write(item, encode, parts)


def _slices(value: Container) -> Iterator[Container]:
    if isinstance(value, list):
        yield from (value[first : first + _SLICE] for first in range(0, len(value), _SLICE))
        return
    items = iter(value.items())
    while piece := dict(islice(items, _SLICE)):
        yield piece


def is_small(value: Any) -> bool:
    """False when a value holds so much that it takes long to write it in one go."""
    count, pending = 0, [value]
    while pending:
        node = pending.pop()
        if isinstance(node, (dict, list, tuple)):
            count += len(node)
            if count > _SMALL:
                return False
            pending.extend(node.values() if isinstance(node, dict) else node)
    return True


def estimate_size(value: Any, most: int) -> int:
    """About how many bytes of JSON a value makes; the counting ends behind `most`."""
    size, pending = 0, [value]
    while pending and size <= most:
        node = pending.pop()
        if isinstance(node, str):
            size += len(node)
        elif isinstance(node, (dict, list, tuple)):
            size += 8 * len(node)
            pending.extend(node.values() if isinstance(node, dict) else node)
    return size


def _window(data: bytes, start: int) -> tuple[int, bytes]:
    """Where a window ends that starts and ends outside strings, and its text without them."""
    end = min(start + PIECE_BYTES, len(data))
    outside = _STRING.sub(b"", data[start:end])
    cut = outside.find(b'"')
    if cut < 0:
        return end, outside
    closed = _STRING.match(data, end - (len(outside) - cut))
    return (closed.end() if closed else len(data)), outside[:cut]


def _piece(data: bytes, start: int) -> tuple[int, bytes]:
    """Where a piece ends, behind a comma or at the end of the text, and the brackets in it."""
    end, outside = _window(data, start)
    found = _TO_COMMA.match(data, end)
    rest = data[end : found.end() if found else len(data)]
    outside += _STRING.sub(b"", rest)
    return end + len(rest), outside.translate(None, _NO_BRACKETS)


def _unpaired(brackets: bytes) -> bytes:
    """The brackets without those that close each other."""
    if max(brackets.count(b"[" * MAX_PIECE_NESTING), brackets.count(b"{" * MAX_PIECE_NESTING)):
        raise RecursionError
    for _ in range(MAX_PIECE_NESTING):
        before, brackets = brackets, brackets.replace(b"[]", b"").replace(b"{}", b"")
        if before == brackets:
            return brackets
    raise RecursionError


@dataclass(slots=True)
class _Whole:
    """What the pieces so far make: the value, and its containers that are still open, outermost first."""

    parse: Parse
    value: Any = None
    open: list[Container] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def add(self, piece: bytes, brackets: bytes, position: int) -> None:
        """Read one piece, which ends with a comma unless it is the last."""
        unpaired = _unpaired(brackets)
        opened = unpaired.lstrip(b"]}")
        kept = max(0, len(self.open) - (len(unpaired) - len(opened)))
        kinds = b"".join(map(_opening, self.open[:kept])) + opened
        if len(kinds) > MAX_PIECE_NESTING:
            raise RecursionError
        # A comma where nothing is open is left to be found wrong.
        goes_on = piece.endswith(b",") and bool(kinds)
        beginning = self._beginning()
        text = beginning + (piece[:-1] + self._ending(kinds) if goes_on else piece)
        try:
            value = self.parse(text)
        except ValueError as error:
            raise PieceInvalid(error, position - len(beginning)) from None
        still_open = self._find_open(value, len(kinds)) if goes_on else []
        self._join(value)
        self.open = self.open[:kept] + still_open[kept:]

    def _beginning(self) -> bytes:
        """The open containers, opened again; each begins with the next, the innermost with the token."""
        if not self.open:
            return b""
        key = f'{{"{self.token}":'.encode()
        parts = [key if type(container) is dict else b"[" for container in self.open]
        return b"".join(parts) + f'"{self.token}",'.encode()

    def _ending(self, kinds: bytes) -> bytes:
        """All that is open, closed; each container ends with the token."""
        item = f',"{self.token}"]'.encode()
        member = f',"-{self.token}":0}}'.encode()
        return b"".join(member if kind == ord("{") else item for kind in reversed(kinds))

    def _find_open(self, value: Any, depth: int) -> list[Container]:
        """The containers that are open at the end of a piece; the tokens at their ends are taken off."""
        found: list[Container] = [value]
        while len(found) < depth:
            outer = found[-1]
            children = reversed(outer.values()) if isinstance(outer, dict) else outer[-2:-1]
            found.append(next(child for child in children if self._has_ending(child)))
        for container in found:
            if isinstance(container, dict):
                del container["-" + self.token]
            else:
                container.pop()
        return found

    def _has_ending(self, value: Any) -> bool:
        if isinstance(value, dict):
            return "-" + self.token in value
        return isinstance(value, list) and bool(value) and value[-1] == self.token

    def _join(self, value: Any) -> None:
        """Put what a piece holds into the containers that were open at its beginning."""
        if not self.open:
            self.value = value
        for container in self.open:
            if isinstance(container, dict):
                inner = value.pop(self.token)
                container.update(value)
            else:
                inner = value[0]
                container.extend(value[1:])
            value = inner


def _opening(container: Container) -> bytes:
    return b"{" if isinstance(container, dict) else b"["


MAX_DEPTH = 200
_WHOLE_NODES, _WHOLE_BYTES = 50_000, 500_000
"""A text that is longer and may have more values is read in pieces; to read this many takes about 10 ms."""
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_FOUR = b"0000"
"""Of 19 digits in a row four lie four apart."""
_LONG_INTEGER = re.compile(rb"\d{20}|-\d{19}")
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
    if max_depth < len(data) and data.count(b"[") + data.count(b"{") > max_depth:
        check_depth(value, max_depth)
    return value


def loads_text(text: str) -> Any:
    """The value of JSON that is kept or answered as a text, read as `loads` does; raises ValueError for none."""
    try:
        return loads(clean_text(text).encode())
    except HeddleError as error:
        raise ValueError(error.reason) from None


def check_depth(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise InvalidRequest for a value that is nested deeper."""
    if depth(value) > max_depth:
        raise InvalidRequest(_DEPTH_MESSAGE)


def _parse(data: bytes, parse: Callable[[bytes], Any]) -> Any:
    is_large = len(data) > _WHOLE_BYTES and may_exceed(data, _WHOLE_NODES)
    return loads_in_pieces(data, parse) if is_large else parse(data)


def _has_long_integer(data: bytes) -> bool:
    """True when there may be an integer beyond 64 bits, which orjson would read as a float."""
    sample = data[::4].translate(_DIGITS)
    at = sample.find(_FOUR)
    while at >= 0:
        if _LONG_INTEGER.search(data, max(0, 4 * at - 4), 4 * at + 20):
            return True
        at = sample.find(_FOUR, at + 1)
    return False


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


def follow(value: Any, path: Iterable[str]) -> Any:
    """What lies at a path of names in nested objects; None where it leads nowhere."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def dumps(value: Any) -> str:
    """Minified JSON text of a value that came through `loads`; raises as `dumps_bytes`."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return _dumps_seldom(value).decode()


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
        check_depth(value)
        text = dumps_in_pieces(_plain(value), json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode)
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


class LineSplitter:
    """Cuts at line feeds only: JSON texts may hold other characters that `str.splitlines` takes for ends of lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.pending = 0
        """Bytes behind the last line feed."""

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that are complete with this part."""
        first, *others = part.split(b"\n")
        self._rest.append(first)
        self.pending += len(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest = others[-1:]
        self.pending = len(others[-1])
        return lines

    def end(self) -> bytes:
        """What stands behind the last line feed."""
        return b"".join(self._rest)


async def split_lines(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The lines of a stream, and what stands behind the last line feed."""
    splitter = LineSplitter()
    async for part in parts:
        for line in splitter.feed(part):
            yield line
    if rest := splitter.end():
        yield rest


_MARK = "\U0010ffff"
"""No character of any text, by the Unicode standard; one that comes all the same is written as two, too."""


def dump_list(items: Sequence[str | int | float]) -> str:
    """Texts or numbers as JSON for `json_each` and its like: no database reads a zero character out of JSON."""
    text = orjson.dumps(items).decode()
    if "\\u0000" not in text and _MARK not in text:
        return text
    marked = [item.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0") for item in items if isinstance(item, str)]
    return orjson.dumps(marked).decode()
