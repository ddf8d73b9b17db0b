"""One export: decoded, routed to projects, packed as calls, stored; only then is the exporter told."""

import asyncio
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
from heddle.trace.otel import json_decode, protobuf
from heddle.trace.otel.call import Setting, SpanPacker
from heddle.trace.otel.dump import resource_dump
from heddle.trace.otel.expand import Conflict
from heddle.trace.otel.span import OtelSpan, ResourceSpans
from heddle.wire import jsontext, refs
from heddle.wire.calls import Start
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, PLACEHOLDER_SOURCE, Records, op_value
from heddle.wire.spans import AgentSpan

MOST_MESSAGES = 20
_TRACE_ID_LENGTH, _SPAN_ID_LENGTH = 32, 16
_ENTITY, _PROJECT, _RUN_IDS = "wandb.entity", "wandb.project", ("wandb.run_id", "wandb.wb_run_id")
"""Attributes of a resource."""
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
            await self._name_ops(packed.starts)
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
                f"or the resource attributes {_ENTITY} and {_PROJECT}"
            )
        opened = [(group, self._caller.open(project_id)) for group, project_id in named if project_id]
        for group, project_id in named:
            if not project_id:
                for span in group.spans:
                    self._rejected.add(
                        span,
                        f"its resource has no {_ENTITY} and {_PROJECT}, and the request no header project_id",
                    )
        yield from opened

    def _project_of(self, resource: Json) -> str | None:
        entity, project = resource.get(_ENTITY), resource.get(_PROJECT)
        if isinstance(entity, str) and isinstance(project, str) and entity and project:
            return f"{entity}/{project}"
        return self._project_id

    async def _name_ops(self, starts: list[Start]) -> None:
        """Put refs in the place of the op names of calls: the latest of a name, a placeholder where there is none."""
        wanted: dict[str, set[str]] = {}
        for start in starts:
            wanted.setdefault(start.project, set()).add(start.op_name)
        known = {project: await self._ops(project, sorted(names)) for project, names in wanted.items()}
        for start in starts:
            start.op_name = known[start.project][start.op_name]

    async def _ops(self, project: str, names: list[str]) -> dict[str, str]:
        """The refs of ops by their names; those that are not there are stored with a stub of a source."""
        digests = await self._store.objects.latest.digests(project, "op", names)
        found = {name: refs.object_ref(project, "op", name, digest) for name, digest in digests.items()}
        if missing := [name for name in names if name not in found]:
            records, project_id = self._records, refs.external_project(project)
            assert project_id is not None, "the project was opened by its name"
            value = op_value(await records.put_file(self._caller, project_id, OP_FILE, PLACEHOLDER_SOURCE.encode()))
            made = await asyncio.gather(*(records.publish(self._caller, project_id, name, value) for name in missing))
            found |= {published.object_id: published.ref for published in made}
        return found


def _run(resource: Json, project: str) -> str | None:
    named = next((found for key in _RUN_IDS if isinstance(found := resource.get(key), str) and found), None)
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
