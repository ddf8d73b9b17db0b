"""Calls as a file: JSONL, CSV or Parquet, however many there are; only CSV is read whole before it is written."""

import asyncio
import csv
import io
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import IO, Annotated, Any, TypeVar

import orjson
from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from heddle.auth import Caller
from heddle.errors import ExtraMissing, InvalidRequest, ValidationFailed
from heddle.extras import install_command
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import PricesDep, Reader, StoreDep, answer, group, parse_body, validate
from heddle.ui.reads.calls import Chosen, escape_name, query_of
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import STATUS_WORDS, CallRow, SortTerm

router = group("Pages")
T = TypeVar("T")
_writing = ThreadPoolExecutor(1, "heddle-export")
"""Exports take turns, a slice each: they are the longest answers, and nobody's calls wait for them."""

JSON_COLUMNS = ("inputs", "output", "attributes", "summary")
_COLUMNS = {
    **dict.fromkeys(("id", "trace_id", "parent_id", "op_name", "name", "status"), "string"),
    **dict.fromkeys(("started_at", "ended_at"), "instant"),
    "seconds": "double",
    **dict.fromkeys(("user", "thread_id", "exception", *JSON_COLUMNS), "string"),
}
"""Those of a Parquet file."""
_CHOSEN: TypeAdapter[Chosen] = TypeAdapter(Chosen)
_KINDS = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_ORDER = (SortTerm("started_at", True), SortTerm("id", True))
Record = dict[str, Any]
_GROUP_ROWS = 2000
_MOST_COLUMNS = 2000
_GROUP_BYTES = 16 * 1024 * 1024


@router.get("/_ui/api/calls/export", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def export(
    caller: Reader,
    store: StoreDep,
    prices: PricesDep,
    kind: Annotated[str, Query(alias="format")] = "jsonl",
    chosen: str = "",
    check: str | None = None,
) -> Response:
    """The selected calls, newest first: `format` jsonl, csv or parquet, `chosen` the selection as JSON.

    `check` answers only what is missing here to write the format.
    """
    if kind not in _KINDS:
        raise InvalidRequest(f"Unknown format {kind[:40]!r}; expected one of {', '.join(_KINDS)}")
    missing = missing_package() if kind == "parquet" else None
    if check is not None:
        return answer({"missing": missing})
    if missing is not None:
        raise ExtraMissing(missing)
    # What stands in the address is not converted on the way in, as bodies are.
    body = validate(_CHOSEN, _parse(chosen, caller))
    query = replace(
        await query_of(store, prices, caller, body), sort=_ORDER, columns=frozenset((*JSON_COLUMNS, "exception"))
    )
    records = (await _in_turn(_records, slice_) async for slice_ in store.calls.stream(query))
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", body.project_id.partition("/")[2]) or "project"
    headers = {"Content-Disposition": f'attachment; filename="{name}-calls.{kind}"', "Cache-Control": "no-store"}
    return StreamingResponse(_WRITERS[kind](records), media_type=_KINDS[kind], headers=headers)


def _parse(text: str, caller: Caller) -> Any:
    """The value of a parameter; raises InvalidRequest."""
    try:
        return parse_body(text.encode("utf-8", "replace"), caller)
    except ValidationFailed:
        raise InvalidRequest("The parameter chosen must be JSON") from None


def _records(calls: Iterable[CallRow]) -> list[Record]:
    return [_record(call) for call in calls]


def _record(call: CallRow) -> Record:
    """A call with the JSON columns as texts, refs in external form."""
    texts = {name: refs.convert_out((getattr(call, name) or "null").encode()) for name in JSON_COLUMNS}
    return {
        "id": call.id,
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "op_name": orjson.loads(refs.convert_out(orjson.dumps(call.op_name))),
        "name": call.display_name or refs.operation_name(call.op_name),
        "status": STATUS_WORDS[call.status],
        "started_at": times.to_iso(call.started_at),
        "ended_at": times.optional_iso(call.ended_at),
        "seconds": None if call.ended_at is None else (call.ended_at - call.started_at) / times.SECOND,
        "user": call.user,
        "thread_id": call.thread_id,
        "exception": call.exception,
        **texts,
    }


async def _in_turn(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_writing, work, *arguments)


async def _jsonl(records: AsyncIterator[list[Record]]) -> AsyncIterator[bytes]:
    async for batch in records:
        yield await _in_turn(_lines, batch)


def _lines(batch: list[Record]) -> bytes:
    lines = ({**record, **{name: orjson.Fragment(record[name]) for name in JSON_COLUMNS}} for record in batch)
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


async def _csv(records: AsyncIterator[list[Record]]) -> AsyncIterator[bytes]:
    """A column per field of the JSON columns, named by its path; a file holds the rows until all columns are known."""
    with tempfile.SpooledTemporaryFile(_GROUP_BYTES) as file:
        rows = _Rows(file)
        async for batch in records:
            await _in_turn(rows.hold, batch)
        file.seek(0)
        columns = sorted(rows.columns, key=_place)
        head = [columns]
        while lines := await _in_turn(lambda: [*islice(file, _GROUP_ROWS)]):
            yield await _in_turn(_table, head, lines, columns)
            head = []


class _Rows:
    """Flattened calls in a file, and the columns that they have."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.columns: dict[str, None] = {}
        self._paths = set(JSON_COLUMNS)

    def hold(self, batch: list[Record]) -> None:
        """Take more calls."""
        for record in batch:
            row: Record = {name: value for name, value in record.items() if name not in JSON_COLUMNS}
            for name in JSON_COLUMNS:
                self._flatten(orjson.loads(record[name]), name, row)
            self.columns.update(dict.fromkeys(row))
            self.file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def _flatten(self, value: Any, path: str, row: Record) -> None:
        """The values of objects by their paths; where there are too many, objects with new ones stay JSON."""
        pending = [(path, value)]
        while pending:
            name, found = pending.pop()
            is_object = isinstance(found, dict)
            inner = [(f"{name}.{escape_name(key)}", item) for key, item in found.items()] if is_object else []
            fresh = {one for one, _ in inner} - self._paths
            if inner and (not fresh or len(self._paths) + len(fresh) <= _MOST_COLUMNS):
                self._paths |= fresh
                pending += reversed(inner)
            elif found is not None:
                row[name] = jsontext.dumps(found) if isinstance(found, (dict, list)) else found


def _place(column: str) -> tuple[int, str]:
    name = column.partition(".")[0]
    return (JSON_COLUMNS.index(name) + 1, column) if name in JSON_COLUMNS else (0, "")


def _table(head: list[list[str]], lines: list[bytes], columns: list[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows(head)
    for line in lines:
        row = orjson.loads(line)
        writer.writerow([_cell(row.get(name)) for name in columns])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """What a spreadsheet would run as a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


def missing_package() -> str | None:
    """What to install for Parquet; None where pyarrow is here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return f"Parquet needs pyarrow on the server: {install_command('parquet')}"
    return None


class _Sink(io.RawIOBase):
    """A file that only grows, read away as it is written."""

    def __init__(self) -> None:
        self._waiting, self._size = bytearray(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._waiting += part
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def take(self) -> bytes:
        """What came since the last time."""
        data = bytes(self._waiting)
        self._waiting.clear()
        return data


async def _parquet(records: AsyncIterator[list[Record]]) -> AsyncIterator[bytes]:
    """The file in pieces; memory holds one row group."""
    from heddle.transfer.parquet import ParquetFile

    sink = _Sink()
    file = ParquetFile(sink, _COLUMNS)

    def add(batch: list[Record]) -> bytes:
        for record in batch:
            file.add(_row(record))
        return sink.take()

    async for batch in records:
        if data := await asyncio.to_thread(add, batch):
            yield data
    await asyncio.to_thread(file.close)
    yield sink.take()


def _row(record: Record) -> Record:
    row = {name: value.decode() if isinstance(value, bytes) else value for name, value in record.items()}
    for name in ("started_at", "ended_at"):
        row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    return row


_WRITERS = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}
