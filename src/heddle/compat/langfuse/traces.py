"""/api/public/{traces,observations,sessions}: calls, as clients of Langfuse read them back; traces deleted."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

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
    offset_of,
    to_cursor,
)
from heddle.compat.langfuse.scores import ReadScores, Selection, to_second
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import RequestModel, answer, group
from heddle.trace.calls.models import CallsFilter, CallsQueryReq, SortBy
from heddle.trace.calls.read import CallReader, retention_of
from heddle.trace.otel.packing import op_object_id
from heddle.wire import query, refs, times
from heddle.wire.batched import batched
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.jsontypes import Json

TYPES = {
    "llm": "GENERATION",
    "tool": "TOOL",
    "agent": "AGENT",
    "workflow": "CHAIN",
    "embedding": "EMBEDDING",
    "retriever": "RETRIEVER",
    "evaluator": "EVALUATOR",
    "guardrail": "GUARDRAIL",
}
"""Kinds of calls as types of observations; all others are spans."""
SPAN, EVENT = "SPAN", "EVENT"
DEFAULT, ERROR = "DEFAULT", "ERROR"
_USAGE = {
    "input": ("prompt_tokens", "input_tokens"),
    "output": ("completion_tokens", "output_tokens"),
    "total": ("total_tokens",),
    "input_cached_tokens": ("cache_read_input_tokens",),
    "input_cache_creation": ("cache_creation_input_tokens",),
    "output_reasoning_tokens": ("reasoning_tokens",),
}
_WITHIN = {"input": ("input_cached_tokens", "input_cache_creation"), "output": ("output_reasoning_tokens",)}
"""Counts that heddle's sums hold inside, and Langfuse has beside."""
_COSTS = {
    "input": "prompt_tokens_total_cost",
    "input_cached_tokens": "cache_read_input_tokens_total_cost",
    "input_cache_creation": "cache_creation_input_tokens_total_cost",
    "output": "completion_tokens_total_cost",
}

GROUPS = {
    "core": ("id", "traceId", "projectId", "parentObservationId", "type", "startTime", "endTime"),
    "basic": ("name", "level", "statusMessage", "version", "environment", "userId", "sessionId", "isRootObservation"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("model", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "prompt": ("promptName", "promptVersion"),
    "metrics": ("latency",),
    "trace_context": ("tags", "release", "traceName"),
}
"""The groups of fields of an observation."""


@dataclass(slots=True)
class Chosen(Conditions):
    """Which calls: conditions and a filter of /calls/stream_query."""

    filter: dict[str, Any] = field(default_factory=dict)

    def named(self, name: str | None) -> None:
        """The name that people read, or that of the op, is this one; None is no condition."""
        if name is not None:
            shown = {"$eq": [{"$getField": "summary.weave.trace_name"}, {"$literal": name}]}
            of_op = f"/op/{op_object_id(name)}:"
            op = {"$contains": {"input": {"$getField": "op_name"}, "substr": {"$literal": of_op}}}
            self.conditions.append({"$or": [shown, op]})


class Observations(OfProjectStore):
    """The calls of one project, for one caller."""

    def request(self, chosen: Chosen, limit: int | None = None, offset: int = 0, newest: bool = True) -> CallsQueryReq:
        """The query for some calls."""
        direction = "desc" if newest else "asc"
        conditions = chosen.conditions
        return CallsQueryReq(
            project_id=self.project.id,
            filter=CallsFilter(**chosen.filter),
            query=query.parse_query({"$expr": {"$and": conditions}}) if conditions else None,
            sort_by=[SortBy(field=name, direction=direction) for name in ("started_at", "id")],
            limit=limit,
            offset=offset,
            include_costs=True,
        )

    async def read(self, request: CallsQueryReq) -> AsyncIterator["Observation"]:
        """The selected calls."""
        retention = await retention_of(self._store, self.project.internal)
        async for lines in CallReader(self._store, self.project.caller, request, retention).slices():
            for line in lines:
                yield Observation(orjson.loads(refs.convert_out(orjson.dumps(line))), self.project.id)

    async def count(self, request: CallsQueryReq) -> int:
        """How many calls there are without the page."""
        whole = request.model_copy(update={"limit": None, "offset": None})
        retention = await retention_of(self._store, self.project.internal)
        return await self._store.calls.count(CallReader(self._store, self.project.caller, whole, retention).query)

    async def delete(self, trace_ids: Sequence[str]) -> None:
        """Delete all calls of traces; unknown ones are passed over."""
        chosen = CallsQuery(self.project.internal, Filter(trace_ids=tuple(trace_ids)), columns=frozenset())
        ids = [row.id async for rows in self._store.calls.stream(chosen) for row in rows]
        for part in batched(ids):
            await self._records.delete_calls(self.project.caller, self.project.id, list(part))


ReadObservations = Annotated[Observations, Depends(OfProject(Scope.READ, Observations))]
DeleteObservations = Annotated[Observations, Depends(OfProject(Scope.DELETE, Observations))]


class Observation:
    """One call as an observation; what it lacks is None."""

    def __init__(self, call: Json, project_id: str) -> None:
        self.call = call
        self._project_id = project_id
        self._attributes: Json = call.get("attributes") or {}
        span = self._attributes.get("otel_span")
        self._span: Json = span if isinstance(span, dict) else {}
        self._raw = _object(self._span.get("attributes"))
        self._own = _object(_object(self._raw.get("langfuse")).get("observation"))

    @property
    def trace_id(self) -> str:
        """The trace that it belongs to."""
        return str(self.call["trace_id"])

    @property
    def name(self) -> str:
        """The span's own name, else that of the call."""
        names = (self._span.get("name"), self.call.get("display_name"), refs.operation_name(self.call["op_name"]))
        return next(str(name) for name in names if name)

    @property
    def trace_name(self) -> str:
        """The name of its trace, as far as it says one."""
        named = self._of_trace("name") or self._attributes.get("trace_name") or self.call.get("display_name")
        return str(named) if named else self.name

    @property
    def type(self) -> str:
        """GENERATION, SPAN, TOOL, ..."""
        if str(self._own.get("type")).upper() == EVENT:
            return EVENT
        return TYPES.get(str(self._attributes.get("kind")), SPAN)

    @property
    def user_id(self) -> str | None:
        """Whom the work was done for."""
        own = _object(_object(self._raw.get("langfuse")).get("user"))
        found = _object(self._raw.get("user")).get("id") or own.get("id")
        return found if isinstance(found, str) else None

    @property
    def tags(self) -> list[str]:
        """The tags of its trace."""
        tags = self._attributes.get("tags") or self._of_trace("tags")
        return [str(tag) for tag in tags] if isinstance(tags, list) else []

    @property
    def input(self) -> Any:
        """What went in, as it was sent."""
        return self._own["input"] if "input" in self._own else self.call.get("inputs") or None

    @property
    def output(self) -> Any:
        """What came out."""
        found = self._own["output"] if "output" in self._own else self.call.get("output")
        return None if found == {} else found

    @property
    def seconds(self) -> float | None:
        """From start to end."""
        first, last = times.parse(self.call["started_at"]), times.parse(self.call.get("ended_at") or "")
        return None if first is None or last is None else (last - first) / times.SECOND

    @property
    def cost(self) -> float | None:
        """US dollars."""
        return self.costs.get("total")

    @property
    def costs(self) -> dict[str, float]:
        """US dollars by kind of token and in total, by the prices that the server knows; empty without tokens."""
        priced = list(((self.call.get("summary") or {}).get("weave", {}).get("costs") or {}).values())
        sums = {name: sum(float(one.get(key) or 0) for one in priced) for name, key in _COSTS.items()}
        found = {name: cost for name, cost in sums.items() if cost}
        return {**found, "total": sum(found.values())} if found else {}

    @property
    def usage(self) -> dict[str, int]:
        """Tokens by kind, cached ones and thoughts beside input and output."""
        found: dict[str, int] = {}
        for entry in ((self.call.get("summary") or {}).get("usage") or {}).values():
            for name, keys in _USAGE.items():
                count = next((entry[key] for key in keys if entry.get(key)), None)
                if isinstance(count, int):
                    found[name] = found.get(name, 0) + count
        for whole, parts in _WITHIN.items():
            inside = sum(found.get(part, 0) for part in parts)
            if whole in found and inside <= found[whole]:
                found[whole] -= inside
        return found

    def _of_trace(self, name: str) -> Any:
        return _object(_object(self._raw.get("langfuse")).get("trace")).get(name)

    def _said(self, name: str) -> Any:
        """What is said under a name by the call, or by the span in the words of Langfuse."""
        return self._attributes.get(name) or _object(self._raw.get("langfuse")).get(name)

    @property
    def environment(self) -> str:
        """Where it ran."""
        return str(self._said("environment") or "default")

    @property
    def metadata(self) -> Any:
        """What else its maker told."""
        return self._attributes.get("metadata") or self._own.get("metadata") or {}

    def fields(self) -> Json:
        """What the groups of fields are made of."""
        call, usage = self.call, self.usage
        own, exception, started = self._own, call.get("exception"), call["started_at"]
        begun = own.get("completion_start_time") or self._attributes.get("completion_start_time")
        level, message = (self._attributes.get(name) or own.get(name) for name in ("level", "status_message"))
        model, parameters = self._attributes.get("model"), _object(own.get("model")).get("parameters")
        prompt = _object(self._attributes.get("prompt") or own.get("prompt"))
        return {
            "id": call["id"],
            "traceId": self.trace_id,
            "projectId": self._project_id,
            "parentObservationId": call.get("parent_id"),
            "type": self.type,
            "startTime": started,
            "endTime": call.get("ended_at"),
            "name": self.name,
            "level": ERROR if exception else str(level or DEFAULT),
            "statusMessage": message or exception,
            "version": self._said("version"),
            "environment": self.environment,
            "userId": self.user_id,
            "sessionId": call.get("thread_id"),
            "isRootObservation": call.get("parent_id") is None,
            "input": self.input,
            "output": self.output,
            "model": model if isinstance(model, str) else None,
            "modelParameters": parameters or self._attributes.get("model_parameters"),
            "promptName": prompt.get("name"),
            "promptVersion": prompt.get("version"),
            "usageDetails": usage,
            "costDetails": self.costs,
            "totalCost": self.cost,
            "completionStartTime": str(begun).strip('"') if begun else None,
            "createdAt": started,
            "updatedAt": call.get("ended_at") or started,
            "metadata": self.metadata,
            "latency": self.seconds,
            "tags": self.tags,
            "release": self._said("release"),
            "traceName": self.trace_name,
        }

    def select(self, groups: Sequence[str]) -> Json:
        """The fields of some groups, as the second version of the interface has them: input and output as JSON text."""
        known = self.fields()
        known |= {name: _text(known[name]) for name in GROUPS["io"]}
        return {name: known[name] for group in groups for name in GROUPS[group]}

    def whole(self) -> Json:
        """Everything, as the first version of the interface has it."""
        known, usage = self.fields(), self.usage
        counts = {name: sum(count for key, count in usage.items() if key.startswith(name)) for name in _WITHIN}
        return {
            **{name: value for name, value in known.items() if name not in GROUPS["trace_context"]},
            "usage": {**counts, "total": sum(counts.values()), "unit": "TOKENS"},
            "calculatedTotalCost": known["totalCost"],
            "promptId": None,
            "modelId": None,
        }

    def trace(self) -> Json:
        """The trace that it is the outermost observation of."""
        given = {name: self._of_trace(name) for name in ("input", "output")}
        return {
            "id": self.trace_id,
            "timestamp": self.call["started_at"],
            "createdAt": self.call["started_at"],
            "updatedAt": self.call.get("ended_at") or self.call["started_at"],
            "projectId": self._project_id,
            "name": self.trace_name,
            "input": self.input if given["input"] is None else given["input"],
            "output": self.output if given["output"] is None else given["output"],
            "sessionId": self.call.get("thread_id"),
            "userId": self.user_id,
            "release": self._said("release"),
            "version": self._said("version"),
            "metadata": self.metadata,
            "tags": self.tags,
            "public": False,
            "bookmarked": False,
            "environment": self.environment,
            "htmlPath": f"/{self._project_id}/weave/traces/{self.trace_id}",
        }


def sum_up(observations: Sequence[Observation]) -> Mapping[str, Any]:
    """Cost and duration of a trace, of all its observations."""
    costs = [one.cost for one in observations if one.cost is not None]
    firsts = [first for one in observations if (first := times.parse(one.call["started_at"])) is not None]
    lasts = [last for one in observations if (last := times.parse(one.call.get("ended_at") or "")) is not None]
    seconds = (max(lasts) - min(firsts)) / times.SECOND if firsts and lasts else 0.0
    return {"totalCost": sum(costs), "latency": max(seconds, 0.0)}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


router: APIRouter = group("Langfuse")
MOST_OBSERVATIONS = 10_000
"""Of one trace, or of a page of traces."""
_MOST_SCORES = 1000
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
                f"type: {type[:100]!r} is not offered as a filter; offered are {offered}", param="type"
            )
        chosen.equals("attributes.kind", _KINDS[word])
    if level is not None:
        if level == ERROR:
            chosen.equals("summary.weave.status", "error")
        else:
            chosen.equals("attributes.level", level)
    chosen.equals("attributes.version", version)
    chosen.among("attributes.environment", environment)
    chosen.equals("wb_user_id", user_id)
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
        raise InvalidRequest(f"fields: {strange[0][:100]!r} is none of {', '.join(GROUPS)}", param="fields")
    if session_id is not None:
        chosen.filter["thread_ids"] = [session_id]
    if is_root:
        chosen.filter["trace_roots_only"] = True
    elif is_root is not None:
        raise InvalidRequest("isRootObservation: only true is offered", param="isRootObservation")
    offset = offset_of(cursor)
    found = [one async for one in observations.read(observations.request(chosen, limit + 1, offset))]
    data = [one.select(groups) for one in found[:limit]]
    more = {"cursor": to_cursor(offset + limit)} if len(found) > limit else {}
    return answer({"data": data, "meta": more})


@router.get("/api/public/observations", **REFUSING)
async def list_observations(
    observations: ReadObservations, chosen: Observed, page: Page = 1, limit: Limit = 50
) -> Response:
    """Observations, the newest first, as SDKs before version 5 read them."""
    query = observations.request(chosen, limit, (page - 1) * limit)
    data = [one.whole() async for one in observations.read(query)]
    return answer({"data": data, "meta": meta(page, limit, await observations.count(query))})


@router.get("/api/public/observations/{observation_id}", **API)
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
    chosen.equals("wb_user_id", user_id)
    chosen.equals("attributes.version", version)
    chosen.equals("attributes.release", release)
    chosen.among("attributes.environment", environment)
    if session_id is not None:
        chosen.filter["thread_ids"] = [session_id]
    chosen.within("started_at", from_timestamp, to_timestamp)
    query = observations.request(chosen, limit, (page - 1) * limit, newest=order_by == "timestamp.desc")
    roots = [one async for one in observations.read(query)]
    within = Chosen(filter={"trace_ids": [one.trace_id for one in roots]})
    parts: dict[str, list[Observation]] = {}
    if roots:
        async for one in observations.read(observations.request(within, MOST_OBSERVATIONS, newest=False)):
            parts.setdefault(one.trace_id, []).append(one)
    data = [
        {**root.trace(), **sum_up(mine), "observations": [one.call["id"] for one in mine], "scores": []}
        for root in roots
        for mine in [parts.get(root.trace_id, [])]
    ]
    return answer({"data": data, "meta": meta(page, limit, await observations.count(query))})


@router.get("/api/public/traces/{trace_id}", **API)
async def get_trace(trace_id: str, observations: ReadObservations, scores: ReadScores) -> Response:
    """One trace with its observations and scores."""
    query = observations.request(Chosen(filter={"trace_ids": [trace_id]}), MOST_OBSERVATIONS, newest=False)
    found = [one async for one in observations.read(query)]
    if not found:
        raise NotFound(f"Trace not found: '{trace_id[:200]}'")
    root = next((one for one in found if one.call.get("parent_id") is None), found[0])
    selection = Selection()
    selection.equals("traceId", trace_id)
    given, _ = await scores.query(selection, _MOST_SCORES, 0)
    return answer(
        {
            **root.trace(),
            **sum_up(found),
            "observations": [one.whole() for one in found],
            "scores": [to_second(score, scores.project.id) for score in given],
        }
    )


@router.delete("/api/public/traces/{trace_id}", **API)
async def delete_trace(trace_id: str, observations: DeleteObservations) -> Response:
    """Delete a trace: all its calls."""
    await observations.delete([trace_id])
    return answer({"message": "Trace deleted"})


@router.delete("/api/public/traces", **API)
async def delete_traces(body: DeleteTraces, observations: DeleteObservations) -> Response:
    """Delete traces: all their calls; unknown ones are passed over."""
    await observations.delete(body.trace_ids)
    return answer({"message": "Traces deleted"})


@router.get("/api/public/sessions/{session_id}", **API)
async def get_session(session_id: str, observations: ReadObservations) -> Response:
    """A session: the traces of a conversation, the oldest first."""
    chosen = Chosen(filter={"thread_ids": [session_id], "trace_roots_only": True})
    found = [one async for one in observations.read(observations.request(chosen, _MOST_SCORES, newest=False))]
    if not found:
        raise NotFound(f"Session not found: '{session_id[:200]}'")
    first = found[0]
    return answer(
        {
            "id": session_id,
            "createdAt": first.call["started_at"],
            "projectId": observations.project.id,
            "environment": first.environment,
            "traces": [one.trace() for one in found],
        }
    )
