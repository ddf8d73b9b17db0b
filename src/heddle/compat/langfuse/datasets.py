"""/api/public/{v2/datasets,dataset-items}: datasets and their items, as experiments of the SDKs read and make them.

An item is a row of the dataset's table, and each change a version of it. A row has the columns `id`, `input`,
`expected_output` and `metadata`, which evaluations read, and in `langfuse` what only Langfuse has.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from weakref import WeakValueDictionary

import orjson
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.compat.langfuse.access import API, REFUSING, Limit, OfProject, OfProjectStore, Page, cut, meta, object_id
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.http.routing import RequestModel, answer, group
from heddle.store.control.object_labels import LATEST
from heddle.store.control.objects import ObjectFilter, ObjectVersion
from heddle.store.control.tables import TableRow
from heddle.trace.records import lenient
from heddle.trace.tables import pack_rows
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import object_value
from heddle.wire.table_rows import Edit, apply_edits

CLASS = "Dataset"
ACTIVE = "ACTIVE"
_ATTEMPTS = 20
_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Dataset:
    """One version of a dataset."""

    row: ObjectVersion
    value: Json

    @property
    def id(self) -> str:
        """The name of its object."""
        return self.row.object_id

    @property
    def name(self) -> str:
        """The name that its maker gave."""
        name = self.value.get("name")
        return name if isinstance(name, str) and object_id(name) == self.row.object_id else self.row.object_id

    @property
    def table(self) -> str | None:
        """The digest of its table; None for one that holds its rows by itself."""
        ref = self.value.get("rows")
        parsed = refs.parse(ref) if isinstance(ref, str) and ref.startswith(refs.INTERNAL) else None
        return parsed.name if parsed is not None and parsed.kind == "table" else None

    @property
    def own(self) -> Json:
        """What only Langfuse has."""
        own = self.value.get("langfuse")
        return own if isinstance(own, dict) else {}

    def describe(self, project_id: str) -> Json:
        """The answer."""
        changed = times.to_iso(self.row.created_at)
        return {
            "id": self.id,
            "name": self.name,
            "description": self.value.get("description"),
            "metadata": self.own.get("metadata"),
            "inputSchema": None,
            "expectedOutputSchema": None,
            "projectId": project_id,
            "createdAt": self.own.get("createdAt") or changed,
            "updatedAt": changed,
        }


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a dataset; rows of other makers are items too."""

    dataset: Dataset
    row: TableRow
    value: Json

    @property
    def id(self) -> str:
        """The item's own id, else the digest of its row."""
        return str(self.value.get("id") or self.row.digest)

    def describe(self) -> Json:
        """The answer."""
        own = self.value.get("langfuse")
        own = own if isinstance(own, dict) else {}
        changed = times.to_iso(self.dataset.row.created_at)
        given = self.value.get("input", self.value)
        return {
            "id": self.id,
            "status": own.get("status", ACTIVE),
            "input": given,
            "expectedOutput": self.value.get("expected_output", self.value.get("expected")),
            "metadata": self.value.get("metadata"),
            "sourceTraceId": own.get("sourceTraceId"),
            "sourceObservationId": own.get("sourceObservationId"),
            "datasetId": self.dataset.id,
            "datasetName": self.dataset.name,
            "createdAt": own.get("createdAt", changed),
            "updatedAt": own.get("updatedAt", changed),
            "mediaReferences": [],
        }


class StoredDatasets(OfProjectStore):
    """The datasets of one project, for one caller."""

    async def find(self, name: str, at: int | None = None) -> Dataset:
        """A dataset by its name or id: the latest version, or the one of an instant. Raises NotFound."""
        place, wanted = object_id(name), LATEST
        if at is not None:
            chosen = ObjectFilter(object_ids=(place,), is_op=False)
            versions = await self._store.objects.query(self.project.internal, chosen)
            before = [row for row in versions if row.created_at <= at]
            wanted = max(before, key=lambda row: row.version_index).digest if before else ""
        found = await self._store.objects.read(self.project.internal, place, wanted) if wanted else None
        if (
            found is None
            or found.deleted_at is not None
            or CLASS not in (found.base_object_class, found.leaf_object_class)
        ):
            raise NotFound(f"Dataset not found: '{name[:200]}'")
        return Dataset(found, orjson.loads(found.val or "{}"))

    async def all(self) -> list[ObjectVersion]:
        """The latest versions, by name, without their values."""
        wanted = ObjectFilter(base_object_classes=(CLASS,), is_op=False, latest_only=True)
        found = await self._store.objects.query(self.project.internal, wanted)
        return sorted(found, key=lambda row: row.object_id)

    async def create(self, name: str, description: str | None, metadata: Any) -> Dataset:
        """A dataset without items; one that is there keeps its items and gets the description and metadata."""
        place = object_id(name)
        given = {"name": name, "description": description}
        async with self._lock(place):
            for _ in range(_ATTEMPTS):
                before = None
                try:
                    before = await self.find(name)
                except NotFound:
                    digest, _ = await self._records.put_table(self.project.caller, self.project.id, [])
                    rows: Any = self._table_ref(digest)
                    created = times.to_iso(times.now())
                else:
                    rows, created = before.value.get("rows"), before.describe("")["createdAt"]
                own = {"metadata": metadata, "createdAt": created}
                with suppress(Conflict):
                    await self._publish(place, {**given, "rows": rows, "langfuse": own}, before)
                    return await self.find(name)
        raise Conflict("The dataset was changed by other clients; try again")

    async def items(self, dataset: Dataset, limit: int | None = None, offset: int = 0) -> AsyncIterator[Item]:
        """Its items in the order of their rows."""
        if dataset.table is None:
            listed = dataset.value.get("rows")
            for place, value in list(enumerate(listed if isinstance(listed, list) else []))[offset:][:limit]:
                if isinstance(value, dict):
                    yield Item(dataset, TableRow(place, refs.value_digest(value), ""), value)
            return
        pages = self._store.tables.pages(self.project.internal, dataset.table, limit=limit, offset=offset)
        async for page in pages:
            for row in page:
                value = orjson.loads(row.val)
                yield Item(dataset, row, value if isinstance(value, dict) else {"input": value})

    async def count(self, dataset: Dataset) -> int:
        """How many items it has."""
        if dataset.table is None:
            listed = dataset.value.get("rows")
            return len(listed) if isinstance(listed, list) else 0
        return await self._store.tables.count(self.project.internal, dataset.table) or 0

    async def find_item(self, item_id: str) -> Item:
        """An item by its id, in whichever dataset; raises NotFound."""
        for row in await self.all():
            dataset = await self.find(row.object_id)
            async for item in self.items(dataset):
                if item.id == item_id:
                    return item
        raise NotFound(f"Dataset item not found: '{item_id[:200]}'")

    async def put_item(self, name: str, value: Json, has_id: bool) -> Item:
        """Store an item; one with its id is replaced and keeps what `value` leaves out. Raises NotFound."""

        async def change(dataset: Dataset) -> tuple[int | None, Json]:
            before = await self._among(dataset, value["id"]) if has_id else None
            if before is None:
                return None, value
            self.project.caller.require(Scope.READ).open(self.project.id)  # the answer holds what is kept
            own = {**before.value.get("langfuse", {}), **value["langfuse"], "createdAt": before.describe()["createdAt"]}
            return before.row.position, {**before.value, **value, "langfuse": own}

        await self._change(name, change)
        dataset = await self.find(name)
        found = await self._among(dataset, value["id"])
        if found is None:
            raise Conflict("The dataset was changed by another client; send the item again")
        return found

    async def delete_item(self, item_id: str) -> None:
        """Delete an item; raises NotFound."""
        name = (await self.find_item(item_id)).dataset.name

        async def change(dataset: Dataset) -> tuple[int, None]:
            found = await self._among(dataset, item_id)
            if found is None:
                raise NotFound(f"Dataset item not found: '{item_id[:200]}'")
            return found.row.position, None

        await self._change(name, change)
        caller, what = self.project.caller, {"dataset": name, "id": item_id}
        await self._store.audit_log.note(caller.user, "dataset_item.delete", self.project.internal, what)

    async def _among(self, dataset: Dataset, item_id: str) -> Item | None:
        async for item in self.items(dataset):
            if item.id == item_id:
                return item
        return None

    async def _change(self, name: str, change: Callable[[Dataset], Awaitable[tuple[int | None, Json | None]]]) -> None:
        """Derive the table of the newest version and publish it; again when another server was faster.

        `change` tells which row goes (None is none), and what comes in its place or, where none goes, at the end.
        """
        place = object_id(name)
        async with self._lock(place):
            for _ in range(_ATTEMPTS):
                dataset = await self.find(name)
                if dataset.table is None:
                    raise InvalidRequest(
                        f"The dataset '{name[:200]}' contains its rows inline and is read-only in this API"
                    )
                position, value = await change(dataset)
                texts: dict[str, str] = {}
                edits = [] if position is None else [Edit("pop", position)]
                if value is not None:
                    [digest], texts = pack_rows([lenient(value, self.project.caller)])
                    edits.append(Edit("append", row=digest) if position is None else Edit("insert", position, digest))
                pieces, _ = apply_edits(await self.count(dataset), edits)
                table = await self._store.tables.derive(self.project.internal, dataset.table, pieces, texts)
                with suppress(Conflict):
                    return await self._publish(place, {**dataset.value, "rows": self._table_ref(table)}, dataset)
        raise Conflict("The dataset was changed by other clients; send the item again")

    async def _publish(self, place: str, value: Json, after: Dataset | None) -> None:
        """Store a version; raises Conflict where another one came behind the one that it was made of."""
        digest = "" if after is None else after.row.digest
        caller, project_id = self.project.caller, self.project.id
        await self._records.publish(caller, project_id, place, {**object_value(CLASS), **value}, digest)

    def _table_ref(self, digest: str) -> str:
        return f"{refs.INTERNAL}{self.project.internal}/table/{digest}"

    def _lock(self, place: str) -> asyncio.Lock:
        return _locks.setdefault((self.project.internal, place), asyncio.Lock())


ReadDatasets = Annotated[StoredDatasets, Depends(OfProject(Scope.READ, StoredDatasets))]
WriteDatasets = Annotated[StoredDatasets, Depends(OfProject(Scope.WRITE, StoredDatasets))]
DeleteDatasets = Annotated[StoredDatasets, Depends(OfProject(Scope.DELETE, StoredDatasets))]


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
            raise InvalidRequest(f"{name} is not supported: heddle does not validate items; leave it out", param=name)
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


@router.get("/api/public/dataset-items/{item_id:path}", **API)
async def get_item(item_id: str, datasets: ReadDatasets) -> Response:
    """One item, of whichever dataset."""
    return answer((await datasets.find_item(item_id)).describe())


@router.delete("/api/public/dataset-items/{item_id:path}", **API)
async def delete_item(item_id: str, datasets: DeleteDatasets) -> Response:
    """Delete an item: a new version of its dataset without it."""
    await datasets.delete_item(item_id)
    return answer({"message": "Dataset item successfully deleted"})
