"""The write routes of calls: parse, pack as what the store keeps, keep the files, commit; only then answer."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import TypeAdapter

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound, TooLarge
from heddle.http.description import body_schema
from heddle.http.routing import (
    OFF_LOOP_BYTES,
    Deleter,
    Empty,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    hot,
    local,
    off_loop,
    parse_body,
    validate,
)
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.models import (
    BATCH,
    COMPLETE,
    ENDED,
    STARTED,
    CallBatchStartMode,
    CallCreateBatchReq,
    CallCreateBatchRes,
    CallEndReq,
    CallEndRes,
    CallsDeleteReq,
    CallsDeleteRes,
    CallStartReq,
    CallStartRes,
    CallsUpsertCompleteReq,
    CallUpdateReq,
)
from heddle.trace.calls.packing import CallIds, Packed, Packer, redact
from heddle.wire import refs
from heddle.wire.calls import Start
from heddle.wire.spans import AgentSpan

router = group("Calls")
MAX_DELETED = 1000
T = TypeVar("T")


class CallWrites:
    """The write requests of the calls group, for one caller; `project` limits them to one (the /v2 routes)."""

    def __init__(self, settings: Settings, store: Store, caller: Caller, project: str | None = None) -> None:
        self._settings = settings
        self._store = store
        self._caller = caller
        self._project = project

    async def start(self, body: bytes) -> CallIds:
        """Store one start; returns its ids."""
        return await self.write(lambda packer: _ids(packer.start(self._parse(STARTED, body).start)), len(body))

    async def end(self, body: bytes, must_exist: bool = False) -> None:
        """Store one end; with `must_exist` an unknown call raises NotFound."""
        await self.write(lambda packer: packer.end(self._parse(ENDED, body).end), len(body), must_exist)

    async def batch(self, body: bytes) -> list[CallIds]:
        """Store starts and ends in any order; returns one answer per item."""

        def pack(packer: Packer) -> list[CallIds]:
            answers: list[CallIds] = []
            for item in validate(BATCH, _check_modes(self._read(body))).batch:
                if isinstance(item, CallBatchStartMode):
                    answers.append(_ids(packer.start(item.req.start)))
                else:
                    packer.end(item.req.end)
                    answers.append({})
            return answers

        return await self.write(pack, len(body))

    async def complete(self, body: bytes) -> None:
        """Store whole calls."""

        def pack(packer: Packer) -> None:
            for call in self._parse(COMPLETE, body).batch:
                packer.complete(call)

        await self.write(pack, len(body))

    def _parse(self, adapter: TypeAdapter[T], body: bytes) -> T:
        return validate(adapter, self._read(body))

    def _read(self, body: bytes) -> Any:
        # How deep the fields are that are stored is seen when they are packed.
        return parse_body(body, self._caller, max_depth=len(body))

    def _open(self, project_id: str) -> str:
        if self._project is not None and project_id != self._project:
            raise Forbidden(
                f"project_id '{project_id[:200]}' does not match the project in the URL, '{self._project[:200]}'"
            )
        return self._caller.open(project_id)

    async def write(self, pack: Callable[[Packer], T], size: int = OFF_LOOP_BYTES + 1, must_exist: bool = False) -> T:
        """Store what `pack` gives a packer, made of so many bytes (unless few, in a thread); returns its answer."""
        packer = Packer(cache(self._open), self._caller.user, self._settings.large_field_bytes)
        answer = await off_loop(size, lambda: pack(packer))
        for end in packer.packed.ends if must_exist else ():
            if not await self._store.calls.exists(end.project, end.id):
                raise NotFound(f"Call {end.id} not found in project {refs.external_project(end.project)}")
        await self.keep(packer.packed)
        return answer

    async def keep(self, packed: Packed, agents: Sequence[AgentSpan] = ()) -> None:
        """Store what is packed, and the agent spans among it: files first, then the calls that point to them."""
        await self._redact(packed, agents)
        if packed.files or packed.blobs:
            await self._keep_files(packed)
        await self._store.calls.write(packed.starts, packed.ends, agents)

    async def _redact(self, packed: Packed, agents: Sequence[AgentSpan]) -> None:
        """Take out what the rules of the projects say, before anything reaches a disk."""
        redactors = await self._store.redaction.of(half.project for half in packed.halves)
        if redactors:
            await off_loop(packed.size, lambda: redact(packed, agents, redactors, self._caller.user))
            await self._store.redaction.note(redactors)

    async def _keep_files(self, packed: Packed) -> None:
        """Make media and large fields durable before the calls that point to them."""
        for file in packed.files:
            await self._store.files.create(
                file.project, file.name, file.digest, len(file.content), await self._blob(file.content)
            )
        keys = [await self._blob(content) for content in packed.blobs]
        for files, name, index in packed.spills:
            files[name] = keys[index]

    async def _blob(self, content: bytes) -> str:
        return await asyncio.to_thread(self._store.blobs.put_bytes, content)


def _ids(start: Start) -> CallIds:
    return {"id": start.id, "trace_id": start.trace_id}


def _check_modes(value: object) -> object:
    """The body of a batch; raises InvalidRequest for an item that is neither a start nor an end."""
    items = value.get("batch") if isinstance(value, dict) else None
    for item in items if isinstance(items, list) else []:
        mode = item.get("mode") if isinstance(item, dict) else None
        if isinstance(mode, str) and mode not in ("start", "end"):
            raise InvalidRequest(f"Invalid mode: {mode[:100]!r}; expected 'start' or 'end'")
    return value


@router.post("/call/start", response_model=CallStartRes, openapi_extra=body_schema(CallStartReq))
@hot
@local
async def call_start(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store the start of a call."""
    return answer(await CallWrites(settings, store, caller).start(await request.body()))


@router.post("/call/end", response_model=CallEndRes, openapi_extra=body_schema(CallEndReq))
@hot
@local
async def call_end(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store the end of a call, which may arrive before its start."""
    await CallWrites(settings, store, caller).end(await request.body())
    return answer({})


@router.post("/call/upsert_batch", response_model=CallCreateBatchRes, openapi_extra=body_schema(CallCreateBatchReq))
@hot
@local
async def call_upsert_batch(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store starts and ends in any order; all or none."""
    return answer({"res": await CallWrites(settings, store, caller).batch(await request.body())})


@router.post(
    "/v2/{entity}/{project}/calls/complete", response_model=Empty, openapi_extra=body_schema(CallsUpsertCompleteReq)
)
@hot
@local
async def calls_complete(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store whole calls."""
    await CallWrites(settings, store, caller, f"{entity}/{project}").complete(await request.body())
    return answer({})


@router.post("/v2/{entity}/{project}/call/start", response_model=CallStartRes, openapi_extra=body_schema(CallStartReq))
@hot
@local
async def call_start_v2(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store the start of a call that must be visible before it ends."""
    return answer(await CallWrites(settings, store, caller, f"{entity}/{project}").start(await request.body()))


@router.post("/v2/{entity}/{project}/call/end", response_model=CallEndRes, openapi_extra=body_schema(CallEndReq))
@hot
@local
async def call_end_v2(
    entity: str, project: str, request: Request, caller: Writer, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store the end of a call whose start is stored; 404 otherwise."""
    await CallWrites(settings, store, caller, f"{entity}/{project}").end(await request.body(), must_exist=True)
    return answer({})


@router.post("/call/update", response_model=Empty)
async def call_update(body: CallUpdateReq, caller: Writer, store: StoreDep) -> Response:
    """Set or clear the display name of a call."""
    project = caller.open(body.project_id)
    if body.display_name is None:
        raise InvalidRequest("One of [display_name] is required for call update")
    shown = await store.redaction.value(project, body.display_name)
    await store.calls.rename(project, body.call_id, shown)
    return answer({})


@router.post("/calls/delete", response_model=CallsDeleteRes)
async def calls_delete(body: CallsDeleteReq, caller: Deleter, store: StoreDep) -> Response:
    """Hide calls and their descendants."""
    project = caller.open(body.project_id)
    if len(body.call_ids) > MAX_DELETED:
        raise TooLarge(
            f"Request too large: {len(body.call_ids)} call ids, at most {MAX_DELETED} can be deleted at once"
        )
    return answer({"num_deleted": await store.calls.delete(project, body.call_ids, caller.user)})
