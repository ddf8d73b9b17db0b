"""What routes over stored rows share: requests, the purge by ids, and the rows as answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.http.parameters import page_limit
from heddle.http.routing import ProjectReq, ResponseModel, answer
from heddle.settings import Settings
from heddle.store.control.row_queries import Row, RowRequest, Selection, Sort
from heddle.trace.calls.models import PageReq
from heddle.wire import jsontext, refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.query import Compare, Field, In, Literal, Operand, Operation, Or, QueryBody

MAX_FIELDS = 500


class RowQueryReq(PageReq):
    """A selection of a small table's rows."""

    fields: list[str] | None = None
    query: QueryBody | None = None

    def selection(self, settings: Settings, fields: Sequence[str] | None) -> RowRequest:
        """The request in the store's terms; raises TooLarge for a limit beyond the setting max_page_rows."""
        count = len(self.fields or ())
        if count > MAX_FIELDS:
            raise InvalidRequest(f"fields has {count} entries; at most {MAX_FIELDS} are allowed")
        sorts = None if self.sort_by is None else [Sort(term.field, term.direction == "desc") for term in self.sort_by]
        return RowRequest(fields, self.query, sorts, page_limit(settings, self.limit), self.offset)


def answer_rows(name: str, found: Selection, describe: Callable[[Row], Row] | None = None, **others: Any) -> Response:
    """The rows as the list `name` of a JSON object, before `others`; those of a long list are sent as they are read."""

    def shown(rows: list[Row]) -> list[Row]:
        return rows if describe is None else [describe(row) for row in rows]

    rest = found.rest
    if rest is None:
        return answer({name: shown(found.rows), **others})

    async def slices() -> AsyncIterator[list[Row]]:
        yield shown(found.rows)
        async for rows in rest:
            yield shown(rows)

    return send_list(name, slices(), **others)


async def answer_slices(
    name: str, slices: AsyncIterator[list[Any]], ending: Callable[[], Json] = dict, **others: Any
) -> Response:
    """What `send_list` sends, at once where it is one slice; what can be refused is refused with the first."""
    first: list[Any] = await anext(slices, [])
    second = await anext(slices, None)
    if second is None:
        return answer({name: first, **others, **ending()})
    return send_list(name, _joined(first, second, slices), ending, **others)


async def _joined(first: list[Any], second: list[Any], rest: AsyncIterator[list[Any]]) -> AsyncIterator[list[Any]]:
    yield first
    yield second
    async for values in rest:
        yield values


def send_list(
    name: str, slices: AsyncIterator[list[Any]], ending: Callable[[], Json] = dict, **others: Any
) -> StreamingResponse:
    """A JSON object with a list `name` that is sent slice by slice; refs in external form.

    A slice is emptied once it is written. Behind the list stand `others`, and what `ending` tells once it is sent.
    """

    async def write() -> AsyncIterator[bytes]:
        before = jsontext.dumps_bytes({name: []})[:-2]
        async for values in slices:
            if values:
                written = before + await asyncio.to_thread(_write_items, values)
                values.clear()  # whoever made them holds them while the client reads
                yield written
                before = b","
        more = {**others, **ending()}
        ends = jsontext.dumps_bytes(more)[1:]
        yield (before if before != b"," else b"") + (b"]," if more else b"]") + refs.convert_out(ends)

    return StreamingResponse(write(), media_type="application/json")


def _write_items(values: Sequence[Any]) -> bytes:
    return refs.convert_out(jsontext.dumps_bytes(values))[1:-1]


class TimeRangeReq(ProjectReq):
    """A range of time in buckets; it ends now unless it says otherwise."""

    start: datetime
    end: datetime | None = None
    granularity: int | None = None
    timezone: str | None = "UTC"

    def bounds(self, most_days: int) -> tuple[int, int]:
        """Start and end in microseconds; raises ValidationFailed for a range that ends too early, or is too long."""
        start, end = times.to_micros(self.start), times.now() if self.end is None else times.to_micros(self.end)
        if end < start or end - start > most_days * times.DAY:
            told = f"end must be after start, and the range at most {most_days} days"
            raise ValidationFailed.at(["body", "end"], told)
        return start, end


class TimeRangeRes(ResponseModel):
    """The range of an answer, and the width of its buckets in seconds."""

    start: datetime
    end: datetime
    granularity: int
    timezone: str


class PurgeReq(ProjectReq):
    """Rows to delete for good, named by their ids."""

    query: QueryBody


def purge_ids(query: Operation, message: str, lists: bool) -> list[str]:
    """The ids of `$eq [id, text]` or `$or` of those, with `lists` also `$in [id, [texts]]`.

    Every other query is refused with InvalidRequest, so that nobody deletes by accident what a filter happens to match.
    """
    if isinstance(query, Or):
        return [_one_id(item, message) for item in query.operands]
    if lists and isinstance(query, In) and query.left == Field("id"):
        return [_text(item, message) for item in query.items]
    return [_one_id(query, message)]


def _one_id(operand: Operand, message: str) -> str:
    if isinstance(operand, Compare) and operand.op == "eq" and operand.left == Field("id"):
        return _text(operand.right, message)
    raise InvalidRequest(message)


def _text(operand: Operand, message: str) -> str:
    if isinstance(operand, Literal) and isinstance(operand.value, str):
        return operand.value
    raise InvalidRequest(message)
