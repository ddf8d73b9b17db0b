"""Tables: lists of rows, addressed by the digest of the rows in their order."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from heddle.auth import Scope
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.http import (
    Reader,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    inlined_body,
    local,
    not_negative,
    page_limit,
)
from heddle.request_body import OFF_LOOP_BYTES, off_loop, parse_body, validated
from heddle.store.control.tables import TableRow
from heddle.trace.table_models import (
    Row,
    TableAppendSpec,
    TableCreateFromDigestsReq,
    TableCreateFromDigestsRes,
    TableCreateReq,
    TableCreateRes,
    TableInsertSpec,
    TablePopSpec,
    TableQueryReq,
    TableQueryRes,
    TableQueryStatsBatchReq,
    TableQueryStatsBatchRes,
    TableQueryStatsReq,
    TableQueryStatsRes,
    TableUpdateReq,
    TableUpdateRes,
)
from heddle.wire import digests, jsontext, refs, rowsort, tableedit
from heddle.wire.jsontypes import Json

MAX_SORT_TERMS = 20
_CREATE: TypeAdapter[TableCreateReq] = TypeAdapter(TableCreateReq)
_FROM_DIGESTS: TypeAdapter[TableCreateFromDigestsReq] = TypeAdapter(TableCreateFromDigestsReq)
_UPDATE: TypeAdapter[TableUpdateReq] = TypeAdapter(TableUpdateReq)
router: APIRouter = group("Tables")
T = TypeVar("T")


@router.post("/table/create", response_model=TableCreateRes, openapi_extra=inlined_body(TableCreateReq))
async def table_create(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a table with its rows."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[str], dict[str, str]]:
        table = validated(_CREATE, parse_body(body, caller, keep_non_finite=True)).table
        project = caller.open(table.project_id)
        row_digests, rows = packed(table.rows)
        return project, _expected(digests.table_digest(row_digests), table.expected_digest), row_digests, rows

    project, digest, row_digests, rows = await off_loop(len(body), prepare)
    await store.tables.create(project, digest, row_digests, rows)
    return answer({"digest": digest, "row_digests": row_digests})


@router.post(
    "/table/create_from_digests",
    response_model=TableCreateFromDigestsRes,
    openapi_extra=inlined_body(TableCreateFromDigestsReq),
)
async def table_create_from_digests(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a table of rows that came before, or will come."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[str]]:
        table = validated(_FROM_DIGESTS, parse_body(body, caller))
        digest = _expected(digests.table_digest(table.row_digests), table.expected_digest)
        return caller.open(table.project_id), digest, table.row_digests

    project, digest, row_digests = await off_loop(len(body), prepare)
    await store.tables.create(project, digest, row_digests, {})
    return answer({"digest": digest})


@router.post("/table/update", response_model=TableUpdateRes, openapi_extra=inlined_body(TableUpdateReq))
async def table_update(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Make a new table out of one that is there."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[tableedit.Edit], dict[str, str]]:
        asked = validated(_UPDATE, parse_body(body, caller, keep_non_finite=True))
        rows: dict[str, str] = {}
        return caller.open(asked.project_id), asked.base_digest, [_edit(step, rows) for step in asked.updates], rows

    project, base, edits, rows = await off_loop(len(body), prepare)
    tables = store.tables
    count = await tables.count(project, base)
    if count is None:
        raise NotFound(f"Table {base[:100]} not found")
    pieces, touched = await asyncio.to_thread(tableedit.apply, count, edits)
    if any(isinstance(token, int) for token in touched):
        # The digest of a row that was there tells what it says.
        caller.require(Scope.READ)
    popped = await tables.digests_at(project, base, [token for token in touched if isinstance(token, int)])
    digest = await tables.derive(project, base, pieces, rows)
    updated = [token if isinstance(token, str) else popped[token] for token in touched]
    return answer({"digest": digest, "updated_row_digests": updated})


@router.post("/table/query", response_model=TableQueryRes)
@local
async def table_query(body: TableQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """Rows of a table in its order, or sorted; none for an unknown table."""
    wanted = (body.filter.row_digests if body.filter else None) or []
    terms = body.sort_by or []
    if len(terms) > MAX_SORT_TERMS:
        raise InvalidRequest(f"sort_by has {len(terms)} terms, at most {MAX_SORT_TERMS} are allowed")
    limit = page_limit(settings, not_negative(body.limit, "limit"))
    pages = store.tables.pages(
        caller.open(body.project_id),
        body.digest,
        row_digests=wanted,
        sort=[rowsort.parse(term.field, term.direction == "desc") for term in terms],
        limit=limit,
        offset=not_negative(body.offset, "offset") or 0,
    )
    first = await anext(pages, list[TableRow]())
    if limit is not None and limit <= len(first):
        return answer({"rows": [_shown(row) for row in first]})
    return StreamingResponse(_written(first, pages), media_type="application/json")


def _shown(row: TableRow) -> Json:
    return {"digest": row.digest, "val": orjson.Fragment(row.val), "original_index": row.position}


async def _written(first: list[TableRow], pages: AsyncIterator[list[TableRow]]) -> AsyncIterator[bytes]:
    """The answer of any length, a page at a time."""
    yield b'{"rows":[' + _listed(first)
    async for page in pages:
        if page:
            yield b"," + _listed(page)
    yield b"]}"


def _listed(rows: list[TableRow]) -> bytes:
    return refs.convert_out(jsontext.dumps_bytes([_shown(row) for row in rows]))[1:-1]


@router.post("/table/query_stats", response_model=TableQueryStatsRes)
@local
async def table_query_stats(body: TableQueryStatsReq, caller: Reader, store: StoreDep) -> Response:
    """How many rows a table has."""
    count = await store.tables.count(caller.open(body.project_id), body.digest)
    return answer({"count": count or 0})


@router.post("/table/query_stats_batch", response_model=TableQueryStatsBatchRes)
@local
async def table_query_stats_batch(body: TableQueryStatsBatchReq, caller: Reader, store: StoreDep) -> Response:
    """Figures of several tables; unknown ones are left out."""
    project = caller.open(body.project_id)
    found = await store.tables.stats(project, body.digests or [], bool(body.include_storage_size))
    shown = [{"count": row.count, "digest": row.digest, "storage_size_bytes": row.size} for row in found]
    return answer({"tables": shown})


def packed(rows: Sequence[Row]) -> tuple[list[str], dict[str, str]]:
    """The digest of each row in order, and the JSON text of each distinct row as it is to be returned."""
    order: list[str] = []
    texts: dict[str, str] = {}
    known: dict[str, str] = {}
    for row in rows:
        text = jsontext.dumps(row)
        digest = known.get(text)
        if digest is None:
            digest = known[text] = digests.value_digest(row, is_large=len(text) > OFF_LOOP_BYTES)
            texts.setdefault(digest, text)
        order.append(digest)
    return order, texts


def _expected(digest: str, expected: str | None) -> str:
    if expected and expected != digest:
        raise Conflict(f"Digest mismatch for the table: expected {expected[:100]}, got {digest}")
    return digest


def _edit(step: TableAppendSpec | TablePopSpec | TableInsertSpec, rows: dict[str, str]) -> tableedit.Edit:
    if isinstance(step, TablePopSpec):
        return tableedit.Edit("pop", step.pop.index)
    if isinstance(step, TableInsertSpec):
        return tableedit.Edit("insert", step.insert.index, _pack_one(step.insert.row, rows))
    return tableedit.Edit("append", row=_pack_one(step.append.row, rows))


def _pack_one(row: Row, rows: dict[str, str]) -> str:
    [digest], text = packed([row])
    rows.update(text)
    return digest
