"""Rows as they are stored: their checksums, and complete spans in few bytes.

SQLite's pages have no checksums, and a flipped bit of a text makes another text. A span is compressed, without what
the call's inputs and output say already. Its packed dump is the number of the format, then zstd with a dictionary of
what spans have in common (made by `tools/train_span_dictionary.py`): the JSON text with null in the place of each
shared part, and behind a line feed where these belong. Dumps of older versions are plain text.
"""

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from zlib import crc32

import orjson
import zstandard

from heddle.wire.call_fields import CallField
from heddle.wire.calls import BODY_IN, SharedText
from heddle.wire.spans import SHARED_ATTRIBUTES

COLUMN = "crc"
"""The column of the checksum; null in rows of older versions."""
FORMAT = b"\x01"
_LEVEL = 3
_COLUMNS = ("inputs", "output")
_PATHS = tuple(f"attributes.{name}" for name in SHARED_ATTRIBUTES)
_REST = "span_rest(bi.otel_dump)"
WHOLE_DUMP = "(CASE WHEN bi.otel_dump IS NOT NULL THEN span_dump(bi.otel_dump, bi.inputs, bo.output) END)"
_own = threading.local()
"""Compressors are no two threads' at once."""


def checksum(values: Sequence[str | bytes | float | None]) -> int:
    """CRC-32 over the values of a row, in the order of its columns."""
    if bytes in map(type, values):
        known = [value if isinstance(value, bytes) else str(value).encode() for value in values if value is not None]
        return crc32(b"".join(known))
    return crc32("".join([str(value) for value in values if value is not None]).encode())


def _checksum_of_read(*values: bytes | float | None) -> int:
    """The same over values as `checksum_sql` reads them: bytes, but for floats."""
    try:
        return crc32(b"".join([value for value in values if value is not None]))  # type: ignore[misc]
    except TypeError:
        return checksum(values)


def checksum_sql(columns: Mapping[str, str], row: str = "") -> str:
    """The SQL of the checksum of a row from the types of its columns; as bytes, for what is damaged may be no text."""
    values = [_value(f'{row}"{name}"', type) for name, type in columns.items()]
    return f"checksum({', '.join(values)})"


def _value(name: str, type: str) -> str:
    # The text of a float is shorter than the float.
    exact = type not in ("TEXT", "INTEGER", "BIGINT")
    return f"iif(typeof({name}) = 'real', {name}, CAST({name} AS BLOB))" if exact else f"CAST({name} AS BLOB)"


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    found = zstandard.ZstdCompressionDict((files("heddle.store.sqlite") / "span_dictionary.zdict").read_bytes())
    found.precompute_compress(level=_LEVEL)
    return found


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_own, "compressor"):
        _own.compressor = zstandard.ZstdCompressor(_LEVEL, dict_data=_dictionary(), write_dict_id=False)
    found: zstandard.ZstdCompressor = _own.compressor
    return found


def _decompress(packed: bytes) -> str:
    if not hasattr(_own, "decompressor"):
        _own.decompressor, _own.last = zstandard.ZstdDecompressor(dict_data=_dictionary()), (b"", "")
    # Statements read one value several times.
    if packed != _own.last[0]:
        _own.last = (packed, _own.decompressor.decompress(memoryview(packed)[1:]).decode())
    text: str = _own.last[1]
    return text


def pack(dump: str, shared: Sequence[SharedText] = ()) -> bytes:
    """A dump as it is stored; `shared` are parts of it, in order, that the call's inputs or output hold, too."""
    return FORMAT + _compressor().compress(reduce(dump, shared).encode())


def reduce(dump: str, shared: Sequence[SharedText]) -> str:
    """What of a dump is compressed."""
    parts: list[str] = []
    holes: list[tuple[int, int, int, int]] = []
    done = size = 0
    for part in shared:
        parts += (dump[done : part.at], "null")
        size += part.at - done
        holes.append((size, _COLUMNS.index(part.column), part.start, part.start + part.length))
        size += 4
        done = part.at + part.length
    parts += (dump[done:], "\n", orjson.dumps(holes).decode() if holes else "")
    return "".join(parts)


def rest(stored: str | bytes | None) -> str | None:
    """The JSON text of a stored dump, with null where its call's inputs or output hold the value."""
    return _decompress(stored).rpartition("\n")[0] if isinstance(stored, bytes) else stored


def unpack(stored: str | bytes | None, inputs: str | None, output: str | None) -> str | None:
    """The JSON text of a stored dump."""
    if not isinstance(stored, bytes):
        return stored
    text, _, holes = _decompress(stored).rpartition("\n")
    if not holes:
        return text
    parts: list[str] = []
    done = 0
    for at, column, start, end in orjson.loads(holes):
        parts += (text[done:at], ((inputs, output)[column] or "")[start:end])
        done = at + 4
    return "".join((*parts, text[done:]))


def add_functions(raw: sqlite3.Connection) -> None:
    """What statements read dumps and checksums by."""
    raw.create_function("span_rest", 1, rest, deterministic=True)
    raw.create_function("span_dump", 3, unpack, deterministic=True)
    raw.create_function("checksum", -1, _checksum_of_read, deterministic=True)


def dump_source(item: CallField) -> str:
    """The SQL of the JSON text that has the value of a field of `otel_dump`."""
    return WHOLE_DUMP if needs_output(item) else _REST


def needs_output(item: CallField) -> bool:
    """Whether a field of `otel_dump` may lie in what dumps leave to their calls."""
    path = ".".join(item.path)
    return any(f"{path}.".startswith(f"{one}.") or f"{one}.".startswith(f"{path}.") for one in _PATHS) or not path


def set_apart(raw: sqlite3.Connection, rids: Sequence[int]) -> None:
    """Before the output of calls changes: let their dumps hold all of it themselves."""
    query = """SELECT bi.rid, bi.otel_dump, bi.inputs, bo.output FROM body_in bi JOIN body_out bo ON bo.rid = bi.rid
        WHERE bi.rid IN (SELECT value FROM json_each(?)) AND typeof(bi.otel_dump) = 'blob'"""
    rows: list[Any] = raw.execute(query, (orjson.dumps(list(rids)).decode(),)).fetchall()
    changed = [(pack(unpack(*row[1:]) or ""), row[0]) for row in rows]
    raw.executemany("UPDATE body_in SET otel_dump = ? WHERE rid = ?", changed)
    changes = f"UPDATE body_in SET {COLUMN} = {checksum_sql(dict.fromkeys(BODY_IN, 'TEXT'))} WHERE rid = ?"
    raw.executemany(changes, [(rid,) for _, rid in changed])
