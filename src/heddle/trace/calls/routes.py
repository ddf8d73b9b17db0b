"""The routes of the calls group, and the /v2 write routes of the SDKs."""

from fastapi import APIRouter, Request, Response

from heddle.errors import InvalidRequest, TooLarge
from heddle.http import (
    Empty,
    Lines,
    Reader,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    hot,
    inlined_body,
    lines,
    local,
)
from heddle.trace.calls.models import (
    CallCreateBatchReq,
    CallCreateBatchRes,
    CallEndReq,
    CallEndRes,
    CallReadReq,
    CallReadRes,
    CallSchema,
    CallsDeleteReq,
    CallsDeleteRes,
    CallsFilter,
    CallsQueryReq,
    CallsQueryStatsReq,
    CallsQueryStatsRes,
    CallStartReq,
    CallStartRes,
    CallsUpsertCompleteReq,
    CallUpdateReq,
)
from heddle.trace.calls.read import CallReader, filter_of, paths_of, retention_of, started
from heddle.trace.calls.write import CallWrites
from heddle.wire.calls import CallsQuery

MAX_DELETED = 1000
router: APIRouter = group("Calls")


@router.post("/call/start", response_model=CallStartRes, openapi_extra=inlined_body(CallStartReq))
@hot
@local
async def call_start(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store the start of a call."""
    return answer(await CallWrites(settings, store, caller).start(await request.body()))


@router.post("/call/end", response_model=CallEndRes, openapi_extra=inlined_body(CallEndReq))
@hot
@local
async def call_end(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store the end of a call, which may arrive before its start."""
    await CallWrites(settings, store, caller).end(await request.body())
    return answer({})


@router.post("/call/upsert_batch", response_model=CallCreateBatchRes, openapi_extra=inlined_body(CallCreateBatchReq))
@hot
@local
async def call_upsert_batch(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store starts and ends in any order; all or none."""
    return answer({"res": await CallWrites(settings, store, caller).batch(await request.body())})


@router.post(
    "/v2/{entity}/{project}/calls/complete", response_model=Empty, openapi_extra=inlined_body(CallsUpsertCompleteReq)
)
@hot
@local
async def calls_complete(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store whole calls."""
    await CallWrites(settings, store, caller, f"{entity}/{project}").complete(await request.body())
    return answer({})


@router.post("/v2/{entity}/{project}/call/start", response_model=CallStartRes, openapi_extra=inlined_body(CallStartReq))
@hot
@local
async def call_start_v2(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store the start of a call that must be visible before it ends."""
    return answer(await CallWrites(settings, store, caller, f"{entity}/{project}").start(await request.body()))


@router.post("/v2/{entity}/{project}/call/end", response_model=CallEndRes, openapi_extra=inlined_body(CallEndReq))
@hot
@local
async def call_end_v2(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store the end of a call whose start is stored; 404 otherwise."""
    await CallWrites(settings, store, caller, f"{entity}/{project}").end(await request.body(), must_exist=True)
    return answer({})


@router.post("/call/read", response_model=CallReadRes)
@local
async def call_read(body: CallReadReq, caller: Reader, store: StoreDep) -> Response:
    """One call, null when there is none."""
    request = CallsQueryReq(
        project_id=body.project_id,
        filter=CallsFilter(call_ids=[body.id]),
        limit=1,
        include_costs=body.include_costs,
        include_storage_size=body.include_storage_size,
        include_total_storage_size=body.include_total_storage_size,
    )
    reader = CallReader(store, caller, request, await retention_of(store, caller.open(body.project_id)))
    found = [call async for slice_ in reader.slices() for call in slice_]
    return answer({"call": found[0] if found else None})


@router.post("/call/update", response_model=Empty)
async def call_update(body: CallUpdateReq, caller: Writer, store: StoreDep) -> Response:
    """Set or clear the display name of a call."""
    project = caller.open(body.project_id)
    if body.display_name is None:
        raise InvalidRequest("One of [display_name] is required for call update")
    await store.calls.rename(project, body.call_id, body.display_name)
    return answer({})


@router.post("/calls/delete", response_model=CallsDeleteRes)
async def calls_delete(body: CallsDeleteReq, caller: Writer, store: StoreDep) -> Response:
    """Hide calls and their descendants."""
    project = caller.open(body.project_id)
    if len(body.call_ids) > MAX_DELETED:
        raise TooLarge(f"Request too large: {len(body.call_ids)} call ids, at most {MAX_DELETED} are deleted at once")
    return answer({"num_deleted": await store.calls.delete(project, body.call_ids, caller.user)})


@router.post(
    "/calls/stream_query",
    response_model=CallSchema,
    response_class=Lines,
    response_description="One call per line",
)
@hot
@local
async def calls_stream_query(body: CallsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The selected calls as JSON lines."""
    reader = CallReader(store, caller, body, await retention_of(store, caller.open(body.project_id)))
    return lines(await started(reader.stream()))


@router.post("/calls/query_stats", response_model=CallsQueryStatsRes)
@local
async def calls_query_stats(body: CallsQueryStatsReq, caller: Reader, store: StoreDep) -> Response:
    """How many calls are selected."""
    project = caller.open(body.project_id)
    if body.limit is not None and body.limit < 1:
        raise InvalidRequest("Limit must be a positive integer")
    query = CallsQuery(
        project,
        filter_of(body.filter, project),
        body.query,
        limit=None if body.limit is None else min(body.limit, 2**62),
        expand=paths_of(body.expand_columns),
        retention=await retention_of(store, project),
    )
    count = await store.calls.count(query)
    size = await store.calls.bytes_of(query) if body.include_total_storage_size else None
    return answer(
        {"count": count, "has_more": body.limit is not None and count >= body.limit, "total_storage_size_bytes": size}
    )
