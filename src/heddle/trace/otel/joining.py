"""Log records and their spans put together, whichever came first.

Each writer stores what it brings before it looks at what is there, makes the calls from all of it, and looks once more:
whoever writes last has seen everything, so no lock is needed.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import orjson

from heddle.http.routing import off_loop
from heddle.store.base import Store
from heddle.trace.otel.agent_sessions import (
    Interval,
    LogEvent,
    add_events,
    is_session,
    span_of_events,
    spans_of_session,
    stale_spans,
    thread_of,
)
from heddle.trace.otel.packing import SpanPacker, SpanWriter, setting_of
from heddle.trace.otel.span import OtelSpan, to_span
from heddle.wire import times
from heddle.wire.calls import CallsQuery, Filter, Start
from heddle.wire.spans import StoredRecord

MAX_EVENTS = 1000
"""How many log records may join one span."""
SPAN = "span"
"""The id of the record that holds the span itself."""
LIFE = 2 * times.DAY
"""How long records wait for others of the same span or turn (microseconds)."""
_ROUNDS = 8
_DUMP = "otel_dump"
_SYSTEM = "heddle"
"""Who removes calls that came of events in another order."""


class Place(NamedTuple):
    """A span of a project, or (without a span id) a session."""

    project: str
    owner: str
    span_id: str


class MadeSpan(NamedTuple):
    """A span of a project, and who sent it."""

    project: str
    user: str
    span: OtelSpan


def _place(record: StoredRecord) -> Place:
    return Place(record.project, record.owner, record.span_id)


class SpanJoiner:
    """Puts spans and log records together for one caller."""

    def __init__(self, store: Store, writer: SpanWriter) -> None:
        self._store = store
        self._writer = writer

    async def join_records(self, records: Sequence[StoredRecord]) -> list[StoredRecord]:
        """Store records and write the calls that they belong to; returns those that their span has no room for."""
        await self._add(records)
        found = await self._settle({_place(one) for one in records}, {one.id for one in records})
        kept = {(_place(one), one.id) for one in found}
        return [one for one in records if (_place(one), one.id) not in kept]

    async def join_spans(self, starts: Sequence[Start]) -> None:
        """Write again those of the spans, which were written just now, that have log records."""
        owners = {(start.project, start.trace_id) for start in starts}
        waiting = await self._store.log_records.spans(owners)
        if not waiting:
            return
        spans: dict[Place, Start] = {}
        for start in starts:
            place = Place(start.project, start.trace_id, start.id)
            if place in waiting:
                spans[place] = start
        own = [
            StoredRecord(*place, SPAN, start.started_at * 1000, start.user, await self._dump(start))
            for place, start in spans.items()
        ]
        await self._add(own)
        await self._settle(spans.keys(), ())

    async def _add(self, records: Sequence[StoredRecord]) -> None:
        await self._store.log_records.add(records, LIFE)

    async def _dump(self, start: Start) -> str:
        key = start.files.get(_DUMP)
        if key is None:
            return start.otel_dump or ""
        return (await asyncio.to_thread(self._store.blobs.read, key)).decode()

    async def _settle(self, places: Collection[Place], brought: Collection[str]) -> list[StoredRecord]:
        """Write the calls of some places until nothing new has come meanwhile; returns the records that they hold."""
        seen: set[tuple[Place, str]] | None = None
        found: list[StoredRecord] = []
        for _ in range(_ROUNDS):
            found = await self._read(places)
            now = {(_place(one), one.id) for one in found}
            if now == seen:
                break
            seen = now
            if added := await self._find_spans(found):
                await self._add(added)
                continue
            traced = {place: await self._traced_requests(place) for place in places if is_session(place.owner)}
            size = sum(len(one.content) for one in found)
            await self._write(await off_loop(size, partial(_make, found, brought, traced)))
            await self._remove_stale(await off_loop(size, partial(_find_stale, found, brought)))
        return found

    async def _read(self, places: Collection[Place]) -> list[StoredRecord]:
        """The records of the places, of each as many as there is room for."""
        count: dict[Place, int] = {}
        kept: list[StoredRecord] = []
        wanted = set(places)
        for record in await self._store.log_records.read({(one.project, one.owner) for one in places}):
            place = _place(record)
            if place in wanted:
                count[place] = count.get(place, 0) + (record.id != SPAN)
                if count[place] <= MAX_EVENTS or is_session(place.owner):
                    kept.append(record)
        return kept

    async def _find_spans(self, records: Iterable[StoredRecord]) -> list[StoredRecord]:
        """The spans that are stored as calls already, of records without their span."""
        missing = {_place(one) for one in records if not is_session(one.owner)}
        missing -= {_place(one) for one in records if one.id == SPAN}
        found: list[StoredRecord] = []
        for project in {place.project for place in missing}:
            ids = {place.span_id: place for place in missing if place.project == project}
            query = CallsQuery(project, Filter(call_ids=tuple(ids)), columns=frozenset((_DUMP,)))
            async for rows in self._store.calls.stream(query):
                for row in rows:
                    place = ids[row.id]
                    if row.trace_id == place.owner and _is_exported(row.otel_dump):
                        dump = row.otel_dump or ""
                        found.append(StoredRecord(*place, SPAN, row.started_at * 1000, row.user or "", dump))
        return found

    async def _traced_requests(self, place: Place) -> list[Interval]:
        """When this server answered requests of a session that it traced itself."""
        query = CallsQuery(place.project, Filter(thread_ids=(thread_of(place.owner),)), columns=frozenset())
        found: list[Interval] = []
        async for rows in self._store.calls.stream(query):
            # Ids of spans are hex alone.
            found += [(row.started_at * 1000, (row.ended_at or row.started_at) * 1000) for row in rows if "-" in row.id]
        return found

    async def _remove_stale(self, stale: Mapping[Place, Collection[str]]) -> None:
        for place, ids in stale.items():
            await self._store.calls.delete(place.project, sorted(ids), _SYSTEM)

    async def _write(self, made: Sequence[MadeSpan]) -> None:
        packer = self._writer.packer()
        spans = SpanPacker(packer)
        for one in made:
            spans.add(one.span, setting_of(one.project, one.user, one.span.resource, one.span.resource_dropped))
        if packer.packed.starts:
            await self._writer.write(packer.packed, spans.distinct_agents())


def _is_exported(dump: str | None) -> bool:
    """True for the dump of a span that somebody exported."""
    return dump is not None and not to_span(orjson.loads(dump)).is_of_logs


def _find_stale(records: Iterable[StoredRecord], brought: Collection[str]) -> dict[Place, set[str]]:
    """The ids of calls that sessions have no more."""
    by_place: dict[Place, dict[str, LogEvent]] = {}
    for record in records:
        if is_session(record.owner):
            by_place.setdefault(_place(record), {})[record.id] = LogEvent.load(record.content)
    stale = ((place, stale_spans(place.owner, events, brought)) for place, events in by_place.items())
    return {place: ids for place, ids in stale if ids}


def _make(
    records: Iterable[StoredRecord], brought: Collection[str], traced: Mapping[Place, Sequence[Interval]]
) -> list[MadeSpan]:
    """The spans that records come to; of sessions only those that what was brought has to do with."""
    by_place: dict[Place, list[StoredRecord]] = {}
    for record in records:
        by_place.setdefault(_place(record), []).append(record)
    found: list[MadeSpan] = []
    for place, some in by_place.items():
        events = {one.id: LogEvent.load(one.content) for one in some if one.id != SPAN}
        if is_session(place.owner):
            spans = spans_of_session(place.owner, events, brought, traced.get(place, ()))
            found += [MadeSpan(place.project, some[0].user, span) for span in spans]
            continue
        own = next((one for one in some if one.id == SPAN), None)
        if own is not None:
            span = to_span(orjson.loads(own.content))
            add_events(span, list(events.values()))
            found.append(MadeSpan(place.project, own.user, span))
        elif any(event.is_genai for event in events.values()):
            span = span_of_events(place.owner, place.span_id, list(events.values()))
            found.append(MadeSpan(place.project, some[0].user, span))
    return found
