"""Fetching whole calls by row number: head columns, the JSON texts that were asked for, and what lies in files."""

import sqlite3
from collections.abc import Callable, Sequence

from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.schema import stored_name
from heddle.wire.calls import BODY_IN, BODY_OUT, COLUMNS, CallRow, DumpSlice

_COLUMNS = [column for column in COLUMNS if not column.is_body]
_HEAD = ", ".join(
    ("c.rid", "c.size_in + c.size_out", "c.spilled", *(f"c.{stored_name(column)}" for column in _COLUMNS))
)
_NUMBERED = [place for place, column in enumerate(_COLUMNS) if column.is_repeated]
_BODIES_AT = 3 + len(_COLUMNS)
ReadFile = Callable[[str], str]
_DUMP_BYTES = 4 * 1024 * 1024


def fetch(
    raw: sqlite3.Connection, names: NameReader, rids: Sequence[int], columns: frozenset[str], read_file: ReadFile | None
) -> list[CallRow]:
    """The calls of the row numbers, in that order; a row that was removed meanwhile is left out.

    Without `read_file` large texts stay as the row has them.
    """
    ins = [name for name in BODY_IN if name in columns]
    outs = [name for name in BODY_OUT if name in columns]
    wanted = [_HEAD, *(f"bi.{name}" for name in ins), *(f"bo.{name}" for name in outs)]
    source = "calls c" + (" LEFT JOIN body_in bi ON bi.rid = c.rid" if ins else "")
    source += " LEFT JOIN body_out bo ON bo.rid = c.rid" if outs else ""
    listed = ",".join(map(str, rids))
    found: dict[int, CallRow] = {}
    for values in raw.execute(f"SELECT {', '.join(wanted)} FROM {source} WHERE c.rid IN ({listed})"):
        head = list(values[3:_BODIES_AT])
        for place in _NUMBERED:
            head[place] = names.text(raw, head[place])
        row = CallRow(values[0], values[1], *head)
        for name, value in zip((*ins, *outs), values[_BODIES_AT:], strict=True):
            setattr(row, name, value)
        if values[2] and read_file is not None:
            _unspill(raw, row, columns, read_file)
        found[row.rid] = row
    return [found[rid] for rid in rids if rid in found]


def otel_dumps(raw: sqlite3.Connection, project: int | None, ids: Sequence[str], containing: str) -> DumpSlice:
    """The dumps of live calls in the order of the ids, until they hold `_DUMP_BYTES` characters."""
    query = """SELECT c.trace_id, bi.otel_dump FROM calls c JOIN body_in bi ON bi.rid = c.rid
        WHERE c.id = ? AND c.project = ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL
        AND bi.otel_dump IS NOT NULL"""
    query += " AND instr(bi.otel_dump, ?) > 0" if containing else ""
    extra = (containing,) if containing else ()
    found: list[tuple[str, str, str]] = []
    size = 0
    for read, call_id in enumerate(ids, 1):
        row = raw.execute(query, (call_id, project, *extra)).fetchone()
        if row is not None:
            found.append((call_id, row[0], row[1]))
            size += len(row[1])
            if size >= _DUMP_BYTES:
                return DumpSlice(found, read)
    return DumpSlice(found, len(ids))


def _unspill(raw: sqlite3.Connection, row: CallRow, columns: frozenset[str], read_file: ReadFile) -> None:
    """Put the whole texts of large fields back in the place of their shortened ones."""
    for name, blob in raw.execute("SELECT field, blob FROM call_files WHERE rid = ?", (row.rid,)):
        if name in columns:
            setattr(row, name, read_file(blob))


def trace_sizes(raw: sqlite3.Connection, project: int, rows: Sequence[CallRow]) -> None:
    """Fill `trace_size` of root calls: the stored bytes of all live calls of their trace."""
    for row in rows:
        if row.parent_id is None:
            query = """SELECT sum(size_in + size_out) FROM calls
                WHERE trace_id = ? AND project = ? AND deleted_at IS NULL AND started_at IS NOT NULL"""
            row.trace_size = int(raw.execute(query, (row.trace_id, project)).fetchone()[0] or 0)
