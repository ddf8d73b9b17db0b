"""Where rows of datasets came from: links to calls, spans and conversations.

Contract: trace-evals, section 12.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import orjson
from fastapi import APIRouter, Response
from pydantic import Field

from heddle.errors import InvalidRequest, NotFound, TooLarge
from heddle.http.parameters import not_negative, page_limit
from heddle.http.routing import (
    Deleter,
    ProjectReq,
    Reader,
    RequestModel,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    describe_row,
    group,
)
from heddle.store.base import Store
from heddle.store.control.links import Source, SourceRow
from heddle.wire import jsontext, refs, times
from heddle.wire.batched import batched, group_pairs
from heddle.wire.calls import CallRow, CallsQuery, Filter
from heddle.wire.jsontypes import Json

router: APIRouter = group("Dataset sources")

MOST_LINKS = 1000
MOST_ROW_DIGESTS = 100
_MAX_DIGEST_BYTES = 128
Kind = Literal["call", "span", "conversation"]


class SourceRef(RequestModel):
    """What a row came from."""

    source_kind: Kind
    source_id: str = Field(min_length=1)
    source_trace_id: str


class DatasetSourceLinkPayload(RequestModel):
    """The sources of one row."""

    row_digest: str = Field(min_length=1)
    sources: list[SourceRef]
    link_metadata: Json | None = None


class DatasetSourcesLinkReq(ProjectReq):
    """Body of /dataset_sources/link."""

    dataset_object_id: str
    dataset_digest: str
    links: list[DatasetSourceLinkPayload]
    include_created_status: bool = False
    wb_user_id: str | None = None


class LinkEntry(ResponseModel):
    """A stored link; `created` where it was asked for: false when it was there already."""

    link_id: str
    created: bool | None = None


class DatasetSourcesLinkRes(ResponseModel):
    """One entry per row and source, in the order of the request."""

    entries: list[LinkEntry]


class DatasetSourcesLinkDeleteReq(ProjectReq):
    """Body of /dataset_sources/link_delete."""

    link_ids: list[str]
    wb_user_id: str | None = None


class LinkDeleteEntry(ResponseModel):
    """Whether a link was there to be deleted."""

    link_id: str
    deleted: bool


class DatasetSourcesLinkDeleteRes(ResponseModel):
    """One entry per id, in the order of the request."""

    entries: list[LinkDeleteEntry]


class DatasetSourcesQueryReq(ProjectReq):
    """Body of /dataset_sources/query."""

    dataset_object_id: str
    row_digests: list[str] | None = None
    source_kinds: list[Kind] | None = None
    include_deleted: bool = False
    limit: int | None = None
    offset: int | None = None
    wb_user_id: str | None = None


class DatasetSourceLink(ResponseModel):
    """A link; start and name are the source's as it is now, the link's own instant and "" while it is unknown."""

    id: str
    row_digest: str
    source_kind: Kind
    source_id: str
    source_trace_id: str
    source_started_at: datetime
    source_display_name: str
    link_metadata: Json | None = None
    added_by: str | None = None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None


class DatasetSourcesQueryRes(ResponseModel):
    """The links of all versions of the dataset, the oldest first."""

    links: list[DatasetSourceLink]


class SourceDatasetsQueryReq(ProjectReq):
    """Body of /dataset_sources/source_datasets_query."""

    sources: list[SourceRef]
    include_deleted: bool = False
    wb_user_id: str | None = None


class SourceDatasetMembership(ResponseModel):
    """A dataset with rows of a source; at most 100 of them are named."""

    source_kind: Kind
    source_id: str
    source_trace_id: str
    dataset_object_id: str
    row_digests: list[str]
    row_digests_truncated: bool
    row_digests_total_count: int
    first_seen_at: datetime


class SourceDatasetsQueryRes(ResponseModel):
    """One entry per source and dataset, in the order in which they were first linked."""

    memberships: list[SourceDatasetMembership]


@router.post("/dataset_sources/link", response_model=DatasetSourcesLinkRes, response_model_exclude_none=True)
async def link(body: DatasetSourcesLinkReq, caller: Writer, store: StoreDep) -> Response:
    """Say where rows of a dataset version came from; the same link again is the same, with its metadata replaced."""
    project, at = caller.open(body.project_id), times.now()
    pairs = [(row, source) for row in body.links for source in row.sources]
    _bounded("links", len(pairs))
    for row, source in pairs:
        refs.check_id("row_digest", row.row_digest, _MAX_DIGEST_BYTES)
        refs.check_id("source_id", source.source_id)
        refs.check_id("source_trace_id", source.source_trace_id)
    if any(source.source_kind == "span" and not source.source_trace_id for _, source in pairs):
        raise InvalidRequest(
            "source_trace_id is required for sources of kind span, as the id of a span is unique only within its trace"
        )
    found = await store.objects.read(project, body.dataset_object_id, body.dataset_digest, with_value=False)
    if found is None or found.deleted_at is not None or found.base_object_class != "Dataset":
        raise NotFound(f"Dataset {body.dataset_object_id[:200]}:{body.dataset_digest[:200]} not found")
    rows = [
        SourceRow(
            id=times.uuid7(),
            project=project,
            dataset_object_id=body.dataset_object_id,
            dataset_digest=found.digest,
            row_digest=row.row_digest,
            source_kind=source.source_kind,
            source_id=source.source_id,
            source_trace_id=source.source_trace_id,
            link_metadata=None if row.link_metadata is None else jsontext.dumps(row.link_metadata),
            added_by=caller.user,
            created_at=at,
            updated_at=at,
        )
        for row, source in pairs
    ]
    stored = await store.dataset_sources.link(rows)
    shown = [{"link_id": link_id, "created": created} for link_id, created in stored]
    return answer({"entries": shown if body.include_created_status else [{"link_id": entry[0]} for entry in stored]})


@router.post("/dataset_sources/link_delete", response_model=DatasetSourcesLinkDeleteRes)
async def link_delete(body: DatasetSourcesLinkDeleteReq, caller: Deleter, store: StoreDep) -> Response:
    """Delete links; they are still shown where deleted ones are asked for."""
    project = caller.open(body.project_id)
    _bounded("link_ids", len(body.link_ids))
    gone = await store.dataset_sources.delete(project, body.link_ids, caller.user, times.now())
    return answer({"entries": [{"link_id": link_id, "deleted": link_id in gone} for link_id in body.link_ids]})


@router.post("/dataset_sources/query", response_model=DatasetSourcesQueryRes)
async def query(body: DatasetSourcesQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The links of a dataset."""
    project = caller.open(body.project_id)
    _bounded("row_digests", len(body.row_digests or ()))
    rows = await store.dataset_sources.query(
        project,
        body.dataset_object_id,
        row_digests=body.row_digests,
        kinds=body.source_kinds,
        with_deleted=body.include_deleted,
        limit=page_limit(settings, not_negative(body.limit, "limit")),
        offset=not_negative(body.offset, "offset") or 0,
    )
    seen = await _sources(store, project, rows)
    return answer({"links": [_describe(row, *seen.get(row.source, (row.created_at, ""))) for row in rows]})


@router.post("/dataset_sources/source_datasets_query", response_model=SourceDatasetsQueryRes)
async def source_datasets_query(body: SourceDatasetsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The datasets that hold rows of sources."""
    project = caller.open(body.project_id)
    _bounded("sources", len(body.sources))
    wanted = {(source.source_kind, source.source_id, source.source_trace_id) for source in body.sources}
    rows = await store.dataset_sources.of_sources(project, wanted, body.include_deleted)
    members = group_pairs(((row.source, row.dataset_object_id), row) for row in rows)
    return answer({"memberships": [_membership(*key, found) for key, found in members.items()]})


def _bounded(name: str, count: int) -> None:
    if count > MOST_LINKS:
        raise TooLarge(f"{name} has {count} entries, at most {MOST_LINKS} are allowed in one request")


async def _sources(store: Store, project: str, rows: Iterable[SourceRow]) -> dict[Source, tuple[int, str]]:
    """When each source that is known began, and what it is called; a conversation begins with its trace."""
    wanted = sorted({row.source for row in rows})
    by_id = {call.id: call for call in await _calls(store, project, "call_ids", [item[1] for item in wanted])}
    talks = [trace for kind, _, trace in wanted if kind == "conversation"]
    by_trace: dict[str, CallRow] = {}
    for call in await _calls(store, project, "trace_ids", talks):
        by_trace.setdefault(call.trace_id, call)
    found: dict[Source, tuple[int, str]] = {}
    for source in wanted:
        known = by_trace.get(source[2]) if source[0] == "conversation" else by_id.get(source[1])
        if known is not None:
            name = known.display_name or refs.operation_name(known.op_name)
            found[source] = (known.started_at, name)
    return found


async def _calls(store: Store, project: str, by: str, names: list[str]) -> list[CallRow]:
    """The calls of these ids (`call_ids`), or the roots of these traces (`trace_ids`), the oldest first."""
    found: list[CallRow] = []
    for part in map(tuple, batched(names)):
        chosen = Filter(call_ids=part) if by == "call_ids" else Filter(trace_ids=part, roots_only=True)
        async for slice_ in store.calls.stream(CallsQuery(project, chosen)):
            found += slice_
    return found


def _describe(row: SourceRow, started_at: int, name: str) -> Json:
    metadata = None if row.link_metadata is None else orjson.Fragment(row.link_metadata)
    values = {"source_started_at": started_at, "source_display_name": name, "link_metadata": metadata}
    return describe_row(DatasetSourceLink, row, **values)


def _membership(source: Source, dataset: str, rows: list[SourceRow]) -> Json:
    named = list(dict.fromkeys(row.row_digest for row in rows))
    return {
        "source_kind": source[0],
        "source_id": source[1],
        "source_trace_id": source[2],
        "dataset_object_id": dataset,
        "row_digests": named[:MOST_ROW_DIGESTS],
        "row_digests_truncated": len(named) > MOST_ROW_DIGESTS,
        "row_digests_total_count": len(named),
        "first_seen_at": times.to_iso(rows[0].created_at),
    }
