"""/v2/{entity}/{project}/ops: source code under a name."""

from datetime import datetime

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.evals.families.common import Entity, Project, body_of, object_id
from heddle.evals.families.serving import Family, serve_delete, serve_list
from heddle.evals.families.sources import created, is_op, publish_op, source_of
from heddle.evals.families.versions import OPS, Version
from heddle.http import (
    Reader,
    RecordsDep,
    RequestModel,
    ResponseModel,
    StoreDep,
    Writer,
    answer,
    group,
    inlined_body,
)
from heddle.wire.jsontypes import Json
from heddle.wire.records import PLACEHOLDER_SOURCE, Records

router: APIRouter = group("Ops")


class OpCreateBody(RequestModel):
    """An op; without a source it gets a placeholder."""

    name: str | None = None
    source_code: str | None = None


class OpCreateRes(ResponseModel):
    """Where the version is found."""

    digest: str
    object_id: str
    version_index: int


class OpReadRes(ResponseModel):
    """A version of an op; `code` is empty where its file is missing."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime
    code: str


class OpDeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


@router.post("/v2/{entity}/{project}/ops", response_model=OpCreateRes, openapi_extra=inlined_body(OpCreateBody))
async def op_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a version of an op."""
    body = await body_of(request, OpCreateBody)
    name = object_id(body.name, "Op")
    return answer(
        created(await publish_op(records, caller, f"{entity}/{project}", name, body.source_code or PLACEHOLDER_SOURCE))
    )


@router.get("/v2/{entity}/{project}/ops/{object_id}/versions/{digest}", response_model=OpReadRes)
async def op_read(
    entity: Entity,
    project: Project,
    object_id: str,
    digest: str,
    caller: Reader,
    store: StoreDep,
    records: RecordsDep,
    eager: bool = False,  # noqa: ARG001
) -> Response:
    """One version of an op; `eager` makes no difference, for the source always comes along."""
    project_id = f"{entity}/{project}"
    version = await _FAMILY.versions(store, caller, project_id).read(object_id, digest)
    if not is_op(version.value):
        raise InvalidRequest(f"Obj {object_id}:{digest} is no op that this route can read"[:600])
    return answer(await _record(records, caller, project_id, version))


async def _record(records: Records, caller: Caller, project_id: str, version: Version) -> Json:
    return {**version.head(), "code": await source_of(records, caller, project_id, version.value)}


_FAMILY = Family("op", "ops", OPS, _record, OpReadRes, OpDeleteRes)
serve_list(router, _FAMILY)
serve_delete(router, _FAMILY)
