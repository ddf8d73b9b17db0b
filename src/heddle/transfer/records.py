"""Calls and tables of rows as records of an archive, and back."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from heddle.store.base import Store
from heddle.store.control.table_rows import chunk_digests, find, table_columns
from heddle.trace.calls.packing import shortened, usage_entries, usage_of_span
from heddle.trace.otel.reading import is_request
from heddle.transfer.archive import Row
from heddle.wire import jsontext, refs
from heddle.wire.calls import (
    BODY_IN,
    BODY_OUT,
    COLUMNS,
    SPILLABLE,
    STATUS_WORDS,
    CallRow,
    ColumnType,
    End,
    Start,
    Usage,
)

INTEGERS = tuple(
    item.name
    for item in COLUMNS
    if item.type in (ColumnType.INTEGER, ColumnType.INSTANT) and item.name != "status"  # a word in archives
)
_STARTED = [item.name for item in COLUMNS if not (item.of_end or item.is_body or item.is_derived)]
_ENDED = [item.name for item in COLUMNS if item.of_end and not item.is_body]
Keep = Callable[[str], str]
"""Stores a text as a blob; returns its key."""
_PAGE = 500
_UNFINISHED = "unfinished:"


def call_record(project: str, row: CallRow) -> Row:
    """A call as a record; JSON fields are its texts exactly as they are stored."""
    named = {item.name: getattr(row, item.name) for item in COLUMNS if not item.is_derived}
    return {"project": project, **named, "status": STATUS_WORDS[row.status]}


def call_halves(record: Row, large: int, keep: Keep) -> tuple[Start, End | None]:
    """The halves of a record, without an end for a call that was running; texts over `large` become blobs."""
    started: Row = {name: record.get(name) for name in _STARTED} | {"user": record["user"] or ""}
    start = Start(project=record["project"], inputs="", attributes="", **started)
    texts = {name: _Text(name, record[name], large, keep) for name in SPILLABLE if record[name] is not None}
    _set_texts(start, texts, BODY_IN)
    start.refs = texts["inputs"].refs
    if record["ended_at"] is None:
        return start, None
    ended: Row = {name: record.get(name) for name in _ENDED} | {"status": STATUS_WORDS.index(record["status"])}
    end = End(project=start.project, id=start.id, output=None, summary="", exception=record["exception"], **ended)
    end.usage = _usage(record) if '"usage"' in record["summary"] else []
    _set_texts(end, texts, BODY_OUT)
    end.refs = texts["output"].refs if "output" in texts else []
    return start, end


def _usage(record: Row) -> list[Usage]:
    """The tokens of a call, as they were counted when it came; a span counts otherwise than an SDK's call."""
    summary, dump = orjson.loads(record["summary"]), record["otel_dump"]
    if dump is None:
        return usage_entries(summary)
    span = jsontext.loads(dump.encode(), max_depth=10_000)
    return usage_of_span(summary, isinstance(span, dict) and is_request(span))


class _Text:
    """A JSON text on its way into a row: what the row holds, the blob with the whole where it is large, its refs."""

    def __init__(self, name: str, text: str, large: int, keep: Keep) -> None:
        self.size = len(text)
        self.text, self.blob = text, ""
        self.refs: list[str] = []
        has_refs = name in ("inputs", "output") and refs.INTERNAL in text
        if not has_refs and self.size <= large:
            return
        value = jsontext.loads(text.encode(), max_depth=10_000)
        if has_refs:
            self.refs = list(dict.fromkeys(refs.find(value)))
        if self.size > large:
            self.text, self.blob = jsontext.dumps(shortened(value)), keep(text)


def _set_texts(half: Start | End, texts: dict[str, _Text], names: tuple[str, ...]) -> None:
    for name in names:
        if name in texts:
            setattr(half, name, texts[name].text)
            half.size += texts[name].size
            if texts[name].blob:
                half.files[name] = texts[name].blob


class StoredTable(NamedTuple):
    """A table as it is listed."""

    number: int
    digest: str
    row_count: int


async def stored_tables(store: Store, project: str) -> AsyncIterator[StoredTable]:
    """The whole tables of a project, as they were made."""
    last = -1
    while True:
        wanted = sa.select(table_columns.number, table_columns.digest, table_columns.row_count)
        whole = sa.not_(table_columns.digest.startswith(_UNFINISHED))
        wanted = wanted.where(table_columns.project == project, table_columns.number > last, whole)
        page = wanted.order_by(table_columns.number).limit(_PAGE)
        found = await store.control.read(lambda c, page=page: [StoredTable(*row) for row in c.execute(page)])  # type: ignore[misc]
        for table in found:
            yield table
            last = table.number
        if len(found) < _PAGE:
            return


async def chunks(store: Store, table: StoredTable) -> AsyncIterator[tuple[int, list[str]]]:
    """Number and row digests of each chunk of a table."""
    chunk = 0
    while True:
        found = await store.control.read(lambda c, n=chunk: list(chunk_digests(c, table.number, n, n + 1)))  # type: ignore[misc]
        if not found:
            return
        yield chunk, found[0][1]
        chunk += 1


@dataclass(slots=True)
class PartialTable:
    """A table whose chunks are read from an archive one after the other."""

    project: str
    digest: str
    row_count: int
    row_digests: list[str]

    @property
    def is_whole(self) -> bool:
        """True when every chunk has come."""
        return len(self.row_digests) >= self.row_count


def chunk_record(project: str, table: StoredTable, chunk: int, row_digests: Sequence[str]) -> Row:
    """One chunk of a table as a record."""
    named = {"project": project, "digest": table.digest, "row_count": table.row_count, "chunk": chunk}
    return named | {"row_digests": list(row_digests)}


def row_record(project: str, digest: str, text: str) -> Row:
    """One row as a record."""
    return {"project": project, "digest": digest, "val": text}


async def is_table_stored(store: Store, project: str, digest: str) -> bool:
    """True when the project has the table."""
    return await store.control.read(lambda connection: find(connection, project, digest)) is not None
