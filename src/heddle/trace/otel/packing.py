"""Spans packed as calls, and written: ops that their calls name exist, files come first."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import orjson

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.text_cache import cache_texts
from heddle.trace.calls.models import DISPLAY_NAME_MAX, OP_NAME_MAX
from heddle.trace.calls.packing import Packed, Packer, run_id, usage_of_span
from heddle.trace.calls.write import CallWrites
from heddle.trace.feedback.roots import move_to_roots
from heddle.trace.otel.reading import SpanReading, is_about_agents, read
from heddle.trace.otel.span import (
    FAILED,
    OtelEvent,
    OtelSpan,
    expand,
    parent_of,
    pick_path,
    resource_dump,
    status_name,
    to_dump,
)
from heddle.wire import jsontext, refs, times
from heddle.wire.call_summary import NO_MODEL
from heddle.wire.calls import ERROR, SUCCESS, End, SharedText, Start
from heddle.wire.content import LONG_STRING
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, PLACEHOLDER_SOURCE, Records, op_value
from heddle.wire.spans import MODEL_OPERATIONS, AgentSpan

NAMELESS = "unknown"
_DELIMITER = re.compile(r"[,;| /?.]")
_UNSAFE = re.compile(r"[^\w.-]")
_STRUCTURES = (dict, list)
_MARKS = tuple(f'"{token_hex(16)}"' for _ in ("inputs", "output"))
"""Stand in a dump for what is put in as text."""


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

    def add(self, span: OtelSpan, setting: Setting) -> str | None:
        """Pack one span, one without an end as one without duration; returns why nothing of it was packed."""
        span.end = span.end or span.start
        tree, texts = expand(span.attributes)
        if setting.convert_refs is not None:
            tree = setting.convert_refs(tree)
        packed = self._packer.packed
        files = len(packed.files)
        if any(len(v) > LONG_STRING if type(v) is str else type(v) in _STRUCTURES for v in span.attributes.values()):
            tree = self._packer.without_media(setting.project, tree)
        found = read(span, tree, setting.project)
        if (problem := _long_id(span, found)) is not None:
            del packed.files[files:]
            return problem
        spilled = len(packed.spills)
        start = self._start(span, found, setting)
        end = self._end(span, found, start)
        is_cut = len(packed.spills) > spilled
        self._dump(start, end, to_dump(span, tree, texts, setting.resource), found, is_cut)
        packed.starts.append(start)
        packed.ends.append(end)
        agent = found.agent
        if agent is not None and is_about_agents(agent):
            agent.started_at, agent.ended_at = start.started_at, end.ended_at
            agent.wb_user_id, agent.wb_run_id = start.user, start.run_id
            agent.wb_run_step, agent.wb_run_step_end = start.run_step, end.run_step_end
            self.agents.append(agent)
        return None

    def distinct_agents(self) -> list[AgentSpan]:
        """The agent spans, of those with the same ids the last."""
        return list({(agent.project, agent.trace_id, agent.span_id): agent for agent in self.agents}.values())

    def _dump(self, start: Start, end: End, dump: Json, found: SpanReading, is_cut: bool) -> None:
        """Give the call the JSON text of its span, and tell which parts of it are the call's inputs and output.

        These are texts by now and put into the text of the span, unless one `is_cut`.
        """
        left_out: list[tuple[str, str, str, int]] = []
        if not is_cut:
            columns = (("inputs", found.inputs_from, start.inputs), ("output", found.output_from, end.output or ""))
            for mark, (column, taken, text) in zip(_MARKS, columns, strict=True):
                if taken is not None:
                    pick_path(dump["attributes"], taken.path[:-1])[taken.path[-1]] = orjson.Fragment(mark)
                    begin, stop = (len(taken.name) + 4, len(text) - 1) if taken.name else (0, len(text))
                    left_out.append((mark, text[begin:stop], column, begin))
        text = jsontext.dumps(dump)
        parts: list[str] = []
        shared: list[SharedText] = []
        done = size = 0
        for at, mark, held, column, begin in sorted((text.find(one[0]), *one) for one in left_out):
            size += at - done
            shared.append(SharedText(size, len(held), column, begin))
            parts += (text[done:at], held)
            size += len(held)
            done = at + len(mark)
        text = "".join((*parts, text[done:]))
        if self._packer.put_text(start, "otel_dump", text):
            start.shared = tuple(shared)
        else:
            self._packer.put(start, "otel_dump", orjson.loads(text))

    def _start(self, span: OtelSpan, found: SpanReading, setting: Setting) -> Start:
        others, parent = found.others, None if found.is_outermost else parent_of(span)
        thread = _to_text(others.get("thread"))
        is_turn = thread is not None and "turn" in others
        if thread is None and found.agent is not None and found.agent.conversation_id:
            # Such libraries name the conversation on every span of it; the outermost one is the turn.
            thread, is_turn = found.agent.conversation_id, parent is None
        display_name = _to_text(others.get("display_name")) or found.context.display_name
        if display_name is None and parent is None:
            display_name = found.trace_name
        if display_name == span.name:
            display_name = None
        start = Start(
            project=setting.project,
            id=span.span_id,
            trace_id=span.trace_id,
            op_name=op_object_id(span.name),
            started_at=_to_instant(others.get("start_time"), span.start // 1000),
            inputs="",
            attributes="",
            user=found.context.user or setting.user,
            parent_id=parent,
            thread_id=thread,
            turn_id=span.span_id if is_turn else None,
            display_name=cut(display_name, DISPLAY_NAME_MAX) if display_name else None,
            run_id=_own_run_id(setting, others.get("run_id")),
            run_step=_to_step(others.get("run_step")),
        )
        self._packer.put(start, "inputs", found.inputs)
        self._packer.put(start, "attributes", found.attributes)
        return start

    def _end(self, span: OtelSpan, found: SpanReading, start: Start) -> End:
        exception = None
        if span.status_code == FAILED:
            exception = _exception(span)
        elif found.agent is not None and found.agent.status_code == status_name(FAILED):
            exception = found.agent.status_message or "failed"
        summary = {"usage": {_model_of(found) or NO_MODEL: {**_NO_USAGE, **found.usage}}}
        end = End(
            project=start.project,
            id=start.id,
            ended_at=_to_instant(found.others.get("end_time"), span.end // 1000),
            output=None,
            summary="",
            status=ERROR if exception else SUCCESS,
            exception=exception,
            run_step_end=_to_step(found.others.get("run_step_end")),
            usage=usage_of_span(summary, found.agent is not None and found.agent.operation_name in MODEL_OPERATIONS),
        )
        self._packer.put(end, "output", {} if found.output is None else found.output)
        self._packer.put(end, "summary", summary)
        return end


def _model_of(found: SpanReading) -> str | None:
    """The model whose tokens a span counts."""
    model = found.attributes.get("model")
    if not model:
        parameters = found.attributes.get("model_parameters")
        model = parameters.get("model") if isinstance(parameters, dict) else None
    return _to_text(model)


_AGENT_IDS = (
    *("agent_name", "agent_version", "agent_id", "conversation_id", "request_model", "response_model"),
    "eval_predict_and_score_call_id",
)


def find_long_id(span: OtelSpan, project: str) -> str | None:
    """What is wrong with a span that has an id or a name which is too long to be looked up by; None for others."""
    return _long_id(span, read(span, expand(span.attributes)[0], project))


def _long_id(span: OtelSpan, found: SpanReading) -> str | None:
    named = {"parent_span_id": span.parent_id, "model": _model_of(found)}
    named |= {name: _to_text(found.others.get(name)) for name in ("thread", "run_id")}
    named |= {name: getattr(found.agent, name, None) for name in _AGENT_IDS}
    try:
        for name, text in named.items():
            refs.check_id(name, text)
    except InvalidRequest as error:
        return error.reason
    return None


_COUNTS = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "requests", "total_tokens")
_NO_USAGE = dict.fromkeys((*_COUNTS, "cache_creation_input_tokens", "cache_read_input_tokens"))
"""An entry of `summary.usage` says of every count that it is not known."""


@cache_texts()
def op_object_id(name: str) -> str:
    """The name of the op object that stands for spans of a name."""
    if len(name) > OP_NAME_MAX:
        name = cut(name, OP_NAME_MAX, f":{hashlib.sha256(name.encode()).hexdigest()[:4]}")
    safe = _UNSAFE.sub("", name.replace(" ", "_").replace("/", "_")).lower()
    # Lower-casing a few letters makes two of one, of which the second is no letter.
    safe = _UNSAFE.sub("", safe)[:OP_NAME_MAX]
    return NAMELESS if safe in ("", *refs.DOTS) else safe


def cut(name: str, most: int, ending: str = "...") -> str:
    """The name, at most so long: cut before a delimiter where there is one, then the ending."""
    if len(name) <= most:
        return name
    length = most - len(ending)
    first = _DELIMITER.search(name)
    if first is None or first.start() > length:
        return name[:length] + ending
    places = [match.start() for match in _DELIMITER.finditer(name, 0, length)]
    return name[: places[-1] if places else length].rstrip(",;| /?.") + ending


def _exception(span: OtelSpan) -> str:
    """Why a span failed: its status message, else what its exception event says; empty when neither says anything."""
    if span.status_message:
        return span.status_message
    for event in span.events:
        if event.name == "exception" and (text := _describe_exception(event)):
            return text
    kind = span.attributes.get("error.type")
    return kind if isinstance(kind, str) else ""


def _describe_exception(event: OtelEvent) -> str:
    """Type and message of an exception event, then its stack trace."""
    kind, message, stack = (event.attributes.get(f"exception.{name}") for name in ("type", "message", "stacktrace"))
    head = ": ".join(str(part) for part in (kind, message) if part)
    return "\n".join(str(part) for part in (head, stack) if part)


def _to_text(value: Any) -> str | None:
    """A value as text; None for nothing."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else jsontext.dumps(value)


def _own_run_id(setting: Setting, named: Any) -> str | None:
    """The run in internal form: that of the resource, else the one that the span names."""
    if setting.run is not None:
        return setting.run
    run = _to_text(named)
    return f"{setting.project}:{run}" if run and not ("/" in run or ":" in run) else None


def _to_step(value: Any) -> int | None:
    """A whole number within 64 bits, None for anything else."""
    try:
        step = int(value) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return None
    return step if step and abs(step) < 2**63 else None


def _to_instant(given: Any, otherwise: int) -> int:
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


_RUN_IDS = ("wandb.run_id", "wandb.wb_run_id")
"""Attributes of a resource."""


def setting_of(
    project: str, user: str, resource: Json, dropped: int, convert_refs: Callable[[Any], Any] | None = None
) -> Setting:
    """What the spans of a resource share; raises InvalidRequest for a run that is none."""
    named = next((found for key in _RUN_IDS if isinstance(found := resource.get(key), str) and found), None)
    dumped = orjson.Fragment(jsontext.dumps_bytes(resource_dump(resource, dropped)))
    return Setting(project, user, run_id(named, project), dumped, convert_refs)


class SpanWriter:
    """Writes packed spans for one caller."""

    def __init__(self, settings: Settings, store: Store, records: Records, caller: Caller) -> None:
        self._settings = settings
        self._store = store
        self._records = records
        self._caller = caller

    def packer(self) -> Packer:
        """What packs the calls of spans."""
        return Packer(self._caller.open, self._caller.user, self._settings.large_field_bytes)

    async def write(self, packed: Packed, agents: Sequence[AgentSpan]) -> None:
        """Store calls and agent spans; returns after the commit."""
        await self._name_ops(packed.starts)
        await CallWrites(self._settings, self._store, self._caller).keep(packed, agents)
        if roots := [start for start in packed.starts if start.parent_id is None]:
            await move_to_roots(self._store, roots)

    async def _name_ops(self, starts: Sequence[Start]) -> None:
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
