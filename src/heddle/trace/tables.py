"""Tables: lists of rows, addressed by the digest of the rows in their order."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import Field, TypeAdapter

from heddle.auth import Scope
from heddle.errors import Conflict, NotFound
from heddle.http.description import body_schema
from heddle.http.parameters import not_negative, page_limit
from heddle.http.routing import (
    OFF_LOOP_BYTES,
    ProjectReq,
    Reader,
    RequestModel,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    check_in_slices,
    group,
    local,
    off_loop,
    parse_body,
    validate,
)
from heddle.store.control.tables import TableRow
from heddle.trace.calls.models import PageReq
from heddle.trace.rows import answer_slices
from heddle.wire import jsontext, refs, table_rows
from heddle.wire.jsontypes import Json

Row = dict[str, Any]


class TableSchemaForInsert(ProjectReq):
    """A table whose rows come along."""

    rows: Annotated[list[Row], check_in_slices("table", "rows")]
    expected_digest: str | None = None


class TableCreateReq(RequestModel):
    """Body of /table/create."""

    table: TableSchemaForInsert


class TableCreateRes(ResponseModel):
    """Digests of the table and of each row."""

    digest: str
    row_digests: list[str] = Field(default_factory=list)


class TableCreateFromDigestsReq(ProjectReq):
    """Body of /table/create_from_digests."""

    row_digests: Annotated[list[str], check_in_slices("row_digests")]
    expected_digest: str | None = None


class TableCreateFromDigestsRes(ResponseModel):
    """Digest of the table."""

    digest: str


class TableAppendSpecPayload(RequestModel):
    """The row."""

    row: Row


class TableAppendSpec(RequestModel):
    """Append a row."""

    append: TableAppendSpecPayload


class TablePopSpecPayload(RequestModel):
    """Which row."""

    index: int


class TablePopSpec(RequestModel):
    """Take a row out."""

    pop: TablePopSpecPayload


class TableInsertSpecPayload(RequestModel):
    """Which row, and where."""

    index: int
    row: Row


class TableInsertSpec(RequestModel):
    """Put a row in."""

    insert: TableInsertSpecPayload


class TableUpdateReq(ProjectReq):
    """Body of /table/update."""

    base_digest: str
    updates: Annotated[list[TableAppendSpec | TablePopSpec | TableInsertSpec], check_in_slices("updates")]


class TableUpdateRes(ResponseModel):
    """Digests of the new table and of the row that each update touched."""

    digest: str
    updated_row_digests: list[str] = Field(default_factory=list)


class TableRowFilter(RequestModel):
    """Only rows with one of these digests."""

    row_digests: list[str] | None = None


class TableQueryReq(PageReq):
    """Body of /table/query."""

    digest: str
    filter: TableRowFilter | None = None


class TableRowSchema(ResponseModel):
    """A row and its place in the whole table."""

    digest: str
    val: Any
    original_index: int | None = None


class TableQueryRes(ResponseModel):
    """The rows."""

    rows: list[TableRowSchema]


class TableQueryStatsReq(ProjectReq):
    """Body of /table/query_stats."""

    digest: str


class TableQueryStatsRes(ResponseModel):
    """How many rows; 0 for an unknown table."""

    count: int


class TableQueryStatsBatchReq(ProjectReq):
    """Body of /table/query_stats_batch."""

    digests: list[str] | None = Field(default_factory=list)
    include_storage_size: bool | None = False


class TableStatsRow(ResponseModel):
    """Figures of one table."""

    count: int
    digest: str
    storage_size_bytes: int | None = None


class TableQueryStatsBatchRes(ResponseModel):
    """Figures of those tables that exist."""

    tables: list[TableStatsRow]


_CREATE: TypeAdapter[TableCreateReq] = TypeAdapter(TableCreateReq)
_FROM_DIGESTS: TypeAdapter[TableCreateFromDigestsReq] = TypeAdapter(TableCreateFromDigestsReq)
_UPDATE: TypeAdapter[TableUpdateReq] = TypeAdapter(TableUpdateReq)
router: APIRouter = group("Tables")
T = TypeVar("T")


@router.post("/table/create", response_model=TableCreateRes, openapi_extra=body_schema(TableCreateReq))
async def table_create(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a table with its rows."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[str], dict[str, str]]:
        table = validate(_CREATE, parse_body(body, caller, keep_non_finite=True)).table
        project = caller.open(table.project_id)
        row_digests, rows = pack_rows(table.rows)
        return project, _check_digest(refs.table_digest(row_digests), table.expected_digest), row_digests, rows

    project, digest, row_digests, rows = await off_loop(len(body), prepare)
    await store.tables.create(project, digest, row_digests, rows)
    return answer({"digest": digest, "row_digests": row_digests})


@router.post(
    "/table/create_from_digests",
    response_model=TableCreateFromDigestsRes,
    openapi_extra=body_schema(TableCreateFromDigestsReq),
)
async def table_create_from_digests(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a table of rows that came before, or will come."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[str]]:
        table = validate(_FROM_DIGESTS, parse_body(body, caller))
        digest = _check_digest(refs.table_digest(table.row_digests), table.expected_digest)
        return caller.open(table.project_id), digest, table.row_digests

    project, digest, row_digests = await off_loop(len(body), prepare)
    await store.tables.create(project, digest, row_digests, {})
    return answer({"digest": digest})


@router.post("/table/update", response_model=TableUpdateRes, openapi_extra=body_schema(TableUpdateReq))
async def table_update(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Make a new table out of one that is there."""
    body = await request.body()

    def prepare() -> tuple[str, str, list[table_rows.Edit], dict[str, str]]:
        asked = validate(_UPDATE, parse_body(body, caller, keep_non_finite=True))
        rows: dict[str, str] = {}
        return (
            caller.open(asked.project_id),
            asked.base_digest,
            [_parse_edit(step, rows) for step in asked.updates],
            rows,
        )

    project, base, edits, rows = await off_loop(len(body), prepare)
    tables = store.tables
    count = await tables.count(project, base)
    if count is None:
        raise NotFound(f"Table {base[:100]} not found")
    pieces, touched = await asyncio.to_thread(table_rows.apply_edits, count, edits)
    if any(isinstance(token, int) for token in touched):
        # The digest of a row that was there tells what it says.
        caller.require(Scope.READ).open(refs.external_project(project) or "")
    popped = await tables.digests_at(project, base, [token for token in touched if isinstance(token, int)])
    digest = await tables.derive(project, base, pieces, rows)
    updated = [token if isinstance(token, str) else popped[token] for token in touched]
    return answer({"digest": digest, "updated_row_digests": updated})


@router.post("/table/query", response_model=TableQueryRes)
@local
async def table_query(body: TableQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """Rows of a table in its order, or sorted; none for an unknown table."""
    wanted = (body.filter.row_digests if body.filter else None) or []
    pages = store.tables.pages(
        caller.open(body.project_id),
        body.digest,
        row_digests=wanted,
        sort=[table_rows.parse_sort(term.field, term.direction == "desc") for term in body.sort_by or ()],
        limit=page_limit(settings, not_negative(body.limit, "limit")),
        offset=not_negative(body.offset, "offset") or 0,
    )
    return await answer_slices("rows", ([_describe(row) for row in page] async for page in pages))


def _describe(row: TableRow) -> Json:
    return {"digest": row.digest, "val": orjson.Fragment(row.val), "original_index": row.position}


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


def pack_rows(rows: Sequence[Row]) -> tuple[list[str], dict[str, str]]:
    """The digest of each row in order, and the JSON text of each distinct row as it is to be returned."""
    order: list[str] = []
    texts: dict[str, str] = {}
    known: dict[str, str] = {}
    for row in rows:
        text = jsontext.dumps(row)
        digest = known.get(text)
        if digest is None:
            digest = known[text] = refs.value_digest(row, is_large=len(text) > OFF_LOOP_BYTES)
            texts.setdefault(digest, text)
        order.append(digest)
    return order, texts


def _check_digest(digest: str, expected: str | None) -> str:
    if expected and expected != digest:
        raise Conflict(f"Digest mismatch for the table: expected {expected[:100]}, got {digest}")
    return digest


def _parse_edit(step: TableAppendSpec | TablePopSpec | TableInsertSpec, rows: dict[str, str]) -> table_rows.Edit:
    if isinstance(step, TablePopSpec):
        return table_rows.Edit("pop", step.pop.index)
    if isinstance(step, TableInsertSpec):
        return table_rows.Edit("insert", step.insert.index, _pack_one(step.insert.row, rows))
    return table_rows.Edit("append", row=_pack_one(step.append.row, rows))


def _pack_one(row: Row, rows: dict[str, str]) -> str:
    [digest], text = pack_rows([row])
    rows.update(text)
    return digest
