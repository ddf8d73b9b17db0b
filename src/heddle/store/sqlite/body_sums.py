"""Checksums of the bodies of calls: SQLite's pages have none, and a flipped bit of a text makes another text."""

import sqlite3
from collections.abc import Sequence
from zlib import crc32

from heddle.wire.calls import BODY_IN, BODY_OUT

COLUMN = "crc"
BODIES = {"body_in": BODY_IN, "body_out": BODY_OUT}


def body_sum(values: Sequence[str | bytes | None]) -> int:
    """CRC-32 over the columns of a body, in the order of their table."""
    found = 0
    for value in values:
        if value:
            found = crc32(value.encode() if isinstance(value, str) else value, found)
    return found


def sum_of(table: str) -> str:
    """The SQL of what the checksum of a row must be; as bytes, for what is damaged may be no text."""
    return f"body_sum({', '.join(f'CAST({name} AS BLOB)' for name in BODIES[table])})"


def add_functions(raw: sqlite3.Connection) -> None:
    """What `sum_of` calls."""
    raw.create_function("body_sum", -1, lambda *values: body_sum(values), deterministic=True)
