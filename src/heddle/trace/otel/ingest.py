"""One export: decoded, routed to projects, packed as calls, stored; only then is the exporter told."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.request_body import off_loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.pack import Packed, Packer, run_id
from heddle.trace.calls.write import CallWrites
from heddle.trace.inference_calls import lenient
from heddle.trace.otel import json_decode, protobuf, table
from heddle.trace.otel.call import Setting, SpanPacker
from heddle.trace.otel.dump import resource_dump
from heddle.trace.otel.expand import Conflict
from heddle.trace.otel.ops import Ops
from heddle.trace.otel.span import OtelSpan, ResourceSpans
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records
from heddle.wire.spans import AgentSpan

MOST_MESSAGES = 20
_TRACE_ID_LENGTH, _SPAN_ID_LENGTH = 32, 16
_NO_PROJECT = f"its resource has no {table.ENTITY} and {table.PROJECT}, and the request no header project_id"
_HEX = frozenset("0123456789abcdef")


@dataclass(slots=True)
class Rejected:
    """The spans that were not stored, and why."""

    count: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, span: OtelSpan, why: str) -> None:
        """Reject one span."""
        self.count += 1
        if len(self.messages) <= MOST_MESSAGES:
            identity = f"name={span.name[:200]!r} trace_id={span.trace_id[:64]!r} span_id={span.span_id[:64]!r}"
            self.messages.append(f"Rejected span ({identity}): {why}")

    @property
    def text(self) -> str:
        """The first messages in one text."""
        return "; ".join(self.messages[:MOST_MESSAGES]) + ("; ..." if self.count > MOST_MESSAGES else "")


class Export:
    """The spans of one request; `project_id` is the `entity/project` of its header, for resources that name none."""

    def __init__(
        self, settings: Settings, store: Store, records: Records, caller: Caller, project_id: str | None
    ) -> None:
        self._settings = settings
        self._store = store
        self._records = records
        self._caller = caller
        self._project_id = project_id
        self._rejected = Rejected()

    async def store(self, body: bytes, is_json: bool) -> Rejected:
        """Store the spans; returns those that were rejected. Raises HeddleError, and then nothing is stored."""
        packed, agents = await off_loop(len(body), lambda: self._pack(body, is_json))
        if packed.starts:
            await Ops(self._store, self._records, self._caller).name(packed.starts)
            await CallWrites(self._settings, self._store, self._caller).keep(packed, agents)
        return self._rejected

    def _pack(self, body: bytes, is_json: bool) -> tuple[Packed, list[AgentSpan]]:
        groups = (json_decode if is_json else protobuf).decode(body)
        packer = Packer(self._caller.open, self._caller.user, self._settings.large_field_bytes)
        spans = SpanPacker(packer)
        convert = self._convert if b"weave:" in body or b"weave-trace-internal:" in body else None
        for group, project in self._routed(groups):
            setting = Setting(project, self._caller.user, _run(group.resource, project), _resource(group), convert)
            for span in group.spans:
                if problem := _problem(span):
                    self._rejected.add(span, problem)
                    continue
                try:
                    spans.add(span, setting)
                except Conflict as conflict:
                    self._rejected.add(span, str(conflict))
        agents = {(agent.project, agent.trace_id, agent.span_id): agent for agent in spans.agents}
        return packer.packed, list(agents.values())

    def _convert(self, value: Json) -> Json:
        converted: Json = lenient(value, self._caller)
        return converted

    def _routed(self, groups: list[ResourceSpans]) -> Iterator[tuple[ResourceSpans, str]]:
        """The groups that hold spans, with their internal projects; spans without one are rejected.

        Raises InvalidRequest where no span has a project, Forbidden for one that the key does not reach.
        """
        named = [(group, self._project_of(group.resource)) for group in groups if group.spans]
        if named and not any(project_id for _, project_id in named):
            raise InvalidRequest(
                "No project: send the header 'project_id: entity/project', "
                f"or the resource attributes {table.ENTITY} and {table.PROJECT}"
            )
        opened = [(group, self._caller.open(project_id)) for group, project_id in named if project_id]
        for group, project_id in named:
            if not project_id:
                for span in group.spans:
                    self._rejected.add(
                        span,
                        f"its resource has no {table.ENTITY} and {table.PROJECT}, and the request no header project_id",
                    )
        yield from opened

    def _project_of(self, resource: Json) -> str | None:
        entity, project = resource.get(table.ENTITY), resource.get(table.PROJECT)
        if isinstance(entity, str) and isinstance(project, str) and entity and project:
            return f"{entity}/{project}"
        return self._project_id


def _run(resource: Json, project: str) -> str | None:
    named = next(
        (found for key in table.RESOURCE_RUN_ID if isinstance(found := resource.get(key), str) and found), None
    )
    return run_id(named, project)


def _resource(group: ResourceSpans) -> orjson.Fragment:
    return orjson.Fragment(jsontext.dumps_bytes(resource_dump(group.resource, group.resource_dropped)))


def _problem(span: OtelSpan) -> str | None:
    """Why a span cannot be stored at all."""
    for name, text, length in (
        ("trace_id", span.trace_id, _TRACE_ID_LENGTH),
        ("span_id", span.span_id, _SPAN_ID_LENGTH),
    ):
        if len(text) != length or not _HEX.issuperset(text):
            return f"{name} must be {length} hex digits ({length // 2} bytes)"
        if not text.strip("0"):
            return f"{name} must not be all zeros"
    return None
