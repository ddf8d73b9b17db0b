"""One export of spans or log records: decoded, routed to projects, packed as calls, and stored.

What cannot be stored is told to the sender, counted, and logged once per cause. Log records and their spans are put
together, whichever came first: each writer stores what it brings before it looks at what is there, makes the calls from
all of it, and looks once more; whoever writes last has seen everything, so no lock is needed. Sessions of coding agents
become conversations.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.routing import off_loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.packing import Packed
from heddle.trace.otel.agent_sessions import (
    Interval,
    LogEvent,
    add_events,
    event_of,
    is_noise,
    is_session,
    session_of,
    span_of_events,
    spans_of_session,
    stale_spans,
    thread_of,
)
from heddle.trace.otel.packing import SpanPacker, SpanWriter, find_long_id, setting_of
from heddle.trace.otel.signals import LogRecord, ResourceItems, decode_logs, decode_spans
from heddle.trace.otel.span import OtelSpan, id_problem, is_placeholder, to_span
from heddle.trace.records import lenient
from heddle.wire import refs, times
from heddle.wire.batched import group_pairs
from heddle.wire.calls import CallsQuery, Filter, Start
from heddle.wire.jsontypes import Json
from heddle.wire.metric_series import digest
from heddle.wire.records import Records
from heddle.wire.spans import AgentSpan, StoredRecord

logger = logging.getLogger("heddle.otlp")
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
        """Store records and write the calls that they belong to; returns those that their span cannot hold."""
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
            stale = await off_loop(size, partial(_find_stale, found, brought))
            for place, ids in stale.items():
                await self._store.calls.delete(place.project, sorted(ids), _SYSTEM)
        return found

    async def _read(self, places: Collection[Place]) -> list[StoredRecord]:
        """The records of the places, of each as many as fit."""
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

    async def _write(self, made: Sequence[MadeSpan]) -> None:
        packer = self._writer.packer()
        spans = SpanPacker(packer)
        for one in made:
            setting = setting_of(one.project, one.user, one.span.resource, one.span.resource_dropped)
            if problem := spans.add(one.span, setting):
                # Each part was looked at as it came, so that there is hardly any such whole; its call stays as it is.
                logger.warning("A span (%s) could not be joined with its log records: %s", one.span.span_id, problem)
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
    by_place = group_pairs((_place(record), record) for record in records)
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


HEADER = "project_id"
ENTITY, PROJECT = "wandb.entity", "wandb.project"
"""Attributes of a resource that name its project together."""
PROJECT_NAMES = (PROJECT, "openinference.project.name")
"""Attributes of a resource that name a project of the caller's entity, or `entity/project`."""
SERVICE_NAME = "service.name"
UNNAMED_SERVICE = "unknown_service"
"""What SDKs call a service that was given no name; some add `:` and the program."""
MISSING = (
    f"No project: send the header '{HEADER}: entity/project' or the resource attributes {ENTITY} and {PROJECT}, "
    "use a key that is bound to one project, set OTEL_SERVICE_NAME, or give the server --default-project"
)
T = TypeVar("T")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f:/]+")
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class ProjectResolver:
    """Finds the projects of one export's resources; `header` and `default` are `entity/project`, or empty."""

    caller: Caller
    header: str = ""
    default: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str], caller: Caller, settings: Settings) -> "ProjectResolver":
        """The resolver of a request."""
        default = "" if settings.default_project == "none" else settings.default_project
        return cls(caller, refs.project_in(headers, HEADER), default)

    def resolve(self, resource: Json) -> str | None:
        """The `entity/project` of a resource; None where nothing names one.

        The first of: the pair of attributes that names it wholly, the header of the request, an attribute that names a
        project alone, the project of the key, the name of the service, the default of the server, and the name that an
        SDK gives to a service without one.
        """
        entity, project = _text(resource, ENTITY), _text(resource, PROJECT)
        if entity and project:
            return f"{entity}/{project}"
        if self.header:
            return self.header
        for key in PROJECT_NAMES:
            if name := _text(resource, key):
                return name if name.count("/") == 1 else self.of_entity(name)
        if self.caller.project is not None:
            return self.caller.project
        service = _text(resource, SERVICE_NAME)
        is_named = bool(service) and service.partition(":")[0] != UNNAMED_SERVICE
        if is_named:
            return self.of_entity(service)
        if self.default:
            return self.default
        return self.of_entity(UNNAMED_SERVICE) if service else None

    def route(self, groups: Iterable[ResourceItems[T]]) -> Iterator[tuple[ResourceItems[T], str | None]]:
        """What resources report, with the internal ids of their projects; None where nothing names one.

        Raises Forbidden first, for a project that the key does not reach, and InvalidRequest last, where none has one.
        """
        named = [(group, self.resolve(group.resource.attributes)) for group in groups]
        opened = [(group, self.caller.open(project_id) if project_id else None) for group, project_id in named]
        yield from opened
        if opened and not any(project for _, project in opened):
            raise InvalidRequest(MISSING)

    def of_entity(self, name: str) -> str:
        """A project of the caller's entity; what an id cannot hold is replaced."""
        safe = _UNSAFE.sub("-", name)[:_MAX_NAME].strip("- ")
        return f"{self.caller.default_entity}/{UNNAMED_SERVICE if safe in ('', *refs.DOTS) else safe}"


def _text(resource: Json, key: str) -> str:
    value: Any = resource.get(key)
    return value.strip() if isinstance(value, str) else ""


MOST_MESSAGES = 20


class Cause(StrEnum):
    """Why something was not stored."""

    NO_PROJECT = "no_project"
    INVALID_ID = "invalid_id"
    INVALID_METRIC = "invalid_metric"
    INVALID_TIME = "invalid_time"
    NO_SPAN = "no_span"
    TOO_LARGE = "too_large"
    TOO_MANY_RECORDS = "too_many_records"
    TOO_MANY_SERIES = "too_many_series"


@dataclass(slots=True)
class Rejected:
    """What of one export was not stored, and why; projects are internal, None where nothing named one."""

    count: int = 0
    messages: list[str] = field(default_factory=list)
    counts: Counter[tuple[str | None, Cause]] = field(default_factory=Counter)
    first: dict[tuple[str | None, Cause], str] = field(default_factory=dict)
    """The first message of each project and cause."""

    def add(self, cause: Cause, message: str, project: str | None = None) -> None:
        """Reject one item."""
        self.count += 1
        self.counts[project, cause] += 1
        self.first.setdefault((project, cause), message)
        if len(self.messages) <= MOST_MESSAGES:
            self.messages.append(message)

    @property
    def text(self) -> str:
        """The first messages in one text."""
        return "; ".join(self.messages[:MOST_MESSAGES]) + ("; ..." if self.count > MOST_MESSAGES else "")


class SignalExport:
    """One export of a signal; what of it is rejected gathers in `rejected`."""

    def __init__(self, settings: Settings, store: Store, records: Records, projects: ProjectResolver) -> None:
        self.rejected = Rejected()
        self._settings = settings
        self._store = store
        self._writer = SpanWriter(settings, store, records, projects.caller)
        self._projects = projects
        self._caller = projects.caller

    async def store(self, body: bytes, is_json: bool) -> int:
        """Store everything; how many items. Raises HeddleError, and then nothing is stored."""
        raise NotImplementedError


class Export(SignalExport):
    """The spans of one request."""

    async def store(self, body: bytes, is_json: bool) -> int:
        """Store the spans; how many. Raises HeddleError, and then nothing is stored."""
        packed, agents = await off_loop(len(body), lambda: self.pack(body, is_json))
        if packed.starts:
            await self._writer.write(packed, agents)
            await SpanJoiner(self._store, self._writer).join_spans(packed.starts)
        return len(packed.starts)

    def pack(self, body: bytes, is_json: bool) -> tuple[Packed, list[AgentSpan]]:
        """The spans as calls, and those that the agents reads index; raises HeddleError."""
        packer = self._writer.packer()
        spans = SpanPacker(packer)
        has_refs = b"weave:" in body or b"weave-trace-internal:" in body
        convert = partial(lenient, caller=self._caller) if has_refs else None
        for group, project in self._projects.route(decode_spans(body, is_json)):
            setting = None
            if project is not None:
                resource = group.resource
                setting = setting_of(project, self._caller.user, resource.attributes, resource.dropped, convert)
            for span in group.items:
                if is_placeholder(span):
                    continue
                if setting is None:
                    self._reject(Cause.NO_PROJECT, span, MISSING)
                elif problem := id_problem(span.trace_id, span.span_id) or spans.add(span, setting):
                    self._reject(Cause.INVALID_ID, span, problem, project)
        return packer.packed, spans.distinct_agents()

    def _reject(self, cause: Cause, span: OtelSpan, why: str, project: str | None = None) -> None:
        identity = f"name={span.name[:200]!r} trace_id={span.trace_id[:64]!r} span_id={span.span_id[:64]!r}"
        self.rejected.add(cause, f"Rejected span ({identity}): {why}", project)


MAX_RECORD = 16 * 1024 * 1024
"""The most bytes of one record, as JSON."""
MAX_SESSION = 512
_MAX_TIME = 2**63 - 1
_ALONE = "it has no trace_id and span_id of a span, and is not an event of GenAI or of a coding agent"


class LogsExport(SignalExport):
    """The log records of one request."""

    async def store(self, body: bytes, is_json: bool) -> int:
        """Store the records and write their calls; how many. Raises HeddleError; sent again, all is stored once."""
        records = await off_loop(len(body), lambda: self._read(body, is_json))
        if not records:
            return 0
        rejected = await SpanJoiner(self._store, self._writer).join_records(records)
        for record in rejected:
            told = f"Rejected log record (span_id={record.span_id!r}): its span has {MAX_EVENTS} log records already"
            self.rejected.add(Cause.TOO_MANY_RECORDS, told, record.project)
        return len(records) - len(rejected)

    def _read(self, body: bytes, is_json: bool) -> list[StoredRecord]:
        has_refs = b"weave:" in body or b"weave-trace-internal:" in body
        found: list[StoredRecord] = []
        for group, project in self._projects.route(decode_logs(body, is_json)):
            for scope in group.scopes:
                for record in scope.items:
                    event = event_of(record, scope.scope, group.resource)
                    if not project:
                        self._reject(Cause.NO_PROJECT, event, MISSING, None)
                        continue
                    if has_refs:
                        event.attributes = lenient(event.attributes, self._caller)
                    if (kept := self._stored(record, event, project)) is not None:
                        found.append(kept)
        return found

    def _stored(self, record: LogRecord, event: LogEvent, project: str) -> StoredRecord | None:
        """The record as it is stored; None for one that is rejected, and for a piece of a stream."""
        event_id, content = event.id, event.dump()
        has_ids = bool(record.trace_id.strip("0") and record.span_id.strip("0"))
        owner, span_id = session_of(event, names_span=has_ids), ""
        if is_noise(event, has_ids):
            return None
        cause: Cause | None = None
        why = ""
        if owner is None:
            owner, span_id = record.trace_id, record.span_id
            if not has_ids and event.is_genai:
                # A model was asked where nothing was traced.
                owner, span_id = event_id, digest(event_id)[:16]
            elif not has_ids:
                cause, why = Cause.NO_SPAN, _ALONE
            elif problem := id_problem(owner, span_id):
                cause, why = Cause.INVALID_ID, problem
        elif refs.is_longer(owner, MAX_SESSION):
            cause, why = Cause.INVALID_ID, f"the id of its session is longer than {MAX_SESSION} bytes"
        if not 0 <= event.time <= _MAX_TIME:
            cause, why = Cause.INVALID_TIME, "its time_unix_nano lies outside 63 bits"
        elif len(content) > MAX_RECORD:
            cause, why = Cause.TOO_LARGE, f"it has {len(content)} bytes, more than {MAX_RECORD}"
        elif cause is None and (problem := _long_id(event, event_id, owner, span_id, project)):
            cause, why = Cause.INVALID_ID, problem
        if cause is not None:
            self._reject(cause, event, why, project)
            return None
        return StoredRecord(project, owner, span_id, event_id, event.time, self._caller.user, content)

    def _reject(self, cause: Cause, event: LogEvent, why: str, project: str | None) -> None:
        self.rejected.add(cause, f"Rejected log record (name={event.name[:200]!r}): {why}", project)


def _long_id(event: LogEvent, event_id: str, owner: str, span_id: str, project: str) -> str | None:
    """What is wrong with a record that brings its span an id or a name which is too long; None for others."""
    if all(isinstance(value, str) and len(value) * 4 <= refs.MAX_ID_BYTES for value in event.attributes.values()):
        return None
    if is_session(owner):
        spans = spans_of_session(owner, {event_id: event}, (event_id,))
    else:
        spans = [span_of_events(owner, span_id, [event])]
    return next((problem for span in spans if (problem := find_long_id(span, project))), None)
