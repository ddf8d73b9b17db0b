"""Reading calls: the request as a typed query, and each slice of rows as lines."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http import line, not_negative
from heddle.store.base import Store
from heddle.trace.calls.expand import Expansion
from heddle.trace.calls.models import CallsFilter, CallsQueryReq, SortBy
from heddle.trace.calls.pack import run_id, usage_dict
from heddle.trace.calls.view import JSON_FIELDS, SUMMARY_NEEDS, View
from heddle.trace.prices import call_costs, default_prices
from heddle.wire import refs, times
from heddle.wire.calls import CallRow, CallsQuery, Filter, SortTerm

MAX_FILTER_ENTRIES = 1000


async def retention_of(store: Store, project: str) -> int | None:
    """How long the project keeps its calls, in microseconds; None is for ever."""
    days = await store.projects.retention(project)
    return None if days is None else days * times.DAY


def filter_of(chosen: CallsFilter | None, project: str) -> Filter:
    """The typed filter; raises InvalidRequest for a list of more than 1000 entries."""
    if chosen is None:
        return Filter()
    lists: dict[str, tuple[str, ...] | None] = {}
    for name in CallsFilter.model_fields:
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
    """One stream_query (or read) request: its query, its view, and what is added to every slice."""

    def __init__(self, store: Store, caller: Caller, request: CallsQueryReq, retention: int | None) -> None:
        project = caller.open(request.project_id)
        self._store = store
        self._project = project
        self._costs = bool(request.include_costs)
        self._feedback = bool(request.include_feedback)
        columns = self._columns(request)
        expand = paths_of(request.expand_columns)
        self.view = View(
            request.project_id,
            columns,
            bool(request.include_storage_size),
            bool(request.include_total_storage_size),
            bool(request.include_usernames),
            retention,
        )
        self._expansion = (
            Expansion(store, project, expand) if expand and request.return_expanded_column_values is not False else None
        )
        self.query = CallsQuery(
            project=project,
            filter=filter_of(request.filter, project),
            query=request.query,
            sort=sort_of(request.sort_by),
            limit=not_negative(request.limit, "limit"),
            offset=not_negative(request.offset, "offset") or 0,
            columns=JSON_FIELDS if columns is None else frozenset(self._stored(columns)),
            expand=expand,
            trace_sizes=self.view.trace_size,
            retention=retention,
        )

    @staticmethod
    def _columns(request: CallsQueryReq) -> frozenset[str] | None:
        if request.columns is None:
            return None
        columns = {column.split(".")[0].removesuffix("_dump") for column in request.columns}
        if "summary" in columns or request.include_costs:
            columns |= {"summary", *SUMMARY_NEEDS}
        if request.include_usernames:
            columns.add("wb_user_id")
        return frozenset(columns)

    @staticmethod
    def _stored(columns: frozenset[str]) -> set[str]:
        stored = set(columns & JSON_FIELDS)
        return stored | {"otel_dump"} if "attributes" in stored else stored

    async def slices(self) -> AsyncIterator[list[dict[str, Any]]]:
        """The calls as dicts, slice by slice."""
        async for rows in self._store.calls.stream(self.query):
            yield await self._lines(rows)

    async def _lines(self, rows: list[CallRow]) -> list[dict[str, Any]]:
        extras = await self._extras(rows) if self._costs or self._feedback else {}
        replaced = await self._expansion.replace(rows) if self._expansion else {}
        return [self.view.line(row, extras.get(row.id), replaced.get(row.id)) for row in rows]

    async def _extras(self, rows: list[CallRow]) -> dict[str, dict[str, Any]]:
        """Costs and feedback of the calls, for summary.weave."""
        extras: dict[str, dict[str, Any]] = {row.id: {} for row in rows}
        if self._costs:
            own = await self._store.costs.project_rows(self._project)
            for row in rows:
                costs = call_costs(usage_dict(row.summary), default_prices().picker(own, row.started_at)).costs
                if costs:
                    extras[row.id]["costs"] = costs
        if self._feedback:
            targets = {refs.call_ref(self._project, row.id): row.id for row in rows}
            found = await self._store.feedback.for_refs(self._project, list(targets))
            for ref, call_id in targets.items():
                extras[call_id]["feedback"] = found.get(ref, [])
        return extras

    async def stream(self) -> AsyncIterator[bytes]:
        """The calls as JSON lines, one chunk per slice."""
        async for slice_ in self.slices():
            chunk = b"".join(map(line, slice_))
            slice_.clear()
            yield chunk


async def started(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same stream with its first chunk fetched already, so that a bad query raises before the answer begins."""

    async def chunks(ready: list[bytes]) -> AsyncIterator[bytes]:
        # Who reads slowly has one chunk in memory, not the first for ever.
        yield ready.pop()
        async for chunk in stream:
            yield chunk

    return chunks([await anext(stream, b"")])
