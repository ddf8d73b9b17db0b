"""The read routes of calls: the request as a typed query, and each slice of rows as the lines that clients read."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any

import orjson
from fastapi import Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest, TooLarge
from heddle.http.parameters import not_negative
from heddle.http.routing import (
    Lines,
    Reader,
    SpanReaderDep,
    StoreDep,
    answer,
    group,
    hot,
    json_lines,
    lines,
    local,
    off_loop,
)
from heddle.store.base import Store
from heddle.trace.calls.models import (
    CallReadReq,
    CallReadRes,
    CallSchema,
    CallsFilter,
    CallsQueryReq,
    CallsQueryStatsReq,
    CallsQueryStatsRes,
    SortBy,
)
from heddle.trace.calls.packing import run_id
from heddle.trace.prices import call_costs, default_prices
from heddle.trace.refs import fill_bodies
from heddle.wire import refs, times
from heddle.wire.calls import (
    BODY,
    COLUMNS,
    RUNNING,
    STATUS_WORDS,
    CallConditions,
    CallRow,
    CallsQuery,
    Filter,
    SortTerm,
)
from heddle.wire.conversation import call
from heddle.wire.conversation.call import Conversation
from heddle.wire.jsontypes import Json, is_index
from heddle.wire.spans import SpanReader

router = group("Calls")

SUMMARY_NEEDS = frozenset({"ended_at", "exception", "display_name"})
JSON_FIELDS = frozenset(BODY)
_PLAIN = tuple(column.field for column in COLUMNS if column.is_plain)
_plain_values = attrgetter(*(column.name for column in COLUMNS if column.is_plain))
_CAN_BE_HIDDEN = (*_PLAIN, "display_name", "ended_at", "wb_user_id", "wb_run_id", "expire_at")
_EMPTY = orjson.Fragment(b"{}")


def build_summary(row: CallRow, extra: Json | None = None) -> Any:
    """The client's summary with `weave` rebuilt: status, latency, name, and what was asked for in `extra`."""
    weave = {"status": STATUS_WORDS[row.status], **derive_names(row), **(extra or {})}
    text = row.summary
    if text is None or text == "{}":
        return {"weave": weave}
    if '"weave"' in text:
        stored = orjson.loads(text)
        kept = stored.get("weave")
        return {**stored, "weave": {**kept, **weave} if isinstance(kept, dict) else weave}
    return orjson.Fragment(b'%s,"weave":%s}' % (text[:-1].encode(), orjson.dumps(weave)))


def derive_names(row: CallRow) -> Json:
    """Name and latency of a call, as people read them; latency in whole milliseconds, absent while it runs."""
    found: Json = {}
    if row.display_name:
        found["display_name"] = row.display_name
    else:
        found["trace_name"] = refs.operation_name(row.op_name)
    if row.status != RUNNING and row.ended_at is not None:
        found["latency_ms"] = (row.ended_at - row.started_at) // 1000
    return found


Path = tuple[str, ...]
_JSON_COLUMNS = ("inputs", "output", "attributes", "summary")


_PART_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
"""Of the values that take the place of refs in one call; many refs may lead to one large object."""


class Expansion:
    """Replaces the refs at some paths, shallow paths first, one look-up per path and slice."""

    def __init__(self, store: Store, project: str, paths: Sequence[Path]) -> None:
        self._store = store
        self._project = project
        self._paths = [path for path in paths if path[0] in _JSON_COLUMNS]

    async def parts(self, rows: Sequence[CallRow]) -> AsyncIterator[tuple[Sequence[CallRow], dict[str, Json]]]:
        """The rows in parts with new values of the touched columns by call id, cut where these become large.

        Values of refs that are missing or deleted stay refs. Raises TooLarge for a call whose values are.
        """
        half = len(rows) // 2
        replaced = await self._replace(rows, _PART_BYTES if half else _MOST_BYTES)
        if replaced is not None:
            yield rows, replaced
        elif not half:
            raise TooLarge(f"Request too large: expand_columns adds more than {_MOST_BYTES} bytes to {rows[0].id}")
        else:
            for part in (rows[:half], rows[half:]):
                async for found in self.parts(part):
                    yield found

    async def _replace(self, rows: Sequence[CallRow], most: int) -> dict[str, Json] | None:
        """The new values; None where they have more bytes."""
        parsed: dict[str, Json] = {row.id: {} for row in rows}
        for path in self._paths:
            places = [place for row in rows if (place := self._place(row, parsed[row.id], path))]
            values = await self._values([holder[key] for holder, key in places])
            size = sum(len(values.get(holder[key], "")) for holder, key in places)
            most -= size
            if most < 0:
                return None
            await off_loop(size, partial(_put, places, values))
        return {call_id: columns for call_id, columns in parsed.items() if columns}

    def _place(self, row: CallRow, columns: Json, path: Path) -> tuple[Any, Any] | None:
        """Container and key of the ref at a path, None when there is none."""
        column = path[0]
        if column not in columns:
            text = getattr(row, column)
            if text is None or refs.INTERNAL not in text:
                return None
            columns[column] = orjson.loads(text)
        holder: Any = columns
        key: Any = column
        for part in path[1:]:
            holder = holder[key]
            if isinstance(holder, list) and is_index(part) and int(part) < len(holder):
                key = int(part)
            elif isinstance(holder, dict) and part in holder:
                key = part
            else:
                return None
        ref = holder[key]
        return (holder, key) if isinstance(ref, str) and ref.startswith(f"{refs.INTERNAL}{self._project}/") else None

    async def _values(self, found: Sequence[str]) -> dict[str, str]:
        """JSON text by ref: object versions, and dataset rows by their digest."""
        wanted = set(found)
        datasets = {ref: ref.partition(refs.ROWS)[0] for ref in wanted if refs.ROWS in ref}
        stored = await self._store.objects.values(self._project, wanted - datasets.keys() | set(datasets.values()))
        values = {ref: text for ref, text in stored.items() if text is not None and ref in wanted}
        rows = {ref: ref.rpartition("/")[2] for ref, dataset in datasets.items() if stored[dataset] is not None}
        if rows:
            by_digest = await self._store.tables.row_values(self._project, set(rows.values()))
            values.update({ref: by_digest[digest] for ref, digest in rows.items() if digest in by_digest})
        return values


def _put(places: Sequence[tuple[Any, Any]], values: Mapping[str, str]) -> None:
    for holder, key in places:
        ref = holder[key]
        if ref in values:
            value = orjson.loads(values[ref])
            holder[key] = {**value, "_ref": ref} if isinstance(value, dict) else value


MAX_FILTER_ENTRIES = 1000
_CALLS_AT_ONCE, _FEEDBACK_AT_ONCE = 100, 1000
"""Where feedback is asked for: the most calls whose feedback is read at once, and about how many rows that may be."""


async def retention_of(store: Store, project: str) -> int | None:
    """How long the project keeps its calls, in microseconds; None is for ever."""
    days = await store.projects.retention(project)
    return None if days is None else days * times.DAY


def filter_of(chosen: CallConditions | None, project: str) -> Filter:
    """The typed filter; raises InvalidRequest for a list of more than 1000 entries."""
    if chosen is None:
        return Filter()
    lists: dict[str, tuple[str, ...] | None] = {}
    for name in CallConditions.model_fields:
        value = getattr(chosen, name)
        if isinstance(value, list):
            if len(value) > MAX_FILTER_ENTRIES:
                raise InvalidRequest(
                    f"filter.{name} has {len(value)} entries; at most {MAX_FILTER_ENTRIES} are allowed"
                )
            lists[name] = tuple(value)
    runs = lists.pop("wb_run_ids", None)
    users = lists.pop("wb_user_ids", None)
    run_ids = None if runs is None else tuple(run_id(run, project) or "" for run in runs)
    return Filter(**lists, user_ids=users, run_ids=run_ids, roots_only=bool(chosen.trace_roots_only))


def sort_of(sort_by: Sequence[SortBy] | None) -> tuple[SortTerm, ...] | None:
    """The typed order; None is the default one."""
    return None if sort_by is None else tuple(SortTerm(term.field, term.direction == "desc") for term in sort_by)


def paths_of(columns: Sequence[str] | None) -> tuple[tuple[str, ...], ...]:
    """Dotted column paths taken apart, shallow ones first."""
    return tuple(sorted((tuple(column.split(".")) for column in columns or ()), key=len))


class CallReader:
    """One stream_query (or read) request: its query, and its slices of calls with what was asked for besides."""

    def __init__(
        self, store: Store, project: str, request: CallsQueryReq, retention: int | None, read_span: SpanReader | None
    ) -> None:
        self._store = store
        self._project = project
        self._request = request
        self._retention = retention
        columns = _columns_of(request)
        self._hidden = () if columns is None else tuple(name for name in _CAN_BE_HIDDEN if name not in columns)
        expand = paths_of(request.expand_columns)
        self._expansion = (
            Expansion(store, project, expand) if expand and request.return_expanded_column_values is not False else None
        )
        stored = JSON_FIELDS if columns is None else columns & JSON_FIELDS
        self._at_once = _CALLS_AT_ONCE
        self._read_span = read_span if request.include_conversation else None
        self._stored = stored | {"otel_dump"} if "attributes" in stored else stored
        """Bodies that are shown; more may be read."""
        self.query = CallsQuery(
            project=project,
            filter=filter_of(request.filter, project),
            query=request.query,
            sort=sort_of(request.sort_by),
            limit=not_negative(request.limit, "limit"),
            offset=not_negative(request.offset, "offset") or 0,
            columns=self._stored | COLUMNS_OF_CONVERSATIONS if self._read_span else self._stored,
            expand=expand,
            trace_sizes=bool(request.include_total_storage_size),
            retention=retention,
        )

    @classmethod
    async def open(
        cls, store: Store, caller: Caller, request: CallsQueryReq, read_span: SpanReader | None = None
    ) -> "CallReader":
        """The reader of a caller's request; `read_span` is needed where conversations are asked for."""
        project = caller.open(request.project_id)
        return cls(store, project, request, await retention_of(store, project), read_span)

    async def slices(self) -> AsyncIterator[list[Json]]:
        """The calls as dicts, slice by slice."""
        wants_extras = self._request.include_costs or self._request.include_feedback
        async for rows in self._rows():
            extras = await self._extras(rows) if wants_extras else {}
            conversations = await self._conversations(rows, self._read_span) if self._read_span else []
            said = {row.id: conversation for row, conversation in zip(rows, conversations, strict=False)}
            async for part, replaced in self._expansion.parts(rows) if self._expansion else _whole(rows):
                for row in part if said else ():
                    replaced.setdefault(row.id, {})["conversation"] = said[row.id]
                yield [self._line(row, extras.get(row.id), replaced.get(row.id)) for row in part]

    async def _rows(self) -> AsyncIterator[list[CallRow]]:
        """The calls, so many at once that their feedback fits into memory."""
        async for rows in self._store.calls.stream(self.query):
            while self._request.include_feedback and len(rows) > self._at_once:
                part, rows = rows[: self._at_once], rows[self._at_once :]
                yield part
            yield rows

    def _line(self, row: CallRow, extra: Json | None, replaced: Json | None) -> Json:
        """The call with ready JSON fragments; `extra` goes into summary.weave, `replaced` are new field values."""
        request = self._request
        attributes: Any = _EMPTY if row.attributes is None else orjson.Fragment(row.attributes)
        if row.attributes is not None and row.otel_dump is not None:
            attributes = {**orjson.loads(row.attributes), "otel_span": orjson.Fragment(row.otel_dump)}

        call = {
            "id": row.id,
            "project_id": request.project_id,
            "op_name": row.op_name,
            "display_name": row.display_name or None,
            "trace_id": row.trace_id,
            **dict(zip(_PLAIN, _plain_values(row), strict=True)),
            "started_at": times.to_iso(row.started_at),
            "attributes": attributes,
            "inputs": _EMPTY if row.inputs is None else orjson.Fragment(row.inputs),
            "ended_at": times.optional_iso(row.ended_at),
            "exception": row.exception,
            "output": None if row.output is None else orjson.Fragment(row.output),
            "summary": build_summary(row, extra),
            "wb_user_id": row.user,
            "wb_run_id": _external_run_id(row.run_id),
            "deleted_at": None,
            "expire_at": None
            if self._retention is None
            else times.to_iso(min(row.started_at + self._retention, times.LAST)),
            "storage_size_bytes": row.size if request.include_storage_size else None,
            "total_storage_size_bytes": row.trace_size if request.include_total_storage_size else None,
        }
        for name in self._hidden:
            call[name] = None
        if request.include_usernames and row.user is not None:
            call["wb_username"] = row.user
        if replaced:
            call.update(replaced)
        return call

    async def _conversations(self, rows: list[CallRow], read_span: SpanReader) -> list[Json]:
        """The conversations of the calls; bodies that were read only for these are taken out of the rows."""
        filled = await fill_bodies(self._store, self._project, rows)

        def read() -> list[Json]:
            return [conversation_of(row, self._project, read_span, filled.get(row.id)) for row in rows]

        size = sum(len(getattr(row, name) or "") for row in rows for name in COLUMNS_OF_CONVERSATIONS)
        found = await off_loop(size, read)
        for row in rows:
            for name in COLUMNS_OF_CONVERSATIONS - self._stored:
                setattr(row, name, None)
        return found

    async def _extras(self, rows: list[CallRow]) -> dict[str, Json]:
        """Costs and feedback of the calls, for summary.weave."""
        extras: dict[str, Json] = {row.id: {} for row in rows}
        if self._request.include_costs:
            own = await self._store.costs.project_rows(self._project)
            for row in rows:
                costs = call_costs(_usage_of(row.summary), default_prices().picker(own, row.started_at)).costs
                if costs:
                    extras[row.id]["costs"] = costs
        if self._request.include_feedback:
            targets = {refs.call_ref(self._project, row.id): row.id for row in rows}
            found = await self._store.feedback.for_refs(self._project, list(targets))
            for ref, call_id in targets.items():
                extras[call_id]["feedback"] = found.get(ref, [])
            share = _FEEDBACK_AT_ONCE / max(1, sum(map(len, found.values())))
            self._at_once = max(1, min(_CALLS_AT_ONCE, int(len(rows) * share)))
        return extras

    async def stream(self) -> AsyncIterator[bytes]:
        """The calls as JSON lines, one chunk per slice."""
        async for slice_ in self.slices():
            chunk = await asyncio.to_thread(json_lines, slice_) if self._expansion else json_lines(slice_)
            slice_.clear()
            yield chunk


async def _whole(rows: Sequence[CallRow]) -> AsyncIterator[tuple[Sequence[CallRow], dict[str, Json]]]:
    yield rows, {}


def _external_run_id(run: str | None) -> str | None:
    """The external form of a stored run id."""
    if not run:
        return run
    project, _, name = run.partition(":")
    external = refs.external_project(project)
    return f"{external}/{name}" if external else run


def _usage_of(summary: str | None) -> dict[str, Any]:
    """`usage` of a stored summary text, empty when there is none."""
    if summary is None or '"usage"' not in summary:
        return {}
    usage = orjson.loads(summary).get("usage")
    return usage if isinstance(usage, dict) else {}


def _columns_of(request: CallsQueryReq) -> frozenset[str] | None:
    if request.columns is None:
        return None
    columns = {column.split(".")[0].removesuffix("_dump") for column in request.columns}
    if "summary" in columns or request.include_costs:
        columns |= {"summary", *SUMMARY_NEEDS}
    if request.include_usernames:
        columns.add("wb_user_id")
    return frozenset(columns)


async def started(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same stream with its first chunk fetched already, so that a bad query raises before the answer begins."""

    async def chunks(ready: list[bytes]) -> AsyncIterator[bytes]:
        # Who reads slowly has one chunk in memory, not the first for ever.
        yield ready.pop()
        async for chunk in stream:
            yield chunk

    return chunks([await anext(stream, b"")])


@router.post("/call/read", response_model=CallReadRes)
@local
async def call_read(body: CallReadReq, caller: Reader, store: StoreDep, read_span: SpanReaderDep) -> Response:
    """One call, null when there is none."""
    request = CallsQueryReq(
        project_id=body.project_id,
        filter=CallsFilter(call_ids=[body.id]),
        limit=1,
        include_costs=body.include_costs,
        include_storage_size=body.include_storage_size,
        include_total_storage_size=body.include_total_storage_size,
        include_conversation=body.include_conversation,
    )
    reader = await CallReader.open(store, caller, request, read_span)
    found = [call async for slice_ in reader.slices() for call in slice_]
    return answer({"call": found[0] if found else None})


@router.post(
    "/calls/stream_query",
    response_model=CallSchema,
    response_class=Lines,
    response_description="One call per line",
)
@hot
@local
async def calls_stream_query(
    body: CallsQueryReq, caller: Reader, store: StoreDep, read_span: SpanReaderDep
) -> Response:
    """The selected calls as JSON lines."""
    reader = await CallReader.open(store, caller, body, read_span)
    return lines(await started(reader.stream()))


@router.post("/calls/query_stats", response_model=CallsQueryStatsRes)
@local
async def calls_query_stats(body: CallsQueryStatsReq, caller: Reader, store: StoreDep) -> Response:
    """How many calls are selected."""
    project = caller.open(body.project_id)
    if body.limit is not None and body.limit < 1:
        raise InvalidRequest("Limit must be a positive integer")
    query = CallsQuery(
        project,
        filter_of(body.filter, project),
        body.query,
        limit=None if body.limit is None else min(body.limit, 2**62),
        expand=paths_of(body.expand_columns),
        retention=await retention_of(store, project),
    )
    count = await store.calls.count(query)
    size = await store.calls.bytes_of(query) if body.include_total_storage_size else None
    return answer(
        {"count": count, "has_more": body.limit is not None and count >= body.limit, "total_storage_size_bytes": size}
    )


COLUMNS_OF_CONVERSATIONS = frozenset(("inputs", "output", "attributes", "otel_dump"))
"""The columns that a conversation is read out of."""


def conversation_of(row: CallRow, project: str, read_span: SpanReader, filled: tuple[Any, Any] | None = None) -> Json:
    """The conversation of a call that was read with those columns, and the call's kind; `project` is internal.

    `filled` are its inputs and output with what their refs point to.
    """
    bodies = filled or (_load(row.inputs), _load(row.output))
    return {"kind": row.kind, **asdict(_read(row, project, read_span, bodies))}


def _read(row: CallRow, project: str, read_span: SpanReader, bodies: tuple[Any, Any]) -> Conversation:
    span = None if row.otel_dump is None else _load(row.otel_dump)
    agent = read_span(project, span) if isinstance(span, dict) else None
    told = call.of_span(agent, is_agent=False) if agent is not None else None
    if told is not None and not told.instructs_only:
        return told
    attributes = _load(row.attributes)
    is_tool = agent.operation_name == "execute_tool" if agent is not None else False
    found = call.of_call(*bodies, attributes, row.kind == "llm", is_tool)
    if not found.is_chat and agent is not None:
        told = told or call.of_span(agent, is_agent=True)
    return found if found.is_chat else told or found


def _load(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
