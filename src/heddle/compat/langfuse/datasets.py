"""/api/public/{v2/datasets,dataset-items}: datasets and their items, as experiments of the SDKs read and make them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from heddle.compat.langfuse.access import API, REFUSING
from heddle.compat.langfuse.pages import Limit, Page, cut, meta
from heddle.compat.langfuse.stored_datasets import ACTIVE, DeleteDatasets, ReadDatasets, WriteDatasets
from heddle.errors import InvalidRequest
from heddle.http.routing import RequestModel, answer, group
from heddle.wire import times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Langfuse")


class CreateDataset(RequestModel):
    """A dataset; one of that name keeps its items."""

    name: str = Field(min_length=1, max_length=1000)
    description: str | None = None
    metadata: Any = None
    input_schema: Json | None = Field(default=None, alias="inputSchema")
    expected_output_schema: Json | None = Field(default=None, alias="expectedOutputSchema")


class CreateItem(RequestModel):
    """An item; one with its id is changed, and keeps what is left out."""

    dataset_name: str = Field(alias="datasetName", min_length=1, max_length=1000)
    id: str | None = Field(default=None, min_length=1, max_length=500)
    input: Any = None
    expected_output: Any = Field(default=None, alias="expectedOutput")
    metadata: Any = None
    source_trace_id: str | None = Field(default=None, alias="sourceTraceId", max_length=500)
    source_observation_id: str | None = Field(default=None, alias="sourceObservationId", max_length=500)
    status: Literal["ACTIVE", "ARCHIVED"] | None = None

    def row(self) -> Json:
        """The row of its table, with what was sent only."""
        now = times.to_iso(times.now())
        own: Json = {"updatedAt": now, "sourceTraceId": self.source_trace_id, "status": self.status}
        own["sourceObservationId"] = self.source_observation_id
        own = {name: value for name, value in own.items() if value is not None}
        sent = {name: getattr(self, name) for name in ("input", "expected_output", "metadata")}
        if self.id is not None:
            sent = {name: value for name, value in sent.items() if name in self.model_fields_set}
        return {"id": self.id or times.uuid7(), **sent, "langfuse": own}


@router.get("/api/public/v2/datasets", **REFUSING)
async def list_datasets(datasets: ReadDatasets, page: Page = 1, limit: Limit = 50) -> Response:
    """Datasets by name."""
    every = await datasets.all()
    shown = [(await datasets.find(row.object_id)).describe(datasets.project.id) for row in cut(every, page, limit)]
    return answer({"data": shown, "meta": meta(page, limit, len(every))})


@router.post("/api/public/v2/datasets", **API)
async def create_dataset(body: CreateDataset, datasets: WriteDatasets) -> Response:
    """Make a dataset, or change its description and metadata."""
    for name, schema in (("inputSchema", body.input_schema), ("expectedOutputSchema", body.expected_output_schema)):
        if schema is not None:
            raise InvalidRequest(f"{name}: heddle checks no items; leave it out", param=name)
    made = await datasets.create(body.name, body.description, body.metadata)
    return answer(made.describe(datasets.project.id))


@router.get("/api/public/v2/datasets/{name:path}", **API)
async def get_dataset(name: str, datasets: ReadDatasets) -> Response:
    """One dataset."""
    return answer((await datasets.find(name)).describe(datasets.project.id))


@router.get("/api/public/dataset-items", **REFUSING)
async def list_items(
    dataset_name: Annotated[str, Query(alias="datasetName")],
    datasets: ReadDatasets,
    version: datetime | None = None,
    page: Page = 1,
    limit: Limit = 50,
) -> Response:
    """The items of a dataset, as it is or as it was at an instant."""
    dataset = await datasets.find(dataset_name, None if version is None else times.to_micros(version))
    found = [item.describe() async for item in datasets.items(dataset, limit, (page - 1) * limit)]
    return answer({"data": found, "meta": meta(page, limit, await datasets.count(dataset))})


@router.post("/api/public/dataset-items", **API)
async def create_item(body: CreateItem, datasets: WriteDatasets) -> Response:
    """Store an item: a new version of its dataset."""
    row = body.row()
    if body.id is None:
        row["langfuse"] |= {"createdAt": row["langfuse"]["updatedAt"], "status": body.status or ACTIVE}
    return answer((await datasets.put_item(body.dataset_name, row, body.id is not None)).describe())


@router.get("/api/public/dataset-items/{item_id}", **API)
async def get_item(item_id: str, datasets: ReadDatasets) -> Response:
    """One item, of whichever dataset."""
    return answer((await datasets.find_item(item_id)).describe())


@router.delete("/api/public/dataset-items/{item_id}", **API)
async def delete_item(item_id: str, datasets: DeleteDatasets) -> Response:
    """Delete an item: a new version of its dataset without it."""
    await datasets.delete_item(item_id)
    return answer({"message": "Dataset item successfully deleted"})
