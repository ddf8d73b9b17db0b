"""Rows of calls and their usage, read by their numbers."""

import json
import sqlite3
from collections.abc import Callable, Sequence

from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.schema import stored_name
from heddle.store.sqlite.span_dumps import WHOLE_DUMP
from heddle.wire.calls import (
    BODY_IN,
    BODY_OUT,
    COLUMNS,
    CallRow,
    Usage,
)

_COLUMNS = [column for column in COLUMNS if not column.is_body]
_HEAD = ", ".join(
    ("c.spilled", "c.rid", "c.size_in + c.size_out", *(f"c.{stored_name(column)}" for column in _COLUMNS))
)
_NUMBERED = [place for place, column in enumerate(_COLUMNS, 2) if column.is_repeated]
_SELECTED = {"otel_dump": WHOLE_DUMP}
ReadFile = Callable[[str], str]


def fetch(
    raw: sqlite3.Connection, names: NameReader, rids: Sequence[int], columns: frozenset[str], read_file: ReadFile | None
) -> list[CallRow]:
    """The calls of the row numbers, in that order; a row that was removed meanwhile is left out.

    Without `read_file` large texts stay as the row has them.
    """
    wanted, source = [_HEAD], "calls c"
    read = columns | {"output"} if "otel_dump" in columns else columns
    for table, alias, bodies in (("body_in", "bi", BODY_IN), ("body_out", "bo", BODY_OUT)):
        wanted += (_SELECTED.get(name, f"{alias}.{name}") if name in columns else "NULL" for name in bodies)
        source += "" if read.isdisjoint(bodies) else f" LEFT JOIN {table} {alias} ON {alias}.rid = c.rid"
    sql = f"SELECT {', '.join(wanted)} FROM {source} WHERE c.rid IN (SELECT value FROM json_each(?))"
    found: dict[int, CallRow] = {}
    for spilled, *values in raw.execute(sql, (json.dumps(list(rids)),)):
        for place in _NUMBERED:
            values[place] = names.text(raw, values[place])
        row = found[values[0]] = CallRow(*values)
        if spilled and read_file is not None:
            # The whole texts of large fields in the place of their shortened ones.
            for name, blob in raw.execute("SELECT field, blob FROM call_files WHERE rid = ?", (row.rid,)):
                if name in columns:
                    setattr(row, name, read_file(blob))
    return [found[rid] for rid in rids if rid in found]


def trace_sizes(raw: sqlite3.Connection, project: int, rows: Sequence[CallRow]) -> None:
    """Fill `trace_size` of root calls: the stored bytes of all live calls of their trace."""
    for row in rows:
        if row.parent_id is None:
            query = """SELECT sum(size_in + size_out) FROM calls
                WHERE trace_id = ? AND project = ? AND deleted_at IS NULL AND started_at IS NOT NULL"""
            row.trace_size = int(raw.execute(query, (row.trace_id, project)).fetchone()[0] or 0)


def read_usage(
    raw: sqlite3.Connection, names: NameReader, project: int | None, calls: Sequence[tuple[int, int]]
) -> dict[int, list[Usage]]:
    """The usage of some calls, (row number, start), by row number."""
    found: dict[int, list[Usage]] = {}
    if not calls:
        return found
    listed, starts = json.dumps([rid for rid, _ in calls]), [started_at for _, started_at in calls]
    sql = """SELECT rid, model, requests, prompt, completion, total, cache_read, cache_creation FROM usage
        WHERE project = ? AND started_at BETWEEN ? AND ? AND rid IN (SELECT value FROM json_each(?))"""
    for rid, model, *numbers in raw.execute(sql, (project, min(starts), max(starts), listed)):
        found.setdefault(rid, []).append(Usage(names.text(raw, model) or "", *numbers))
    return found
