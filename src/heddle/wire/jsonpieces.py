"""Large JSON read and written piece by piece, so that no call into C holds the interpreter for long.

The text is cut behind commas, wherever they stand. Each piece is completed with the brackets that are open at its ends
and parsed alone; what was cut is joined again. A token stands at each cut: it keeps `[1,]` an error, and shows which
container was open.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

PIECE_BYTES = 1 << 16
MAX_NESTING = 1000
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


def loads(data: bytes, parse: Parse) -> Any:
    """The value of a JSON text, each piece read by `parse`.

    Raises PieceInvalid where that raises ValueError, RecursionError for what is nested deeper than MAX_NESTING.
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


def dumps(value: Any, encode: Callable[[Any], str]) -> str:
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
    if max(brackets.count(b"[" * MAX_NESTING), brackets.count(b"{" * MAX_NESTING)):
        raise RecursionError
    for _ in range(MAX_NESTING):
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
        if len(kinds) > MAX_NESTING:
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
