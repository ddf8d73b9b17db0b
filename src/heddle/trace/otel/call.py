"""From a span to the two halves of a call (contract: trace-core, 12).

The table of the contract comes first; where it finds nothing, what the conventions read fills in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.trace.calls.pack import Packer, usage_entries
from heddle.trace.content import LONG_STRING
from heddle.trace.otel import agent as agents
from heddle.trace.otel import conventions, fill, table
from heddle.trace.otel.dump import parent_of, to_dump
from heddle.trace.otel.expand import expand, listed, pick
from heddle.trace.otel.names import DISPLAY_NAME_MAX, cut, op_object_id
from heddle.trace.otel.span import OtelSpan
from heddle.trace.otel.usage import usage_of
from heddle.wire import jsontext, times
from heddle.wire.calls import ERROR, SUCCESS, End, Start
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_MAX_STEP = 2**63 - 1
_STATUS_ERROR = 2


@dataclass(slots=True)
class Setting:
    """What the spans of one resource share: the project, who sends them, the run, and the resource as JSON text."""

    project: str
    user: str
    run: str | None
    resource: orjson.Fragment
    convert_refs: Callable[[Any], Any] | None = None
    """Makes external refs internal, where the body may hold refs."""


@dataclass(slots=True)
class Fields:
    """What the table finds in a span's attributes."""

    inputs: Json = field(default_factory=dict)
    output: Any = None
    attributes: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)


class SpanPacker:
    """Packs spans as calls; the name of a call is that of its op object until the ops are known."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self.agents: list[AgentSpan] = []

    def add(self, span: OtelSpan, setting: Setting) -> None:
        """Pack one span; raises Conflict, and then nothing of it is packed."""
        tree, texts = expand(span.attributes)
        if setting.convert_refs is not None:
            tree = setting.convert_refs(tree)
        files: dict[str, str] = {}
        tree, dumped, size = self._dump(span, tree, texts, setting, files)
        agent = conventions.describe_known(span, setting.project)
        rows = table.table_for(tree)
        found = _fields(tree, rows)
        usage = usage_of(tree, rows.usage, agent)
        if not (found.attributes or found.inputs or found.output is not None or usage):
            found.attributes = {**tree}
        found.attributes.update(found.custom)
        if agent is not None:
            fill.fields(span, agent, found)
        start = self._start(span, tree, rows, found, setting, agent)
        start.files, start.otel_dump = files, dumped
        start.size += size
        self._packer.packed.starts.append(start)
        self._packer.packed.ends.append(self._end(span, tree, rows, found, usage, start))
        if agent is not None and agents.is_about_agents(agent):
            _place(agent, start, self._packer.packed.ends[-1])
            self.agents.append(agent)

    def _dump(
        self, span: OtelSpan, tree: Json, texts: list[str], setting: Setting, files: dict[str, str]
    ) -> tuple[Json, str, int]:
        """The attributes with media taken out, the JSON text of the whole span, and its size."""
        text = jsontext.dumps(to_dump(span, tree, texts, setting.resource))
        if len(text) <= LONG_STRING:
            return tree, text, len(text)
        tree = self._packer.without_media(setting.project, tree)
        whole = to_dump(span, tree, texts, orjson.loads(orjson.dumps(setting.resource)))
        text, _, size = self._packer.field(setting.project, "otel_dump", whole, files)
        return tree, text, size

    def _start(
        self,
        span: OtelSpan,
        tree: Json,
        rows: table.Table,
        found: Fields,
        setting: Setting,
        agent: AgentSpan | None,
    ) -> Start:
        thread = _text(_first(tree, rows.thread))
        is_turn = thread is not None and bool(_first(tree, rows.turn))
        if thread is None and agent is not None and agent.conversation_id:
            # Such libraries name the conversation on every span of it; the outermost one is the turn.
            thread, is_turn = agent.conversation_id, parent_of(span) is None
        own = tree if table.OWN in tree else {}
        display_name = _text(pick(own, table.DISPLAY_NAME))
        start = Start(
            project=setting.project,
            id=span.span_id,
            trace_id=span.trace_id,
            op_name=op_object_id(span.name),
            started_at=_instant(_first(tree, rows.start_time), span.start // 1000),
            inputs="",
            attributes="",
            user=setting.user,
            parent_id=parent_of(span),
            thread_id=thread,
            turn_id=span.span_id if is_turn else None,
            display_name=cut(display_name, DISPLAY_NAME_MAX) if display_name else None,
            run_id=_run(setting, pick(own, table.RUN_ID)),
            run_step=_step(pick(own, table.RUN_STEP)),
        )
        start.inputs, start.refs, size = self._packer.field(start.project, "inputs", found.inputs, start.files)
        start.attributes, _, attributes_size = self._packer.field(
            start.project, "attributes", found.attributes, start.files
        )
        start.size = size + attributes_size
        return start

    def _end(self, span: OtelSpan, tree: Json, rows: table.Table, found: Fields, usage: Json, start: Start) -> End:
        exception = fill.exception(span) if span.status_code == _STATUS_ERROR else None
        model = found.attributes.get("model")
        if not model:
            parameters = found.attributes.get("model_parameters")
            model = parameters.get("model") if isinstance(parameters, dict) else None
        summary = {"usage": {_text(model) or "usage": usage_entry(usage)}}
        end = End(
            project=start.project,
            id=start.id,
            ended_at=_instant(_first(tree, rows.end_time), span.end // 1000),
            output=None,
            summary="",
            status=ERROR if exception else SUCCESS,
            exception=exception,
            run_step_end=_step(pick(tree, table.RUN_STEP_END)),
            usage=usage_entries(summary) if usage else [],
        )
        output = {} if found.output is None else found.output
        end.output, end.refs, size = self._packer.field(end.project, "output", output, end.files)
        end.summary, _, summary_size = self._packer.field(end.project, "summary", summary, end.files)
        end.size = size + summary_size
        return end


_COUNTS = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "requests", "total_tokens")
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")


def usage_entry(usage: Json) -> Json:
    """One entry of `summary.usage`: what is not known is null."""
    return {**dict.fromkeys((*_COUNTS, *_CACHED)), **usage}


def _fields(tree: Json, rows: table.Table) -> Fields:
    found = Fields()
    for key, path in rows.inputs:
        if value := pick(tree, path):
            value = listed(value)
            bare = key in ("input", "inputs") and isinstance(value, dict)
            found.inputs = value if bare else {key: value}
            break
    for key, path in rows.output:
        if value := pick(tree, path):
            value = listed(value)
            found.output = value if key in ("output", "outputs") else {key: value}
            break
    for name, keys in rows.attributes:
        if value := _first(tree, keys):
            found.attributes[name] = listed(value)
    custom = pick(tree, table.CUSTOM) if table.OWN in tree else None
    if isinstance(custom, dict):
        found.custom = {key: listed(value) for key, value in custom.items()}
    return found


def _first(tree: Json, keys: table.Keys) -> Any:
    for _, path in keys:
        if value := pick(tree, path):
            return value
    return None


def _text(value: Any) -> str | None:
    """A value as text; None for nothing."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else jsontext.dumps(value)


def _run(setting: Setting, named: Any) -> str | None:
    """The run in internal form: that of the resource, else the one that the span names."""
    if setting.run is not None:
        return setting.run
    run = _text(named)
    return f"{setting.project}:{run}" if run and not ("/" in run or ":" in run) else None


def _step(value: Any) -> int | None:
    """A whole number within 64 bits, None for anything else."""
    try:
        step = int(value) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return None
    return step if step and abs(step) <= _MAX_STEP else None


def _instant(given: Any, otherwise: int) -> int:
    """Microseconds of ISO text, nanoseconds (integer) or seconds (float); the other where that is none of them."""
    micros: int | None = None
    if isinstance(given, str):
        micros = times.parse(given)
    elif isinstance(given, int):
        micros = given // 1000
    elif isinstance(given, float):
        micros = int(given * times.SECOND)
    try:
        return times.to_micros(times.to_datetime(micros)) if micros is not None else otherwise
    except OverflowError:
        return otherwise


def _place(agent: AgentSpan, start: Start, end: End) -> None:
    """Give the agent span what its call has: times, who sent it, the run."""
    agent.started_at, agent.ended_at = start.started_at, end.ended_at
    agent.wb_user_id, agent.wb_run_id = start.user, start.run_id
    agent.wb_run_step, agent.wb_run_step_end = start.run_step, end.run_step_end
