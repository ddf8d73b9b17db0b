"""/api/public/dataset-run-items: experiments as SDKs before version 5 tell them, an item and its trace at a time.

An item of a run is feedback on the call of its observation, else on the outermost call of its trace.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Field

from heddle.compat.langfuse.access import API, REFUSING, Conditions, KeyedProject, Limit, Page, cut, meta
from heddle.compat.langfuse.datasets import Dataset, ReadDatasets, WriteDatasets
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import RequestModel, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.row_queries import RowRequest
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.trace.feedback.roots import CREATOR, find_roots, waiting_ref
from heddle.trace.feedback.routes import prepare
from heddle.trace.records import lenient
from heddle.wire import query, refs
from heddle.wire.batched import group_pairs
from heddle.wire.jsontypes import Json

router: APIRouter = group("Langfuse")
RUN_ITEM = "langfuse.dataset_run_item"
_NAMES = uuid.UUID("6f0a6b0e-3a51-5c55-9a53-1f0b4f2c8d11")
"""What the ids of runs and their items are derived under, so that one that is sent again is the same."""


class CreateRunItem(RequestModel):
    """An item of a dataset and the trace that a run made of it."""

    run_name: str = Field(alias="runName", min_length=1, max_length=500)
    run_description: str | None = Field(default=None, alias="runDescription")
    metadata: Any = None
    dataset_item_id: str = Field(alias="datasetItemId", min_length=1, max_length=500)
    trace_id: str | None = Field(default=None, alias="traceId", min_length=1, max_length=500)
    observation_id: str | None = Field(default=None, alias="observationId", min_length=1, max_length=500)


@router.post("/api/public/dataset-run-items", **API)
async def create_run_item(body: CreateRunItem, datasets: WriteDatasets, store: StoreDep) -> Response:
    """Store which trace a run made of an item."""
    if body.trace_id is None:
        raise InvalidRequest("traceId: required for a run item", param="traceId")
    project = datasets.project
    dataset = (await datasets.find_item(body.dataset_item_id)).dataset
    run_id = _run_id(project, dataset, body.run_name)
    sent = body.model_dump(by_alias=True)
    own = {"runId": run_id, "datasetId": dataset.id, "description": sent.pop("runDescription")}
    payload = {**sent, **own}
    about = refs.call_ref(project.internal, body.observation_id) if body.observation_id else None
    if about is None:
        roots = await find_roots(store, project.internal, [body.trace_id])
        about = roots.get(body.trace_id) or waiting_ref(project.internal, body.trace_id)
    item = FeedbackCreateReq(
        id=str(uuid.uuid5(_NAMES, f"{run_id} {body.dataset_item_id} {body.trace_id}")),
        project_id=project.id,
        weave_ref=about,
        creator=CREATOR,
        feedback_type=RUN_ITEM,
        payload=lenient(payload, project.caller),
        span_trace_id=body.trace_id,
    )
    rows = await prepare([item], project.caller, store)
    await store.feedback.create(rows)
    [stored] = await _rows(store, project, "id", item.id)
    return answer(_item(stored))


@router.get("/api/public/datasets/{name:path}/runs/{run_name:path}", **API)
async def get_run(name: str, run_name: str, datasets: ReadDatasets, store: StoreDep) -> Response:
    """A run with its items."""
    project = datasets.project
    dataset = await datasets.find(name)
    found = await _rows(store, project, "payload.runId", _run_id(project, dataset, run_name))
    if not found:
        raise NotFound(f"Dataset run not found: '{run_name[:200]}' of '{name[:200]}'")
    return answer({**_run(dataset, found), "datasetRunItems": [_item(row) for row in found]})


@router.get("/api/public/datasets/{name:path}/runs", **REFUSING)
async def list_runs(name: str, datasets: ReadDatasets, store: StoreDep, page: Page = 1, limit: Limit = 50) -> Response:
    """The runs of a dataset, the newest first."""
    project = datasets.project
    dataset = await datasets.find(name)
    runs: dict[str, list[Json]] = {}
    async for rows in _pages(store, project, "payload.datasetId", dataset.id):
        for run_id, items in group_pairs((row["payload"]["runId"], row) for row in rows).items():
            # What is told of a run is told by its first item and its last.
            runs[run_id] = [runs.get(run_id, items)[0], items[-1]]
    every = [_run(dataset, items) for items in reversed(runs.values())]
    return answer({"data": list(cut(every, page, limit)), "meta": meta(page, limit, len(every))})


def _run_id(project: KeyedProject, dataset: Dataset, run_name: str) -> str:
    return str(uuid.uuid5(_NAMES, f"{project.id} {dataset.id} {run_name}"))


async def _rows(store: Store, project: KeyedProject, field: str, value: str | None) -> list[Json]:
    """The items of runs with a value in a field, the oldest first."""
    return [row async for rows in _pages(store, project, field, value) for row in rows]


async def _pages(store: Store, project: KeyedProject, field: str, value: str | None) -> AsyncIterator[list[Json]]:
    """The same, some at a time."""
    wanted = Conditions()
    wanted.equals("feedback_type", RUN_ITEM)
    wanted.equals(field, value)
    chosen = query.parse_query({"$expr": {"$and": wanted.conditions}})
    assert isinstance(chosen, query.And)
    found = await store.feedback.query(project.internal, RowRequest(None, chosen, None, None, 0))
    yield [_parsed(row) for row in found.rows]
    if found.rest is not None:
        async for rows in found.rest:
            yield [_parsed(row) for row in rows]


def _parsed(row: Json) -> Json:
    return {**row, "payload": orjson.loads(orjson.dumps(row["payload"]))}


def _item(row: Json) -> Json:
    payload = row["payload"]
    return {
        "id": row["id"],
        "datasetRunId": payload["runId"],
        "datasetRunName": payload["runName"],
        "datasetItemId": payload["datasetItemId"],
        "traceId": payload["traceId"],
        "observationId": payload.get("observationId"),
        "createdAt": row["created_at"],
        "updatedAt": row["created_at"],
    }


def _run(dataset: Dataset, rows: Sequence[Json]) -> Json:
    first, last = rows[0], rows[-1]
    return {
        "id": first["payload"]["runId"],
        "name": first["payload"]["runName"],
        "description": last["payload"].get("description"),
        "metadata": last["payload"].get("metadata") or {},
        "datasetId": dataset.id,
        "datasetName": dataset.name,
        "createdAt": first["created_at"],
        "updatedAt": last["created_at"],
    }
