"""What log records say as events, and sessions of coding agents (Claude Code, Codex) made of them as conversations.

Each prompt is a turn: a trace whose root is the agent at work, above its requests to models and its tools. Turns are
made anew from all events of the session, so that events may come in any order and in any number of exports.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from heddle.trace.otel.conventions.convention import to_count, to_integer, to_number, to_text
from heddle.trace.otel.conventions.genai import ARGUMENTS, DETAILS, EVENTS, INPUT, OUTPUT, RESULT
from heddle.trace.otel.signals import Holder, LogRecord, Scope
from heddle.trace.otel.span import OtelEvent, OtelSpan
from heddle.wire import times
from heddle.wire.conversation.parts import parse_json
from heddle.wire.jsontypes import Json
from heddle.wire.metric_series import digest

EVENT_NAME, TIMESTAMP = "event.name", "event.timestamp"
UNNAMED = "log"


@dataclass(slots=True)
class LogEvent:
    """A log record as an event; `time` in nanoseconds, attributes flat."""

    name: str
    time: int
    attributes: Json
    scope: str = ""
    scope_version: str = ""
    resource: Json = field(default_factory=dict)
    resource_dropped: int = 0
    dropped_attributes: int = 0

    @property
    def is_genai(self) -> bool:
        """True for what the conventions read messages and tokens of."""
        return self.name in EVENTS

    def dump(self) -> str:
        """JSON text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str) -> "LogEvent":
        """The event of a JSON text."""
        return cls(**orjson.loads(text))

    @property
    def id(self) -> str:
        """The same for the same record, however often it is sent."""
        return digest(self.name, str(self.time), self.scope, orjson.dumps(self.attributes, option=_SORTED).decode())


_SORTED = orjson.OPT_SORT_KEYS


def event_of(record: LogRecord, scope: Scope, resource: Holder) -> LogEvent:
    """The event that a record tells of."""
    attributes = {**record.attributes}
    named = attributes.pop(EVENT_NAME, None)
    body = record.body
    name = named if isinstance(named, str) and named else record.event_name
    if isinstance(body, dict):
        attributes = {**body, **attributes}
    elif isinstance(body, str) and (not name or body.endswith(f".{name}")):
        # Some write the name into the body, with what it belongs to in front.
        name = body if " " not in body and "." in body and len(body) <= 200 else name
        if name != body:
            attributes.setdefault("body", body)
    elif body is not None:
        attributes.setdefault("body", body)
    if record.severity_text:
        attributes.setdefault("severity", record.severity_text)
    time = _time_of(record, attributes)
    of = scope.name, scope.version, resource.attributes, resource.dropped
    return LogEvent(name or UNNAMED, time, attributes, *of, record.dropped_attributes)


def _time_of(record: LogRecord, attributes: Json) -> int:
    """Nanoseconds of the record, else of the attribute that some write in its place, else of when it was seen."""
    if record.time:
        return record.time
    told = attributes.get(TIMESTAMP)
    micros = times.parse(told) if isinstance(told, str) else None
    return micros * 1000 if micros is not None else record.observed_time or times.now() * 1000


def add_events(span: OtelSpan, events: list[LogEvent]) -> None:
    """Give a span events that are not there; what the span says itself is said once."""
    known = {(event.name, event.time) for event in span.events}
    own = {key: parse_json(value) for key, value in span.attributes.items()}
    for event in events:
        if (event.name, event.time) not in known:
            said = {
                key: value
                for key, value in event.attributes.items()
                if not (key in own and own[key] == parse_json(value))
            }
            span.events.append(OtelEvent(event.name, event.time, said, event.dropped_attributes))
    span.events.sort(key=lambda event: event.time)


def span_of_events(trace_id: str, span_id: str, events: list[LogEvent]) -> OtelSpan:
    """What stands for a span that did not come: it begins and ends with its events."""
    told = next((event for event in events if event.is_genai), events[0])
    words = (told.attributes.get(f"gen_ai.{name}") for name in ("operation.name", "request.model"))
    span = OtelSpan(
        name=" ".join(word for word in words if isinstance(word, str) and word) or told.name,
        trace_id=trace_id,
        span_id=span_id,
        parent_id="",
        start=min(event.time for event in events),
        end=max(event.time for event in events),
        kind=_CLIENT,
        attributes={**told.attributes} if told.name == DETAILS else {},
        scope=told.scope,
        scope_version=told.scope_version,
        resource=told.resource,
        resource_dropped=told.resource_dropped,
        is_of_logs=True,
    )
    add_events(span, events)
    return span


_CLIENT, _INTERNAL, _ERROR = 3, 1, 2
_MILLISECOND = 1_000_000
_REDACTED = "<REDACTED>"
_CLOCKS = 1000 * _MILLISECOND
"""By how much the clocks of the agent and of this server may differ."""
Interval = tuple[int, int]
"""Start and end in nanoseconds."""
_CONVERSATION, _THREAD = "gen_ai.conversation.id", "wandb.thread_id"


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that reports sessions: the beginning of its events' names, and the attribute that names a session."""

    prefix: str
    name: str
    provider: str
    session: str
    noise: frozenset[str] = frozenset()
    """Events that come with every piece of a stream and say nothing by themselves."""
    is_traced: bool = False
    """Its records name a span only where it exports spans, too: these are the conversation then."""


CLAUDE_CODE = Agent("claude_code.", "Claude Code", "anthropic", "session.id", is_traced=True)
CODEX = Agent("codex.", "Codex", "openai", "conversation.id", frozenset(("codex.sse_event", "codex.websocket_event")))
AGENTS = (CLAUDE_CODE, CODEX)
_OWN_TELEMETRY = "codex_otel::"
_GEMINI_CLI = "gemini-cli"
_STREAMED = ("response.completed", "response.failed", "response.incomplete")


def session_of(event: LogEvent, names_span: bool = False) -> str | None:
    """The session that an event belongs to, as the owner of its record; None for one of a span, and any other event."""
    for agent in AGENTS:
        if names_span and agent.is_traced:
            continue
        if event.name.startswith(agent.prefix) and (named := to_text(event.attributes.get(agent.session))):
            return f"{agent.prefix}{named}"
    return None


def thread_of(owner: str) -> str:
    """The thread of a session's calls."""
    return next(owner.removeprefix(agent.prefix) for agent in AGENTS if owner.startswith(agent.prefix))


def is_session(owner: str) -> bool:
    """True for the owner of a session's records; traces are hex."""
    return owner.startswith(tuple(agent.prefix for agent in AGENTS))


def is_noise(event: LogEvent, names_span: bool = False) -> bool:
    """True for a piece of a stream, notes of an agent on its own telemetry, and what a span says that is not named."""
    if event.scope.startswith(_OWN_TELEMETRY):
        return True
    if event.scope == _GEMINI_CLI and event.name == DETAILS and not names_span:
        # Its setting `traces` gives messages to these records and to the spans of requests alike.
        return INPUT in event.attributes or OUTPUT in event.attributes
    if not any(event.name in agent.noise for agent in AGENTS):
        return False
    kind = event.attributes.get("event.kind")
    return kind not in _STREAMED or (kind == _STREAMED[0] and "input_token_count" not in event.attributes)


@dataclass(slots=True)
class _Turn:
    """The events of one prompt by their ids, in order."""

    key: str
    events: dict[str, LogEvent] = field(default_factory=dict)


def spans_of_session(
    owner: str, events: Mapping[str, LogEvent], brought: Collection[str], traced: Iterable[Interval] = ()
) -> list[OtelSpan]:
    """The spans of those turns of a session that events with the ids in `brought` belong to, or were taken from.

    `traced` are the requests to models that this server answered and traced itself: events tell of them once more, and
    their calls have everything already.
    """
    waiting = sorted(traced)
    agent = next(one for one in AGENTS if owner.startswith(one.prefix))
    wanted = set(brought)
    others = {record: event for record, event in events.items() if record not in wanted}
    before = (
        {turn.key: turn.events.keys() for turn in _turns(agent, others)} if _is_late(others, events, wanted) else {}
    )
    found: list[OtelSpan] = []
    for turn in _turns(agent, events):
        had = before.get(turn.key, turn.events.keys())
        if had != turn.events.keys() or not wanted.isdisjoint(turn.events):
            found += _TurnSpans(agent, owner.removeprefix(agent.prefix), turn, waiting).spans()
    return found


def stale_spans(owner: str, events: Mapping[str, LogEvent], brought: Collection[str]) -> set[str]:
    """The ids of spans that were made without the events with the ids in `brought`, and are none with them.

    Only events that come late change what was made of others: a prompt between two others, the begin of a request.
    """
    others = {record: event for record, event in events.items() if record not in brought}
    if not _is_late(others, events, brought):
        return set()
    made = (spans_of_session(owner, some, some.keys()) for some in (others, events))
    before, after = ({span.span_id for span in spans} for spans in made)
    return before - after


def _is_late(others: Mapping[str, LogEvent], events: Mapping[str, LogEvent], brought: Collection[str]) -> bool:
    """True where something of what was brought is not from after all others."""
    late = [events[record].time for record in brought if record in events]
    return bool(others and late) and min(late) <= max(event.time for event in others.values())


def _turns(agent: Agent, events: Mapping[str, LogEvent]) -> list[_Turn]:
    """The turns: by the prompt that events name, else by the last prompt before them (else the first)."""
    ordered = sorted(events.items(), key=lambda item: (item[1].time, _sequence(item[1]), item[0]))
    turns: dict[str, _Turn] = {}
    early: dict[str, LogEvent] = {}
    current: _Turn | None = None
    for record, event in ordered:
        named = to_text(event.attributes.get("prompt.id"))
        is_prompt = event.name == f"{agent.prefix}user_prompt"
        if named is not None:
            current = turns.setdefault(named, _Turn(named))
        elif is_prompt:
            current = turns[record] = _Turn(record)
        elif current is None and event.name.removeprefix(agent.prefix) not in _WORK:
            early[record] = event
            continue
        elif current is None:
            current = turns.setdefault("", _Turn(""))
        current.events[record] = event
    if turns:
        first = next(iter(turns.values()))
        first.events = early | first.events
    return list(turns.values())


def _sequence(event: LogEvent) -> int:
    return to_count(event.attributes.get("event.sequence")) or 0


_WORK = ("api_request", "api_error", "tool_result", "sse_event", "websocket_request", "websocket_event")


class _TurnSpans:
    """The spans of one turn."""

    def __init__(self, agent: Agent, session: str, turn: _Turn, traced: list[Interval]) -> None:
        self._agent = agent
        self._traced = traced
        self._session = session
        self._turn = turn
        self._trace_id = digest(agent.prefix, session, turn.key)
        self._root_id = digest("turn", self._trace_id)[:16]
        self._rest: list[LogEvent] = []
        """What only the turn itself tells."""
        self._by_request: dict[str, OtelSpan] = {}
        self._by_tool: dict[str, OtelSpan] = {}
        self._open: OtelSpan | None = None
        """A request to a model whose tokens come with a later event."""
        self._requests: set[str] = set()
        """The ids of the spans of requests."""

    def spans(self) -> list[OtelSpan]:
        """The turn and what was done in it."""
        children = [span for record, event in self._turn.events.items() if (span := self._read(record, event))]
        prompt = next((one for one in self._turn.events.values() if one.name.endswith(".user_prompt")), None)
        if prompt is None and not children:
            return []
        return [self._root(prompt, children), *(span for span in children if not self._is_traced(span))]

    def _is_traced(self, span: OtelSpan) -> bool:
        """True for a request that has a call of its own; each call stands for one request."""
        if span.span_id not in self._requests:
            return False
        for number, (start, end) in enumerate(self._traced):
            if start < span.end + _CLOCKS and end > span.start - _CLOCKS:
                del self._traced[number]
                return True
        return False

    def _read(self, record: str, event: LogEvent) -> OtelSpan | None:
        """The span that an event begins; None where it tells of another one, or of the turn."""
        kind = event.name.removeprefix(self._agent.prefix)
        values = event.attributes
        if kind == "tool_result":
            return self._tool(record, event)
        if kind in ("api_request", "api_error", "websocket_request"):
            if self._agent is CODEX and not str(values.get("endpoint", "/responses")).endswith("/responses"):
                self._rest.append(event)
                return None
            return self._request(record, event)
        if kind in ("sse_event", "websocket_event"):
            return self._completed(record, event)
        if kind == "assistant_response" and (span := self._by_request.get(str(values.get("request_id")))):
            said = to_text(values.get("response"))
            if said is not None and said != _REDACTED:
                span.attributes[OUTPUT] = _texts("assistant", said)
            return None
        if kind == "tool_decision" and (tool := self._by_tool.get(str(_tool_id(values)))):
            add_events(tool, [event])
            return None
        self._rest.append(event)
        return None

    def _span(self, record: str, event: LogEvent, name: str, kind: int, attributes: Json) -> OtelSpan:
        """A span that ends with its event, after as many milliseconds as that says."""
        told = to_number(event.attributes.get("duration_ms")) or 0.0
        lasted = int(min(max(0.0, told * _MILLISECOND), event.time))
        own = {key: value for key, value in event.attributes.items() if key != self._agent.session}
        return OtelSpan(
            name=name,
            trace_id=self._trace_id,
            span_id=digest(self._trace_id, record)[:16],
            parent_id=self._root_id,
            start=event.time - lasted,
            end=event.time,
            kind=kind,
            attributes={**own, **attributes, _THREAD: self._session},
            scope=event.scope,
            scope_version=event.scope_version,
            resource=event.resource,
            resource_dropped=event.resource_dropped,
        )

    def _request(self, record: str, event: LogEvent) -> OtelSpan:
        values = event.attributes
        model = to_text(values.get("model"))
        span = self._span(
            record, event, f"chat {model}" if model else "chat", _CLIENT, {"gen_ai.operation.name": "chat"}
        )
        self._requests.add(span.span_id)
        span.attributes["gen_ai.provider.name"] = self._agent.provider
        if model:
            span.attributes["gen_ai.request.model"] = model
        if (asked := to_text(values.get("request_id"))) is not None:
            self._by_request[asked] = span
        status = to_text(values.get("status_code", values.get("http.response.status_code")))
        message = to_text(values.get("error", values.get("error.message")))
        is_error = event.name.endswith("api_error") or message is not None or values.get("success") in ("false", False)
        if is_error or (to_integer(status) or 0) >= 400:
            span.status_code, span.status_message = _ERROR, message or (f"HTTP {status}" if status else "failed")
            if status:
                span.attributes.setdefault("error.type", status)
        elif self._agent is CODEX:
            self._open = span
        if "input_tokens" in values:
            _set_tokens(span, values, ("input_tokens", "cache_read_tokens", "cache_creation_tokens"), "output_tokens")
        return span

    def _completed(self, record: str, event: LogEvent) -> OtelSpan | None:
        """The end of a streamed answer, with its tokens: of the request before it, else of one that did not come."""
        span, self._open = self._open, None
        is_new = span is None
        if span is None:
            span = self._request(record, event)
            self._open = None
        span.end = max(span.end, event.time)
        values = event.attributes
        _set_tokens(span, values, ("input_token_count",), "output_token_count")
        for name, key in _STREAM_TOKENS:
            if count := to_count(values.get(key)):
                span.attributes[name] = count
        span.attributes |= {key: values[key] for key in ("ttft_ms", "response.id") if key in values}
        if values.get("event.kind") != _STREAMED[0]:
            span.status_code = _ERROR
            span.status_message = to_text(values.get("error.message")) or str(values.get("event.kind"))
        return span if is_new else None

    def _tool(self, record: str, event: LogEvent) -> OtelSpan:
        values = event.attributes
        name = to_text(values.get("tool_name")) or "tool"
        attributes: Json = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        given = next((key for key in ("tool_input", "arguments", "tool_parameters") if values.get(key)), "")
        came = next((key for key in ("output", "tool_result") if values.get(key)), "")
        told = ((ARGUMENTS, values.get(given)), (RESULT, values.get(came)), ("gen_ai.tool.call.id", _tool_id(values)))
        attributes |= {key: value for key, value in told if value is not None}
        span = self._span(record, event, f"execute_tool {name}", _INTERNAL, attributes)
        for key in (given, came):
            span.attributes.pop(key, None)
        if values.get("success") in ("false", False):
            span.status_code = _ERROR
            span.status_message = to_text(values.get("error")) or to_text(values.get(came)) or "failed"
        if (tool_id := to_text(_tool_id(values))) is not None:
            self._by_tool[tool_id] = span
            decisions = (one for one in self._rest if one.name.endswith(".tool_decision"))
            decided = [one for one in decisions if _tool_id(one.attributes) == tool_id]
            self._rest = [one for one in self._rest if one not in decided]
            add_events(span, decided)
        return span

    def _root(self, prompt: LogEvent | None, children: list[OtelSpan]) -> OtelSpan:
        events = list(self._turn.events.values())
        told = prompt or events[0]
        answers = [span.attributes[OUTPUT] for span in children if OUTPUT in span.attributes]
        own = {**told.attributes} if prompt is not None else _shared(events)
        own.pop(self._agent.session, None)
        root = OtelSpan(
            name=f"invoke_agent {self._agent.name}",
            trace_id=self._trace_id,
            span_id=self._root_id,
            parent_id="",
            start=min([told.time, *(span.start for span in children)]),
            end=max([told.time, *(one.time for one in self._rest), *(span.end for span in children)]),
            kind=_INTERNAL,
            attributes={
                **own,
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._agent.name,
                "gen_ai.provider.name": self._agent.provider,
                _CONVERSATION: self._session,
            },
            scope=told.scope,
            scope_version=told.scope_version,
            resource=told.resource,
            resource_dropped=told.resource_dropped,
        )
        text = to_text(prompt.attributes.get("prompt")) if prompt is not None else None
        if text is not None and text != _REDACTED:
            root.attributes[INPUT] = _texts("user", text)
            for key in ("prompt", "prompt_text"):
                root.attributes.pop(key, None)
        if answers:
            root.attributes[OUTPUT] = answers[-1]
        add_events(root, [event for event in self._rest if event is not prompt])
        return root


_STREAM_TOKENS = (
    ("gen_ai.usage.cache_read.input_tokens", "cached_token_count"),
    ("gen_ai.usage.cache_creation.input_tokens", "cache_write_token_count"),
    ("gen_ai.usage.reasoning.output_tokens", "reasoning_token_count"),
)


def _set_tokens(span: OtelSpan, values: Json, given: tuple[str, ...], came: str) -> None:
    """Tokens as the GenAI conventions count them: cached ones are part of the input."""
    counts = [to_count(values.get(key)) or 0 for key in given]
    span.attributes["gen_ai.usage.input_tokens"] = sum(counts)
    span.attributes["gen_ai.usage.output_tokens"] = to_count(values.get(came)) or 0
    for name, count in zip(("cache_read", "cache_creation"), counts[1:], strict=False):
        span.attributes[f"gen_ai.usage.{name}.input_tokens"] = count


def _tool_id(values: Json) -> Any:
    return values.get("tool_use_id", values.get("call_id"))


def _texts(role: str, text: str) -> str:
    """One message in the form of the GenAI conventions."""
    return orjson.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}]).decode()


def _shared(events: Iterable[LogEvent]) -> Json:
    """The attributes that all events have alike."""
    found: Iterator[LogEvent] = iter(events)
    first = next(found).attributes
    shared = {**first}
    for event in found:
        shared = {key: value for key, value in shared.items() if event.attributes.get(key) == value}
    return shared
