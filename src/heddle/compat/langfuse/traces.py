"""/api/public/{traces,observations,sessions}: calls, as clients of Langfuse read them back; traces deleted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.compat.langfuse.access import (
    API,
    REFUSING,
    Conditions,
    Limit,
    OfProject,
    OfProjectStore,
    Page,
    meta,
    to_cursor,
)
from heddle.compat.langfuse.observation import (
    DEFAULT,
    ERROR,
    EVENT,
    GROUPS,
    SPAN,
    TYPES,
    USER_PATHS,
    Observation,
    TraceSums,
)
from heddle.compat.langfuse.scores import to_second
from heddle.compat.langfuse.stored_scores import ReadScores, Selection
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import RequestModel, answer, group
from heddle.trace.calls.models import CallsFilter, CallsQueryReq, SortBy
from heddle.trace.calls.read import CallReader
from heddle.trace.otel.packing import op_object_id
from heddle.trace.rows import answer_slices
from heddle.wire import query, refs
from heddle.wire.batched import batched
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.jsontypes import Json

T = TypeVar("T")


@dataclass(slots=True)
class Chosen(Conditions):
    """Which calls: conditions and a filter of /calls/stream_query."""

    filter: dict[str, Any] = field(default_factory=dict)

    def of_level(self, level: str | None) -> None:
        """The calls that are shown with this level; a failed one has that of an error, whatever it says."""
        if level is None:
            return
        failed = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}
        if level == ERROR:
            self.conditions.append(failed)
        else:
            self.conditions.append({"$not": [failed]})
            self.among("attributes.level", ["", DEFAULT] if level == DEFAULT else [level])

    def of_environment(self, names: Sequence[str] | None) -> None:
        """The calls of some environments; a call that tells none is of the default one."""
        if names is not None:
            self.among("attributes.environment", ["", *names] if "default" in names else names)

    def of_user(self, user: str | None) -> None:
        """The calls that are shown with this user."""
        if user is None:
            return
        fields = [{"$getField": f"attributes.otel_span.attributes.{path}"} for path in USER_PATHS]
        found: list[Json] = []
        for index, field_ in enumerate(fields):
            others = [{"$not": [earlier]} for earlier in fields[:index]]
            found.append({"$and": [*others, {"$eq": [field_, {"$literal": user}]}]})
        self.conditions.append({"$or": found})

    def named(self, name: str | None) -> None:
        """The name that people read, or that of the op, is this one; None is no condition."""
        if name is not None:
            shown = {"$eq": [{"$getField": "summary.weave.trace_name"}, {"$literal": name}]}
            of_op = f"/op/{op_object_id(name)}:"
            op = {"$contains": {"input": {"$getField": "op_name"}, "substr": {"$literal": of_op}}}
            self.conditions.append({"$or": [shown, op]})


class Observations(OfProjectStore):
    """The calls of one project, for one caller."""

    def request(
        self,
        chosen: Chosen,
        limit: int | None = None,
        offset: int = 0,
        newest: bool = True,
        columns: list[str] | None = None,
    ) -> CallsQueryReq:
        """The query for some calls; their large fields are those of `columns`."""
        direction = "desc" if newest else "asc"
        conditions = chosen.conditions
        return CallsQueryReq(
            project_id=self.project.id,
            filter=CallsFilter(**chosen.filter),
            query=query.parse_query({"$expr": {"$and": conditions}}) if conditions else None,
            sort_by=[SortBy(field=name, direction=direction) for name in ("started_at", "id")],
            limit=limit,
            offset=offset,
            columns=columns,
            include_costs=True,
        )

    async def slices(self, request: CallsQueryReq, show: Callable[[Observation], T]) -> AsyncIterator[list[T]]:
        """The selected calls as `show` makes them, as many at a time as memory should hold."""
        reader, project_id = await CallReader.open(self._store, self.project.caller, request), self.project.id

        def read(lines: list[Json]) -> list[T]:
            return [show(Observation(orjson.loads(refs.convert_out(orjson.dumps(line))), project_id)) for line in lines]

        async for lines in reader.slices():
            yield await asyncio.to_thread(read, lines)

    async def read(self, request: CallsQueryReq) -> AsyncIterator[Observation]:
        """The selected calls, one after the other."""
        async for part in self.slices(request, lambda one: one):
            for one in part:
                yield one

    async def count(self, request: CallsQueryReq) -> int:
        """How many calls there are without the page."""
        whole = request.model_copy(update={"limit": None, "offset": None})
        return await self._store.calls.count((await CallReader.open(self._store, self.project.caller, whole)).query)

    async def delete(self, trace_ids: Sequence[str]) -> None:
        """Delete all calls of traces; unknown ones are passed over."""
        chosen = CallsQuery(self.project.internal, Filter(trace_ids=tuple(trace_ids)), columns=frozenset())
        ids = [row.id async for rows in self._store.calls.stream(chosen) for row in rows]
        for part in batched(ids):
            await self._records.delete_calls(self.project.caller, self.project.id, list(part))


ReadObservations = Annotated[Observations, Depends(OfProject(Scope.READ, Observations))]
DeleteObservations = Annotated[Observations, Depends(OfProject(Scope.DELETE, Observations))]


router: APIRouter = group("Langfuse")
_SCORES = 1000
"""Are read at a time."""
_SUMMED = ["summary"]
"""The large fields that `TraceSums` reads."""
_KINDS = {name: kind for kind, name in TYPES.items()}
TraceId = Annotated[str | None, Query(alias="traceId")]
SessionId = Annotated[str | None, Query(alias="sessionId")]
UserId = Annotated[str | None, Query(alias="userId")]
Level = Literal["DEBUG", "DEFAULT", "WARNING", "ERROR"]


class DeleteTraces(RequestModel):
    """The traces to delete."""

    trace_ids: list[str] = Field(alias="traceIds", min_length=1, max_length=1000)


async def choose_observations(
    name: str | None = None,
    type: str | None = None,
    level: Level | None = None,
    version: str | None = None,
    environment: Annotated[list[str] | None, Query()] = None,
    trace_id: TraceId = None,
    user_id: UserId = None,
    parent_id: Annotated[str | None, Query(alias="parentObservationId")] = None,
    from_start: Annotated[datetime | None, Query(alias="fromStartTime")] = None,
    to_start: Annotated[datetime | None, Query(alias="toStartTime")] = None,
) -> Chosen:
    """The calls that a list of observations is about; raises InvalidRequest for what is not offered."""
    chosen = Chosen()
    chosen.named(name)
    if type is not None:
        word = type.upper()
        if word in (SPAN, EVENT) or word not in _KINDS:
            offered = ", ".join(_KINDS)
            raise InvalidRequest(
                f"type: {type[:100]!r} is not supported as a filter; expected one of {offered}", param="type"
            )
        chosen.equals("attributes.kind", _KINDS[word])
    chosen.of_level(level)
    chosen.equals("attributes.version", version)
    chosen.of_environment(environment)
    chosen.of_user(user_id)
    chosen.within("started_at", from_start, to_start)
    for key, value in (("trace_ids", trace_id), ("parent_ids", parent_id)):
        if value is not None:
            chosen.filter[key] = [value]
    return chosen


Observed = Annotated[Chosen, Depends(choose_observations)]


@router.get("/api/public/v2/observations", **REFUSING)
async def list_observations_by_cursor(
    observations: ReadObservations,
    chosen: Observed,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: str | None = None,
    fields: str | None = None,
    session_id: SessionId = None,
    is_root: Annotated[bool | None, Query(alias="isRootObservation")] = None,
) -> Response:
    """Observations, the newest first, with the groups of fields that are asked for."""
    groups = ["core", *([word.strip() for word in fields.split(",")] if fields else ["basic"])]
    if strange := [word for word in groups if word not in GROUPS]:
        raise InvalidRequest(f"fields: {strange[0][:100]!r} is not one of {', '.join(GROUPS)}", param="fields")
    if session_id is not None:
        chosen.filter["thread_ids"] = [session_id]
    if is_root:
        chosen.filter["trace_roots_only"] = True
    elif is_root is not None:
        raise InvalidRequest("isRootObservation: only true is supported", param="isRootObservation")
    chosen.behind("started_at", cursor)
    left, following = limit, ""

    async def page() -> AsyncIterator[list[Json]]:
        nonlocal left, following
        query = observations.request(chosen, limit + 1)

        def show(one: Observation) -> tuple[str, Json]:
            return to_cursor(one.call["started_at"], one.call["id"]), one.select(groups)

        async for part in observations.slices(query, show):
            if shown := part[:left]:
                following = shown[-1][0]
            yield [selected for _, selected in shown]
            left -= len(part)

    def tell_cursor() -> Json:
        return {"meta": {"cursor": following} if left < 0 else {}}

    return await answer_slices("data", page(), tell_cursor)


@router.get("/api/public/observations", **REFUSING)
async def list_observations(
    observations: ReadObservations, chosen: Observed, page: Page = 1, limit: Limit = 50
) -> Response:
    """Observations, the newest first, as SDKs before version 5 read them."""
    query = observations.request(chosen, limit, (page - 1) * limit)
    total = await observations.count(query)
    return await answer_slices("data", observations.slices(query, Observation.whole), meta=meta(page, limit, total))


@router.get("/api/public/observations/{observation_id:path}", **API)
async def get_observation(observation_id: str, observations: ReadObservations) -> Response:
    """One observation."""
    query = observations.request(Chosen(filter={"call_ids": [observation_id]}), 1)
    async for one in observations.read(query):
        return answer(one.whole())
    raise NotFound(f"Observation not found: '{observation_id[:200]}'")


@router.get("/api/public/traces", **REFUSING)
async def list_traces(
    observations: ReadObservations,
    page: Page = 1,
    limit: Limit = 50,
    name: str | None = None,
    user_id: UserId = None,
    session_id: SessionId = None,
    version: str | None = None,
    release: str | None = None,
    environment: Annotated[list[str] | None, Query()] = None,
    order_by: Annotated[Literal["timestamp.asc", "timestamp.desc"], Query(alias="orderBy")] = "timestamp.desc",
    from_timestamp: Annotated[datetime | None, Query(alias="fromTimestamp")] = None,
    to_timestamp: Annotated[datetime | None, Query(alias="toTimestamp")] = None,
) -> Response:
    """Traces, the newest first, each with the ids of its observations."""
    chosen = Chosen(filter={"trace_roots_only": True})
    chosen.named(name)
    chosen.of_user(user_id)
    chosen.equals("attributes.version", version)
    chosen.equals("attributes.release", release)
    chosen.of_environment(environment)
    if session_id is not None:
        chosen.filter["thread_ids"] = [session_id]
    chosen.within("started_at", from_timestamp, to_timestamp)
    query = observations.request(chosen, limit, (page - 1) * limit, newest=order_by == "timestamp.desc")
    roots = [one.trace_id async for one in observations.read(query.model_copy(update={"columns": _SUMMED}))]
    within = Chosen(filter={"trace_ids": roots})
    sums = {trace_id: TraceSums() for trace_id in roots}
    if roots:
        async for one in observations.read(observations.request(within, newest=False, columns=_SUMMED)):
            sums[one.trace_id].add(one)

    def show(root: Observation) -> Json | None:
        mine = sums.get(root.trace_id) or TraceSums()  # the trace may have come just now
        # A trace is what its first root says; others are observations of it.
        is_first = mine.root in (None, root.call["id"])
        return {**root.trace(), **mine.described(), "observations": mine.ids, "scores": []} if is_first else None

    async def shown() -> AsyncIterator[list[Json]]:
        async for part in observations.slices(query, show):
            yield [one for one in part if one is not None]

    total = await observations.count(query)
    return await answer_slices("data", shown(), meta=meta(page, limit, total))


@router.get("/api/public/traces/{trace_id:path}", **API)
async def get_trace(trace_id: str, observations: ReadObservations, scores: ReadScores) -> Response:
    """One trace with its observations and scores."""
    query = observations.request(Chosen(filter={"trace_ids": [trace_id]}), newest=False)
    sums, root = TraceSums(), None
    async for one in observations.read(query.model_copy(update={"columns": _SUMMED})):
        sums.add(one)
        if root is None or (one.call.get("parent_id") is None and root.call.get("parent_id") is not None):
            root = one
    if root is None:
        raise NotFound(f"Trace not found: '{trace_id[:200]}'")
    selection = Selection()
    selection.equals("traceId", trace_id)
    given, total = await scores.query(selection, _SCORES, 0)
    while len(given) < total and (more := (await scores.query(selection, _SCORES, len(given)))[0]):
        given += more
    outermost, told = root.call["id"], {**root.trace(), **sums.described()}

    def show(one: Observation) -> Json:
        if one.call["id"] == outermost:
            told.update(one.trace())
        return one.whole()

    shown = [to_second(score, scores.project.id) for score in given]
    return await answer_slices("observations", observations.slices(query, show), lambda: told, scores=shown)


@router.delete("/api/public/traces/{trace_id:path}", **API)
async def delete_trace(trace_id: str, observations: DeleteObservations) -> Response:
    """Delete a trace: all its calls."""
    await observations.delete([trace_id])
    return answer({"message": "Trace deleted"})


@router.delete("/api/public/traces", **API)
async def delete_traces(body: DeleteTraces, observations: DeleteObservations) -> Response:
    """Delete traces: all their calls; unknown ones are passed over."""
    await observations.delete(body.trace_ids)
    return answer({"message": "Traces deleted"})


@router.get("/api/public/sessions/{session_id:path}", **API)
async def get_session(session_id: str, observations: ReadObservations) -> Response:
    """A session: the traces of a conversation, the oldest first."""
    chosen = Chosen(filter={"thread_ids": [session_id], "trace_roots_only": True})
    query = observations.request(chosen, newest=False)
    seen = set[str]()

    async def traces() -> AsyncIterator[list[Json]]:
        async for part in observations.slices(query, Observation.trace):
            found = list[Json]()
            for one in part:
                if one["id"] not in seen:
                    seen.add(one["id"])
                    found.append(one)
            yield found

    async for first in observations.read(query.model_copy(update={"limit": 1})):
        return await answer_slices(
            "traces",
            traces(),
            id=session_id,
            createdAt=first.call["started_at"],
            projectId=observations.project.id,
            environment=first.environment,
        )
    raise NotFound(f"Session not found: '{session_id[:200]}'")
