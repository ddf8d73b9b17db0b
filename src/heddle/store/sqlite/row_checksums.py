"""Checksums of rows: SQLite's pages have none, and a flipped bit of a number makes another number.

A row of a control table has its own by triggers of the connection that writes. Rows of calls and of trials get theirs
from what writes them: a trigger would cost a third of an insert.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import DDLCompiler

from heddle.store.control.repository import metadata

COLUMN = "crc"
"""The column of the checksum; null in rows of older versions."""
UNCHECKED = frozenset(("table_rows", "table_chunks", "agent_spans", "agent_traces"))
"""Control tables whose values have digests, and those that follow from calls."""
CHECKED_TABLES = f"""SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
    WHERE m.type = 'table' AND c.name = '{COLUMN}' ORDER BY m.name"""
"""The query of the tables whose rows have checksums."""


def checksum(values: Iterable[str | bytes | float | None]) -> int:
    """CRC-32 over the values of a row, in the order of its columns."""
    known = [value if isinstance(value, bytes) else str(value).encode() for value in values if value is not None]
    return crc32(b"".join(known))


def add_function(raw: sqlite3.Connection) -> None:
    """What statements and triggers call."""
    raw.create_function("checksum", -1, lambda *values: checksum(values), deterministic=True)


def checksum_sql(columns: Mapping[str, str], row: str = "") -> str:
    """The SQL of the checksum of a row from the types of its columns; as bytes, for what is damaged may be no text."""
    values = [_value(f'{row}"{name}"', type) for name, type in columns.items()]
    return f"checksum({', '.join(values)})"


def _value(name: str, type: str) -> str:
    # The text of a float is shorter than the float.
    exact = type not in ("TEXT", "INTEGER", "BIGINT")
    return f"iif(typeof({name}) = 'real', {name}, CAST({name} AS BLOB))" if exact else f"CAST({name} AS BLOB)"


def columns_of(raw: sqlite3.Connection, table: str) -> dict[str, str]:
    """The columns that a checksum is made of, with their types."""
    found = raw.execute("SELECT name, type FROM pragma_table_info(?) ORDER BY cid", (table,))
    return {name: type for name, type in found if name != COLUMN}


@compiles(CreateTable, "sqlite")
def _create_with_checksum(element: CreateTable, compiler: DDLCompiler, **options: Any) -> str:
    text: str = compiler.visit_create_table(element, **options)  # type: ignore[no-untyped-call]
    return text if element.element.name in UNCHECKED else text.replace("(", f"({COLUMN} INTEGER, ", 1)


def renew(raw: sqlite3.Connection) -> None:
    """Give every row of a control table the checksum of what is in it now, as its table may have been changed."""
    for table in sorted(metadata.tables.keys() - UNCHECKED):
        if not raw.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, COLUMN)).fetchone():
            raw.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN} INTEGER")
        raw.execute(f"UPDATE {table} SET {COLUMN} = {checksum_sql(columns_of(raw, table))}")


def watch(raw: sqlite3.Connection) -> None:
    """Keep the checksums of control tables while this connection, the only one that writes, is open."""
    for table in sorted(metadata.tables.keys() - UNCHECKED):
        columns = columns_of(raw, table)
        query = "SELECT c.name FROM pragma_table_list(?) t JOIN pragma_table_info(t.name) c WHERE t.wr AND c.pk > 0"
        keys = [f'"{name}"' for (name,) in raw.execute(query, (table,))] or ["rowid"]
        where = " AND ".join(f"{key} = NEW.{key}" for key in keys)
        names, new = ", ".join(f'"{name}"' for name in columns), checksum_sql(columns, "NEW.")
        # What did not fit before does not fit afterwards, either.
        change = f"OLD.{COLUMN} - {checksum_sql(columns, 'OLD.')} + {new}"
        for name, event, value in (("made", "INSERT", new), ("changed", f"UPDATE OF {names}", change)):
            raw.execute(
                f"""CREATE TEMP TRIGGER IF NOT EXISTS {table}_checksum_{name} AFTER {event} ON main.{table}
                BEGIN UPDATE {table} SET {COLUMN} = {value} WHERE {where}; END"""
            )
