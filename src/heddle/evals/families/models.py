"""/v2/{entity}/{project}/models: what answers, as source code and attributes under a name."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.evals.families.common import Entity, Project, body_of, object_id
from heddle.evals.families.serving import Family, serve
from heddle.evals.families.sources import created, source_of
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
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, Records

MODELS = of_class("Model")
_OWN = frozenset(("_type", "_class_name", "_bases", "name", "description", "files"))
router: APIRouter = group("Models")


class ModelCreateBody(RequestModel):
    """A model; the attributes become fields of the object."""

    name: str
    description: str | None = None
    source_code: str
    attributes: dict[str, Any] | None = None


class ModelCreateRes(ResponseModel):
    """Where the version is found; `model_ref` is its ref."""

    digest: str
    object_id: str
    version_index: int
    model_ref: str


class ModelReadRes(ResponseModel):
    """A version of a model; `source_code` is empty where none is stored, `attributes` are its other fields."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime
    name: str
    description: str | None = None
    source_code: str
    attributes: dict[str, Any] | None = None


class ModelDeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/models", response_model=ModelCreateRes, openapi_extra=inlined_body(ModelCreateBody)
)
async def model_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a version of a model."""
    project_id = f"{entity}/{project}"
    body = await body_of(request, ModelCreateBody)
    source = await records.put_file(caller, project_id, OP_FILE, body.source_code.encode("utf-8", "replace"))
    value = {
        "_type": "Model",
        "_class_name": "Model",
        "_bases": ["Object", "BaseModel"],
        "name": body.name,
        "description": body.description,
        "files": {OP_FILE: source},
        **(body.attributes or {}),
    }
    published = await records.publish(caller, project_id, object_id(body.name, "Model"), value)
    return answer(created(published, model_ref=published.ref))


async def _record(records: Records, caller: Caller, project_id: str, version: Version) -> Json:
    source = await source_of(records, caller, project_id, version.value)
    attributes = {key: value for key, value in version.fields.items() if key not in _OWN}
    return {**version.named(), "source_code": source, "attributes": attributes or None}


serve(router, Family("model", "models", MODELS, _record, ModelReadRes, ModelDeleteRes))
