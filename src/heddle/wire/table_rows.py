"""Tables: edits as arithmetic on positions, and the order of rows by dotted paths inside them."""

import heapq
import os
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

import orjson

from heddle.errors import InvalidRequest
from heddle.wire import refs


@dataclass(frozen=True, slots=True)
class Edit:
    """One step: pop the row at `index`, or put `row` (a digest) there; an append has index None."""

    kind: Literal["append", "pop", "insert"]
    index: int | None = None
    row: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Added row digests, followed by the base rows from `start` up to, not including, `stop`."""

    added: tuple[str, ...]
    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many rows it has."""
        return len(self.added) + self.stop - self.start


def apply_edits(count: int, edits: Sequence[Edit]) -> tuple[list[Piece], list[str | int]]:
    """The pieces of the edited table, and per edit the digest that was added or popped.

    `count` is the length of the base; a popped row of the base is told by its position there.
    Raises InvalidRequest for an index out of range.
    """
    # A row of the base is its position, a new one the negative of its number among the added, from 1.
    rows = array("q", range(count))
    added: list[str] = []
    touched: list[str | int] = []
    for edit in edits:
        if edit.kind == "pop":
            token = rows.pop(_checked(edit.index, len(rows) - 1))
            touched.append(token if token >= 0 else added[-token - 1])
            continue
        added.append(edit.row)
        touched.append(edit.row)
        rows.insert(len(rows) if edit.kind == "append" else _checked(edit.index, len(rows)), -len(added))
    return _pieces(rows, added), touched


def _checked(index: int | None, highest: int) -> int:
    if index is None or not 0 <= index <= highest:
        allowed = f"not between 0 and {highest}" if highest >= 0 else "in a table without rows"
        raise InvalidRequest(f"Index out of range: {index} is {allowed}")
    return index


def _pieces(rows: Sequence[int], added: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    place, total = 0, len(rows)
    while place < total:
        first = place
        while place < total and rows[place] < 0:
            place += 1
        new = tuple(added[-token - 1] for token in rows[first:place])
        if place == total:
            return [*pieces, Piece(new, 0, 0)]
        start = rows[place]
        first = place
        while place < total and rows[place] == start + place - first:
            place += 1
        pieces.append(Piece(new, start, start + place - first))
    return pieces


_NULL, _NUMBER, _TEXT = 0, 1, 2
_POSITION_BYTES = 6
_OVERHEAD = 48
"""What Python keeps beside the bytes of a key."""
_BLOCK_BYTES = 64 * 1024
_ALL_BITS = (1 << 64) - 1
_INVERTED = bytes(255 - byte for byte in range(256))
Rank = tuple[int, float | str]


@dataclass(frozen=True, slots=True)
class SortKey:
    """A path and its direction."""

    path: tuple[str, ...]
    is_descending: bool


def parse_sort(field: str, is_descending: bool) -> SortKey:
    """The sort key of a dotted path; raises InvalidRequest for a malformed one."""
    parts = tuple(field.split("."))
    if not field.strip():
        raise InvalidRequest("Sort field cannot be empty")
    if any(not part.strip() for part in parts):
        raise InvalidRequest(f"Invalid sort field {field[:200]!r}: a part of the path is empty")
    return SortKey(parts, is_descending)


class Sorter:
    """Sorts any number of rows with flat memory: sorted runs of keys are kept in a file once there are many.

    Nulls come first, then numbers, then texts by code point; ties stay in the order of their positions.
    """

    def __init__(self, keys: Sequence[SortKey], run_bytes: int = 16 * 1024 * 1024) -> None:
        self._keys = keys
        self._run_bytes = run_bytes
        self._run: list[bytes] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []

    def add(self, position: int, row: Any) -> None:
        """Take a parsed row in."""
        key = b"".join([encode_rank(rank_value(row, key.path), key.is_descending) for key in self._keys])
        self._run.append(key + position.to_bytes(_POSITION_BYTES, "big"))
        self._bytes += len(key) + _POSITION_BYTES + _OVERHEAD
        if self._bytes > self._run_bytes:
            self._spill()

    def positions(self) -> "array[int]":
        """The positions of all rows in order; nothing can be added any more."""
        self._run.sort()
        if self._file is None:
            merged: Iterable[bytes] = self._run
        else:
            file = self._file
            merged = heapq.merge(self._run, *(_read(file, start, end) for start, end in self._runs))
        found = array("I", (int.from_bytes(key[-_POSITION_BYTES:], "big") for key in merged))
        self._run = []
        if self._file is not None:
            self._file.close()
        return found

    def _spill(self) -> None:
        self._run.sort()
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        start = self._file.seek(0, os.SEEK_END)
        for first in range(0, len(self._run), 1000):
            part = self._run[first : first + 1000]
            self._file.write(b"".join([len(key).to_bytes(4, "big") + key for key in part]))
        self._runs.append((start, self._file.tell()))
        self._run, self._bytes = [], 0


def sort_rows(rows: Iterable[tuple[int, Any]], keys: Sequence[SortKey]) -> list[int]:
    """Positions of (position, parsed row) pairs in order."""
    sorter = Sorter(keys)
    for position, row in rows:
        sorter.add(position, row)
    return sorter.positions().tolist()


def _read(file: IO[bytes], place: int, end: int) -> Iterator[bytes]:
    """The keys of one run, a block at a time: others are read from the same file in between."""
    rest = b""
    while place < end:
        file.seek(place)
        block = file.read(min(_BLOCK_BYTES, end - place))
        place += len(block)
        data, start = rest + block, 0
        while start + 4 <= len(data):
            stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if stop > len(data):
                break
            yield data[start + 4 : stop]
            start = stop
        rest = data[start:]


def encode_rank(value: Rank, is_descending: bool) -> bytes:
    """A rank as bytes that compare as it does; none is the beginning of another."""
    kind, item = value
    text = b""
    if isinstance(item, str):
        text = item.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"
    elif kind == _NUMBER:
        # 0.0 + -0.0 is 0.0; the bits of floats compare as the floats do once those of negative ones are turned round.
        bits = int.from_bytes(struct.pack(">d", item + 0.0), "big")
        text = (~bits & _ALL_BITS if bits >> 63 else bits | 1 << 63).to_bytes(8, "big")
    key = bytes((kind,)) + text
    return key.translate(_INVERTED) if is_descending else key


def rank_value(row: Any, path: Sequence[str]) -> Rank:
    """Where the value at a path sorts; what is missing sorts like null."""
    value = row
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list):
            value = refs.follow_edge(value, "index", part)
        else:
            return _NULL, 0
    if value is None:
        return _NULL, 0
    if isinstance(value, (bool, int, float)):
        return _NUMBER, _number(value)
    if isinstance(value, str):
        return _TEXT, value
    return _TEXT, orjson.dumps(value).decode()


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
