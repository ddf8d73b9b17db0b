"""One export of spans: decoded, routed to projects, packed as calls, and stored."""

from functools import partial

from heddle.http.routing import off_loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.write import Packed
from heddle.trace.otel.joining import SpanJoiner
from heddle.trace.otel.packing import SpanPacker, SpanWriter, setting_of
from heddle.trace.otel.projects import MISSING, ProjectResolver
from heddle.trace.otel.rejections import Cause, Rejected
from heddle.trace.otel.signals import decode_spans
from heddle.trace.otel.span import OtelSpan, id_problem
from heddle.trace.records import lenient
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
