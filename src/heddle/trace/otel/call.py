"""From a span to the two halves of a call (contract: trace-core, 12)."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from heddle.trace.calls.pack import Packer, usage_entries
from heddle.trace.content import LONG_STRING
from heddle.trace.otel.dump import parent_of, to_dump
from heddle.trace.otel.expand import expand
from heddle.trace.otel.reading import SpanReading, is_about_agents, read
from heddle.trace.otel.span import OtelEvent, OtelSpan
from heddle.wire import jsontext, times
from heddle.wire.calls import ERROR, SUCCESS, End, Start
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_MAX_STEP = 2**63 - 1
_STATUS_ERROR = 2
OP_NAME_MAX = 128
DISPLAY_NAME_MAX = 1024
NAMELESS = "unknown"
_DELIMITER = re.compile(r"[,;| /?.]")
_UNSAFE = re.compile(r"[^\w.-]")
_REMEMBERED = 300


@dataclass(slots=True)
class Setting:
    """What the spans of one resource share: the project, who sends them, the run, and the resource as JSON text."""

    project: str
    user: str
    run: str | None
    resource: orjson.Fragment
    convert_refs: Callable[[Any], Any] | None = None
    """Makes external refs internal, where the body may hold refs."""


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
        found = read(span, tree, setting.project)
        start = self._start(span, found, setting, files)
        start.otel_dump = dumped
        start.size += size
        end = self._end(span, found, start)
        self._packer.packed.starts.append(start)
        self._packer.packed.ends.append(end)
        agent = found.agent
        if agent is not None and is_about_agents(agent):
            agent.started_at, agent.ended_at = start.started_at, end.ended_at
            agent.wb_user_id, agent.wb_run_id = start.user, start.run_id
            agent.wb_run_step, agent.wb_run_step_end = start.run_step, end.run_step_end
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

    def _start(self, span: OtelSpan, found: SpanReading, setting: Setting, files: dict[str, str]) -> Start:
        others, parent = found.others, parent_of(span)
        thread = _text(others.get("thread"))
        is_turn = thread is not None and "turn" in others
        if thread is None and found.agent is not None and found.agent.conversation_id:
            # Such libraries name the conversation on every span of it; the outermost one is the turn.
            thread, is_turn = found.agent.conversation_id, parent is None
        display_name = _text(others.get("display_name"))
        start = Start(
            project=setting.project,
            id=span.span_id,
            trace_id=span.trace_id,
            op_name=op_object_id(span.name),
            started_at=_instant(others.get("start_time"), span.start // 1000),
            inputs="",
            attributes="",
            user=setting.user,
            parent_id=parent,
            thread_id=thread,
            turn_id=span.span_id if is_turn else None,
            display_name=cut(display_name, DISPLAY_NAME_MAX) if display_name else None,
            run_id=_run(setting, others.get("run_id")),
            run_step=_step(others.get("run_step")),
            files=files,
        )
        start.inputs, start.refs, size = self._packer.field(start.project, "inputs", found.inputs, files)
        start.attributes, _, attributes_size = self._packer.field(start.project, "attributes", found.attributes, files)
        start.size = size + attributes_size
        return start

    def _end(self, span: OtelSpan, found: SpanReading, start: Start) -> End:
        exception = _exception(span) if span.status_code == _STATUS_ERROR else None
        model = found.attributes.get("model")
        if not model:
            parameters = found.attributes.get("model_parameters")
            model = parameters.get("model") if isinstance(parameters, dict) else None
        summary = {"usage": {_text(model) or "usage": {**_NO_USAGE, **found.usage}}}
        end = End(
            project=start.project,
            id=start.id,
            ended_at=_instant(found.others.get("end_time"), span.end // 1000),
            output=None,
            summary="",
            status=ERROR if exception else SUCCESS,
            exception=exception,
            run_step_end=_step(found.others.get("run_step_end")),
            usage=usage_entries(summary) if found.usage else [],
        )
        output = {} if found.output is None else found.output
        end.output, end.refs, size = self._packer.field(end.project, "output", output, end.files)
        end.summary, _, summary_size = self._packer.field(end.project, "summary", summary, end.files)
        end.size = size + summary_size
        return end


_COUNTS = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "requests", "total_tokens")
_NO_USAGE = dict.fromkeys((*_COUNTS, "cache_creation_input_tokens", "cache_read_input_tokens"))
"""An entry of `summary.usage` says of every count that it is not known."""


def op_object_id(span_name: str) -> str:
    """The name of the op object that stands for spans of a name."""
    return _remembered(span_name) if len(span_name) <= _REMEMBERED else _object_id(span_name)


def _object_id(name: str) -> str:
    if len(name) > OP_NAME_MAX:
        name = cut(name, OP_NAME_MAX, f":{hashlib.sha256(name.encode()).hexdigest()[:4]}")
    safe = _UNSAFE.sub("", name.replace(" ", "_").replace("/", "_")).lower()
    # Lower-casing a few letters makes two of one, of which the second is no letter.
    return _UNSAFE.sub("", safe)[:OP_NAME_MAX] or NAMELESS


_remembered = lru_cache(maxsize=20_000)(_object_id)


def cut(name: str, most: int, ending: str = "...") -> str:
    """The name, at most so long: cut before a delimiter where there is one, then the ending."""
    if len(name) <= most:
        return name
    room = most - len(ending)
    first = _DELIMITER.search(name)
    if first is None or first.start() > room:
        return name[:room] + ending
    places = [match.start() for match in _DELIMITER.finditer(name, 0, room)]
    return name[: places[-1] if places else room].rstrip(",;| /?.") + ending


def _exception(span: OtelSpan) -> str:
    """Why a span failed: its status message, else what its exception event says; empty when neither says anything."""
    if span.status_message:
        return span.status_message
    for event in span.events:
        if event.name == "exception" and (text := _told(event)):
            return text
    kind = span.attributes.get("error.type")
    return kind if isinstance(kind, str) else ""


def _told(event: OtelEvent) -> str:
    """Type and message of an exception event, then its stack trace."""
    kind, message, stack = (event.attributes.get(f"exception.{name}") for name in ("type", "message", "stacktrace"))
    head = ": ".join(str(part) for part in (kind, message) if part)
    return "\n".join(str(part) for part in (head, stack) if part)


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
