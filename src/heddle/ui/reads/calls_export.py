"""Calls as a file: JSONL, CSV or Parquet, written while it is read, however many there are."""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.http import PricesDep, Reader, StoreDep, answer, group
from heddle.request_body import validated
from heddle.ui.reads import calls_parquet
from heddle.ui.reads.calls_query import Chosen, query_of
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import STATUS_WORDS, CallRow, SortTerm

router = group("Pages")
T = TypeVar("T")
_writing = ThreadPoolExecutor(1, "heddle-export")
"""Exports take turns, a slice each: they are the longest answers, and nobody's calls wait for them."""

JSON_COLUMNS = ("inputs", "output", "attributes", "summary")
_CHOSEN: TypeAdapter[Chosen] = TypeAdapter(Chosen)
_KINDS = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_ORDER = (SortTerm("started_at", True), SortTerm("id", True))
Record = dict[str, Any]


@router.get("/_ui/api/calls/export", include_in_schema=False)
async def export(request: Request, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """The selected calls, newest first: `format` jsonl, csv or parquet, `chosen` the selection as JSON.

    `check` answers only whether the format can be written here.
    """
    asked = request.query_params
    kind = asked.get("format", "jsonl")
    if kind not in _KINDS:
        raise InvalidRequest(f"There is no format {kind[:40]!r}; known are {', '.join(_KINDS)}")
    if kind == "parquet":
        calls_parquet.insist()
    if "check" in asked:
        return answer({})
    # What stands in the address is not converted on the way in, as bodies are.
    body = validated(_CHOSEN, refs.convert_in(_json(asked.get("chosen", "")), caller.may_read))
    query = replace(
        await query_of(store, prices, caller, body), sort=_ORDER, columns=frozenset((*JSON_COLUMNS, "exception"))
    )
    records = (await _aside(_records, slice_) async for slice_ in store.calls.stream(query))
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", body.project_id.partition("/")[2]) or "project"
    headers = {"Content-Disposition": f'attachment; filename="{name}-calls.{kind}"', "Cache-Control": "no-store"}
    return StreamingResponse(_WRITERS[kind](records), media_type=_KINDS[kind], headers=headers)


def _json(text: str) -> Any:
    """The value of a parameter; raises InvalidRequest."""
    try:
        return jsontext.loads(text.encode("utf-8", "replace"))
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


async def _aside(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_writing, work, *arguments)


async def _jsonl(records: AsyncIterator[list[Record]]) -> AsyncIterator[bytes]:
    async for batch in records:
        yield await _aside(_lines, batch)


def _lines(batch: list[Record]) -> bytes:
    lines = ({**record, **{name: orjson.Fragment(record[name]) for name in JSON_COLUMNS}} for record in batch)
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


async def _csv(records: AsyncIterator[list[Record]]) -> AsyncIterator[bytes]:
    started = False
    async for batch in records:
        yield await _aside(_table, batch, not started and bool(batch))
        started = started or bool(batch)


def _table(batch: list[Record], has_head: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    if has_head:
        writer.writerow(batch[0])
    writer.writerows([_cell(value) for value in record.values()] for record in batch)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """JSON columns as texts; what a spreadsheet would run as a formula gets an apostrophe in front."""
    text = value.decode() if isinstance(value, bytes) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


_WRITERS = {"jsonl": _jsonl, "csv": _csv, "parquet": calls_parquet.write}
