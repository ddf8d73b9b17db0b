"""/v2/{entity}/{project}/scorers: what judges answers, as source code under a name."""

from datetime import datetime

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.evals.families.common import Entity, Project, body_of, object_id
from heddle.evals.families.serving import Family, serve
from heddle.evals.families.sources import SUMMARISE, created, publish_op
from heddle.evals.families.versions import Version, of_class
from heddle.http import (
    RecordsDep,
    RequestModel,
    ResponseModel,
    Writer,
    answer,
    group,
    inlined_body,
)
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

SCORERS = of_class("Scorer")
router: APIRouter = group("Scorers")


class ScorerCreateBody(RequestModel):
    """A scorer; `op_source_code` is the source of its score op."""

    name: str
    description: str | None = None
    op_source_code: str


class ScorerCreateRes(ResponseModel):
    """Where the version is found; `scorer` is its ref."""

    digest: str
    object_id: str
    version_index: int
    scorer: str


class ScorerReadRes(ResponseModel):
    """A version of a scorer; `score_op` is the ref of the op."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime
    name: str
    description: str | None = None
    score_op: str


class ScorerDeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/scorers", response_model=ScorerCreateRes, openapi_extra=inlined_body(ScorerCreateBody)
)
async def scorer_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a version of a scorer and its ops."""
    project_id = f"{entity}/{project}"
    body = await body_of(request, ScorerCreateBody)
    name = object_id(body.name, "Scorer")
    score = await publish_op(records, caller, project_id, f"{name}_score", body.op_source_code)
    summarize = await publish_op(records, caller, project_id, f"{name}_summarize", SUMMARISE)
    value = {
        "_type": "Scorer",
        "_class_name": "Scorer",
        "_bases": ["Object", "BaseModel"],
        "name": body.name,
        "description": body.description,
        "score": refs.to_external(score.ref),
        "summarize": refs.to_external(summarize.ref),
        "column_map": None,
    }
    published = await records.publish(caller, project_id, name, value)
    return answer(created(published, scorer=published.ref))


async def _record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    return {**version.named(), "score_op": version.place("score") or ""}


serve(router, Family("scorer", "scorers", SCORERS, _record, ScorerReadRes, ScorerDeleteRes))
