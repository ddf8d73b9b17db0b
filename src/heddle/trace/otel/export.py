"""One export of spans or log records: decoded, routed to projects, packed as calls, and stored.

Log records that tell of spans join them, sessions of coding agents become conversations.
"""

from functools import partial

from heddle.http.routing import off_loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.write import Packed
from heddle.trace.otel.agent_sessions import is_noise, session_of
from heddle.trace.otel.joining import MAX_EVENTS, SpanJoiner
from heddle.trace.otel.log_events import LogEvent, event_of
from heddle.trace.otel.packing import SpanPacker, SpanWriter, setting_of
from heddle.trace.otel.projects import MISSING, ProjectResolver
from heddle.trace.otel.rejections import Cause, Rejected
from heddle.trace.otel.signals import LogRecord, decode_logs, decode_spans
from heddle.trace.otel.span import OtelSpan, id_problem
from heddle.trace.records import lenient
from heddle.wire.log_records import StoredRecord
from heddle.wire.metric_series import digest
from heddle.wire.records import Records
from heddle.wire.spans import AgentSpan


class Export:
    """The spans of one request; what of them is rejected gathers in `rejected`."""

    def __init__(self, settings: Settings, store: Store, records: Records, projects: ProjectResolver) -> None:
        self.rejected = Rejected()
        self._store = store
        self._writer = SpanWriter(settings, store, records, projects.caller)
        self._projects = projects
        self._caller = projects.caller

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
                if setting is None:
                    self._reject(Cause.NO_PROJECT, span, MISSING)
                elif problem := id_problem(span.trace_id, span.span_id):
                    self._reject(Cause.INVALID_ID, span, problem, project)
                else:
                    spans.add(span, setting)
        return packer.packed, spans.distinct_agents()

    def _reject(self, cause: Cause, span: OtelSpan, why: str, project: str | None = None) -> None:
        identity = f"name={span.name[:200]!r} trace_id={span.trace_id[:64]!r} span_id={span.span_id[:64]!r}"
        self.rejected.add(cause, f"Rejected span ({identity}): {why}", project)


MAX_RECORD = 16 * 1024 * 1024
"""The most bytes of one record, as JSON."""
MAX_SESSION = 512
_MAX_TIME = 2**63 - 1
_ALONE = "it has no trace_id and span_id to join a span by, and is no event of GenAI or of a coding agent"


class LogsExport:
    """The log records of one request; what of them is rejected gathers in `rejected`."""

    def __init__(self, settings: Settings, store: Store, records: Records, projects: ProjectResolver) -> None:
        self.rejected = Rejected()
        self._projects = projects
        self._caller = projects.caller
        self._joiner = SpanJoiner(store, SpanWriter(settings, store, records, projects.caller))

    async def store(self, body: bytes, is_json: bool) -> int:
        """Store the records and write their calls; how many. Raises HeddleError; sent again, all is stored once."""
        records = await off_loop(len(body), lambda: self._read(body, is_json))
        if not records:
            return 0
        rejected = await self._joiner.join_records(records)
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
        owner, span_id = session_of(event), ""
        if is_noise(event):
            return None
        cause: Cause | None = None
        why = ""
        if owner is None:
            owner, span_id = record.trace_id, record.span_id
            has_ids = bool(owner.strip("0") and span_id.strip("0"))
            if not has_ids and event.is_genai:
                # A model was asked where nothing was traced.
                owner, span_id = event_id, digest(event_id)[:16]
            elif not has_ids:
                cause, why = Cause.NO_SPAN, _ALONE
            elif problem := id_problem(owner, span_id):
                cause, why = Cause.INVALID_ID, problem
        elif len(owner) > MAX_SESSION:
            cause, why = Cause.INVALID_ID, f"the id of its session is longer than {MAX_SESSION} characters"
        if not 0 <= event.time <= _MAX_TIME:
            cause, why = Cause.INVALID_TIME, "its time_unix_nano lies outside 63 bits"
        elif len(content) > MAX_RECORD:
            cause, why = Cause.TOO_LARGE, f"it has {len(content)} bytes, more than {MAX_RECORD}"
        if cause is not None:
            self._reject(cause, event, why, project)
            return None
        return StoredRecord(project, owner, span_id, event_id, event.time, self._caller.user, content)

    def _reject(self, cause: Cause, event: LogEvent, why: str, project: str | None) -> None:
        self.rejected.add(cause, f"Rejected log record (name={event.name[:200]!r}): {why}", project)
