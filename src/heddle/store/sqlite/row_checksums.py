"""Checksums of rows: SQLite's pages have none, and a flipped bit of a number makes another number.

A row of a control table has its own by triggers of the connections that write. Rows of calls and of trials get theirs
from what writes them: a trigger would cost a third of an insert.
"""

import sqlite3
import time
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import DDLCompiler

from heddle.store.control.repository import metadata
from heddle.store.sqlite.call_bodies import COLUMN, add_functions, checksum_sql
from heddle.store.sqlite.connection import connect

UNCHECKED = frozenset(("table_rows", "table_chunks", "agent_spans"))
"""Control tables whose values have digests, and one whose writer makes the checksums."""
_TABLES = f"""SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
    WHERE m.type = 'table' AND c.name = '{COLUMN}' AND m.name NOT IN ('calls', 'body_in', 'body_out', 'agent_spans')
    ORDER BY m.name"""
_DAMAGE_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 20_000


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
    """Keep the checksums of control tables that this connection writes to."""
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


def damage_queries(raw: sqlite3.Connection) -> dict[str, str]:
    """What is damaged in each table whose rows have checksums of all their columns, and the query that counts it."""
    queries = {}
    for (table,) in raw.execute(_TABLES).fetchall():
        columns = columns_of(raw, table)
        types = ", ".join(f'typeof("{name}")' for name, type in columns.items() if type == "TEXT")
        # An empty text and an empty blob have the same bytes.
        damaged = f"{COLUMN} <> {checksum_sql(columns)}" + (f" OR 'blob' IN ({types})" if types else "")
        queries[f"damaged rows of {table}"] = f"SELECT count(*) FROM {table} WHERE {damaged}"
    return queries


def find_damage(database: Path) -> str:
    """Which rows are damaged, as far as two seconds of looking tell; empty for none. Looks once in ten seconds."""
    return _find_damage(database, int(time.monotonic() // 10))


@lru_cache(maxsize=8)
def _find_damage(database: Path, _moment: int) -> str:
    ends = time.monotonic() + _DAMAGE_SECONDS
    try:
        with closing(connect(database, is_read_only=True)) as raw:
            add_functions(raw)
            raw.set_progress_handler(lambda: time.monotonic() > ends, _STEPS_BETWEEN_LOOKS)
            for what, query in damage_queries(raw).items():
                if found := raw.execute(query).fetchone()[0]:
                    return f"{found} {what}"
    except sqlite3.DatabaseError as error:
        return "" if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT else str(error)
    return ""
