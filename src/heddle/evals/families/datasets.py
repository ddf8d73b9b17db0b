"""/v2/{entity}/{project}/datasets: rows under a name."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.evals.families.common import Entity, Project, body_of, object_id
from heddle.evals.families.serving import Family, serve
from heddle.evals.families.sources import created
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
from heddle.wire.records import Records

DATASETS = of_class("Dataset")
router: APIRouter = group("Datasets")


class DatasetCreateBody(RequestModel):
    """A dataset with its rows."""

    name: str | None = None
    description: str | None = None
    rows: list[dict[str, Any]]


class DatasetCreateRes(ResponseModel):
    """Where the version is found."""

    digest: str
    object_id: str
    version_index: int


class DatasetReadRes(ResponseModel):
    """A version of a dataset; `rows` is the ref of its table."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime
    name: str
    description: str | None = None
    rows: str


class DatasetDeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/datasets",
    response_model=DatasetCreateRes,
    openapi_extra=inlined_body(DatasetCreateBody),
)
async def dataset_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a table and the dataset that names it."""
    project_id = f"{entity}/{project}"
    body = await body_of(request, DatasetCreateBody, keep_non_finite=True)
    table, _ = await records.put_table(caller, project_id, body.rows)
    value = {
        "_type": "Dataset",
        "_class_name": "Dataset",
        "_bases": ["Object", "BaseModel"],
        "name": body.name or "Dataset",
        "description": body.description,
        "rows": f"weave:///{project_id}/table/{table}",
    }
    published = await records.publish(caller, project_id, object_id(body.name, "Dataset"), value)
    return answer(created(published))


async def _record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    return {**version.named(), "rows": version.place("rows") or ""}


serve(router, Family("dataset", "datasets", DATASETS, _record, DatasetReadRes, DatasetDeleteRes))
