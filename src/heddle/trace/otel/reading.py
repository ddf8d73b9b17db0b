"""A span's attributes read once: what its call and its agent span say.

The table of calls comes first (contract: trace-core, 12); where it finds nothing, what the conventions read fills in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from heddle.trace.otel.conventions import CONVENTIONS
from heddle.trace.otel.conventions.convention import (
    ContextRows,
    Convention,
    Rows,
    SpanContext,
    fill,
    nest_attributes,
    offer,
    read_context,
    select_context,
    select_rows,
    to_json_text,
    to_text,
)
from heddle.trace.otel.span import OtelSpan, kind_name, pick_path, restore_lists, split_key, status_name, to_span
from heddle.wire.conversation.messages import is_serialised_request, join_system_texts, join_thoughts
from heddle.wire.conversation.parts import as_text, parse_json
from heddle.wire.jsontypes import Json
from heddle.wire.spans import INPUTS, MODEL_OPERATIONS, OUTPUT, AgentSpan

ATTRIBUTES = {
    "system": ("gen_ai.system_instructions", "gen_ai.system", "llm.system"),
    "kind": ("weave.span.kind", "traceloop.span.kind", "openinference.span.kind"),
    "model": ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.model.id"),
    "provider": ("gen_ai.provider.name", "llm.provider", "ai.model.provider"),
    "model_parameters": ("gen_ai.request", "llm.invocation_parameters"),
    "operation_name": ("gen_ai.operation.name",),
    "response_id": ("gen_ai.response.id",),
    "finish_reasons": ("gen_ai.response.finish_reasons",),
    "agent_name": ("gen_ai.agent.name",),
    "agent_id": ("gen_ai.agent.id",),
}
USAGE = {
    "prompt_tokens": ("gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "ai.usage.promptTokens"),
    "completion_tokens": ("gen_ai.usage.completion_tokens", "llm.token_count.completion", "ai.usage.completionTokens"),
    "input_tokens": ("gen_ai.usage.input_tokens",),
    "output_tokens": ("gen_ai.usage.output_tokens",),
    "total_tokens": ("llm.usage.total_tokens", "llm.token_count.total"),
    "cache_creation_input_tokens": ("gen_ai.usage.cache_creation.input_tokens",),
    "cache_read_input_tokens": ("gen_ai.usage.cache_read.input_tokens",),
}
OTHERS = {
    "thread": ("gen_ai.conversation.id", "gcp.vertex.agent.session_id", "wandb.thread_id"),
    "turn": ("gen_ai.conversation.id", "gcp.vertex.agent.session_id", "wandb.is_turn"),
    "start_time": ("langfuse.startTime",),
    "end_time": ("langfuse.endTime",),
    "attributes": ("wandb.attributes",),
    "display_name": ("wandb.display_name",),
    "run_id": ("wandb.wb_run_id",),
    "run_step": ("wandb.wb_run_step",),
    "run_step_end": ("wandb.wb_run_step_end",),
}
"""What a call has besides: its thread, its times, its name and run."""
KINDS = {
    "chat": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "embeddings": "embedding",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "invoke_workflow": "workflow",
    "agent_step": "workflow",
    "retrieval": "retriever",
    "rerank": "reranker",
    "guardrail": "guardrail",
    "evaluator": "evaluator",
}
"""Operations as the words that calls are shown by."""
_JSON_TEXTS = ("mlflow.spanInputs", "mlflow.spanOutputs", "traceloop.entity.input", "traceloop.entity.output")
"""Attributes that are always JSON texts."""
_SESSION, _ERROR, _PLAIN = "session.id", "error.type", "text/plain"
_PROMPT, _PROMPT_NAMES = "gen_ai.prompt", frozenset(("gen_ai.prompt.name", "gen_ai.prompt.version"))
"""Names of a template beside those of what it became."""
_ANSWER, _ABOUT_ANSWER = "gen_ai.output.messages", "ai.response"
"""Where both stand, the second one has details of the provider (Vercel AI SDK 7)."""
_EVENTS = frozenset().union(*(one.events for one in CONVENTIONS))
"""Span events by which a convention is known."""
_SPELLINGS = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_SUMMANDS = (
    ("prompt_tokens", "completion_tokens"),
    ("input_tokens", "output_tokens"),
    ("prompt_tokens", "output_tokens"),
    ("input_tokens", "completion_tokens"),
)
_TOKENS = (
    *("input_tokens", "output_tokens", "reasoning_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
)
_SUMS = frozenset(("invoke_agent", "create_agent", "invoke_workflow", "agent_step"))
"""Operations whose tokens are those of the model calls below them, which report their own."""
_MOST_PLANS, _MOST_KEYS, _MOST_CHARACTERS = 200, 200, 8000

Paths = tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
"""Fields or attributes, each with paths in the tree."""


class Taken(NamedTuple):
    """What of the tree of attributes a call's inputs or output are: its path, and the name it has there, if any."""

    path: tuple[str, ...]
    name: str


@dataclass(slots=True)
class SpanReading:
    """What a span says: fields of its call, and its agent span, None where no convention knows it."""

    agent: AgentSpan | None = None
    inputs: Json = field(default_factory=dict)
    output: Any = None
    attributes: Json = field(default_factory=dict)
    usage: Json = field(default_factory=dict)
    others: Json = field(default_factory=dict)
    """The fields of `OTHERS` that hold anything, as they were sent."""
    context: SpanContext = field(default_factory=SpanContext)
    is_outermost: bool = False
    """The span says that it has no parent, or none that will ever come."""
    trace_name: str | None = None
    inputs_from: Taken | None = None
    """None where the tree does not have the inputs as they are."""
    output_from: Taken | None = None


class _Plan(NamedTuple):
    """Which rows of the tables can fill something in spans of one shape; `custom` are the attributes of none."""

    known: tuple[tuple[Convention, Rows], ...]
    custom: tuple[str, ...]
    inputs: Paths
    output: Paths
    attributes: Paths
    usage: Paths
    others: Paths
    context: ContextRows
    details: Paths
    roots: frozenset[str]


_plans: dict[tuple[Any, ...], _Plan] = {}


def read(span: OtelSpan, tree: Json, project: str) -> SpanReading:
    """The reading of a span; `tree` holds its attributes expanded, `project` is internal."""
    plan = _plan(span)
    agent = _scalars(span, project, plan) if plan.known else None
    found = SpanReading(
        agent, attributes={name: restore_lists(value) for name, value in _picked(tree, plan.attributes).items()}
    )
    for key, value in _picked(tree, plan.inputs).items():
        given = restore_lists(_unquoted(key, value, tree))
        name = "" if key in ("input", "inputs") and isinstance(given, dict) else key
        found.inputs = {name: given} if name else given
        found.inputs_from = Taken(split_key(key), name) if given is value else None
        break
    for key, value in _picked(tree, plan.output).items():
        given = restore_lists(_unquoted(key, value, tree))
        name = "" if key in ("output", "outputs") else key
        found.output = {name: given} if name else given
        found.output_from = Taken(split_key(key), name) if given is value else None
        break
    found.usage = {} if _is_repeated(span, plan) else _usage(tree, plan.usage, agent)
    if not (found.attributes or found.inputs or found.output is not None or found.usage):
        found.attributes = {key: value for key, value in tree.items() if key not in plan.roots}
    found.others = _picked(tree, plan.others)
    own = found.others.get("attributes")
    if isinstance(own, dict):
        found.attributes.update((key, restore_lists(value)) for key, value in own.items())
    if plan.context:
        found.context = context = read_context(plan.context, span.attributes)
        for name, told in (("tags", context.tags), ("metadata", context.metadata)):
            if told and not found.attributes.get(name):
                found.attributes[name] = told
    for name, value in _picked(tree, plan.details).items():
        found.attributes.setdefault(name, restore_lists(value))
    if agent is not None:
        _complete(span, plan, agent, found)
    for convention, _ in plan.known:
        found.is_outermost |= any(span.attributes.get(mark) is True for mark in convention.outermost)
        found.trace_name = found.trace_name or to_text(span.attributes.get(convention.trace_name or ""))
    return found


def describe(span: OtelSpan, project: str) -> AgentSpan:
    """The agent span of any span, messages included."""
    plan = _plan(span)
    agent = _scalars(span, project, plan)
    _messages(span, plan, agent)
    return agent


def from_dump(project: str, stored: Json) -> AgentSpan:
    """The agent span of a call's parsed `otel_dump`, messages included; `project` is internal."""
    return describe(to_span(stored), project)


def is_request(stored: Json) -> bool:
    """True for a call's parsed `otel_dump` of one request to a model."""
    span = to_span(stored)
    plan = _plan(span)
    return bool(plan.known) and _scalars(span, "", plan).operation_name in MODEL_OPERATIONS


def is_about_agents(agent: AgentSpan) -> bool:
    """True for what the agents reads show: spans of models, agents, tools and conversations."""
    known = agent.operation_name or agent.agent_name or agent.conversation_id or agent.tool_name
    return bool(known or agent.request_model or agent.response_model)


def _plan(span: OtelSpan) -> _Plan:
    """The plan of a span; spans with the same attributes share it."""
    shape: tuple[Any, ...] = (span.scope, *span.attributes)
    if span.events:
        shape = (*shape, tuple(sorted({event.name for event in span.events} & _EVENTS)))
    found = _plans.get(shape)
    if found is None:
        found = _made(span)
        if len(shape) <= _MOST_KEYS and sum(map(len, shape)) <= _MOST_CHARACTERS:
            if len(_plans) >= _MOST_PLANS:
                _plans.clear()
            _plans[shape] = found
    return found


def _made(span: OtelSpan) -> _Plan:
    keys = span.attributes.keys()
    known = [one for one in CONVENTIONS if one.is_of(span)]
    mapped = frozenset({_SESSION, _ERROR}).union(*(one.keys | one.shared for one in known))
    prefixes = tuple(prefix for one in known for prefix in one.prefixes)
    filled = frozenset(name for one in known for names in one.fields.values() for name in names)
    about_answer = [key for key in keys if key.startswith(_ABOUT_ANSWER)]
    # Beside `output` such fields alone (VoltAgent's reason to finish) are no answer.
    has_answer = _ANSWER in keys or ("output" in keys and filled.issuperset(about_answer))
    has_prompt = any(key.startswith(_PROMPT) and key not in _PROMPT_NAMES for key in keys)
    beginnings = {".".join(path[:end]) for path in map(split_key, keys) for end in range(1, len(path) + 1)}

    def some(table: Mapping[str, tuple[str, ...]]) -> Paths:
        held = ((field, tuple(split_key(name) for name in names if may_hold(name))) for field, names in table.items())
        return tuple((field, paths) for field, paths in held if paths)

    def may_hold(name: str) -> bool:
        path = split_key(name)
        return name in beginnings or any(".".join(path[:end]) in keys for end in range(1, len(path)))

    return _Plan(
        tuple((one, select_rows(one.fields, keys)) for one in known),
        tuple(key for key in keys if key not in mapped and not key.startswith(prefixes)),
        some({name: (name,) for name in INPUTS if name != _PROMPT or has_prompt}),
        some({name: (name,) for name in OUTPUT if name != _ABOUT_ANSWER or not has_answer}),
        some(ATTRIBUTES),
        some(USAGE),
        some(OTHERS),
        select_context(known, keys),
        some({name: names for one in known for name, names in one.details.items()}),
        frozenset().union(*(one.roots for one in known)),
    )


def _picked(tree: Json, rows: Paths) -> Json:
    """The fields that the tree has anything for; of several paths the first that holds something counts."""
    found: Json = {}
    for name, paths in rows:
        for path in paths:
            if value := pick_path(tree, path):
                found[name] = value
                break
    return found


def _scalars(span: OtelSpan, project: str, plan: _Plan) -> AgentSpan:
    """The agent span with all but messages; attributes that no convention maps are its custom attributes."""
    into = AgentSpan(
        project=project,
        trace_id=span.trace_id,
        span_id=span.span_id,
        started_at=span.start // 1000,
        ended_at=span.end // 1000,
        parent_span_id=span.parent_id or None,
        span_name=span.name,
        span_kind=kind_name(span.kind),
        status_code=status_name(span.status_code),
        status_message=span.status_message or None,
    )
    for convention, rows in plan.known:
        fill(rows, span.attributes, into)
        if convention.derive is not None:
            convention.derive(span, into)
    # Without a whole, cached tokens are those of the request below (OpenHands).
    if _is_repeated(span, plan) or (into.input_tokens is None and into.output_tokens is None):
        for name in _TOKENS:
            setattr(into, name, None)
    offer(into, "conversation_id", to_text(span.attributes.get(_SESSION)))
    cached = (into.cache_read_input_tokens or 0) + (into.cache_creation_input_tokens or 0)
    if into.input_tokens is not None and cached > into.input_tokens:
        # More cached tokens than input tokens can only stand beside them.
        into.input_tokens += cached
    offer(into, "error_type", to_text(span.attributes.get(_ERROR)))
    if into.error_type is None and span.status_code == 2:
        for event in span.events:
            if event.name == "exception":
                into.error_type = to_text(event.attributes.get("exception.type"))
    if plan.custom:
        _custom(span, into, plan.custom)
    return into


def _is_repeated(span: OtelSpan, plan: _Plan) -> bool:
    """True where the span of a request reports the same tokens."""
    marks = (one.repeated for one, _ in plan.known if one.repeated is not None)
    return any(span.attributes.get(name) == value for name, value in marks)


def _custom(span: OtelSpan, into: AgentSpan, keys: Collection[str]) -> None:
    for key in keys:
        value = span.attributes[key]
        if isinstance(value, bool):
            into.custom_attrs_bool[key] = value
        elif isinstance(value, int):
            into.custom_attrs_int[key] = value
        elif isinstance(value, float):
            into.custom_attrs_float[key] = value
        else:
            into.custom_attrs_string[key] = as_text(value)


def _messages(span: OtelSpan, plan: _Plan, into: AgentSpan) -> None:
    """Messages, system instructions, tools with arguments and results, and reasoning."""
    for convention, _ in plan.known:
        if convention.tool is not None and into.operation_name == "execute_tool":
            for key, name in zip(convention.tool, ("tool_call_arguments", "tool_call_result"), strict=True):
                offer(into, name, to_json_text(convention.value_of(_value_at(span.attributes, key))))
        elif convention.messages is not None:
            convention.messages(span, into)
    for one in (*into.input_messages, *into.output_messages):
        for part in one["parts"]:
            if part.get("type") == "tool_call_response" and "response" in part:
                part["response"] = parse_json(part["response"])
    offer(into, "system_instructions", join_system_texts(into.input_messages))
    offer(into, "reasoning_content", join_thoughts(into.output_messages))


def _complete(span: OtelSpan, plan: _Plan, agent: AgentSpan, found: SpanReading) -> None:
    """Give the call what only the conventions know: kind and model, messages in, the answer out."""
    kind, model = KINDS.get(agent.operation_name or ""), agent.response_model or agent.request_model
    for name, value in (("kind", kind), ("model", model)):
        if value and (name == "model" or not found.attributes.get(name)):
            found.attributes[name] = value
    is_serialised = agent.operation_name == "chat" and any(
        is_serialised_request(value) for value in found.inputs.values()
    )
    if found.inputs and found.output is not None and not is_serialised:
        return
    _messages(span, plan, agent)
    if is_serialised and any(one["parts"] for one in agent.input_messages):
        # The span keeps what its library wrote of its own objects.
        found.inputs, found.inputs_from = {}, None
        if agent.output_messages:
            found.output, found.output_from = None, None
    is_tool = agent.operation_name == "execute_tool" or bool(agent.tool_name)
    if not found.inputs:
        if is_tool and agent.tool_call_arguments:
            arguments = _parsed(agent.tool_call_arguments)
            found.inputs = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        elif agent.input_messages:
            found.inputs = {"gen_ai.input.messages": agent.input_messages}
        elif (given := _step_value(span, plan, 0)) is not None:
            found.inputs = given if isinstance(given, dict) else {"input": given}
    if found.output is None:
        if is_tool and agent.tool_call_result:
            found.output = _parsed(agent.tool_call_result)
        elif agent.output_messages:
            found.output = {"gen_ai.output.messages": agent.output_messages}
        else:
            found.output = _step_value(span, plan, 1)
    if agent.system_instructions and not found.attributes.get("system"):
        found.attributes["system"] = agent.system_instructions


def _step_value(span: OtelSpan, plan: _Plan, place: int) -> Any:
    """What a step without messages was given (0) or gave (1), as far as a convention says where that stands."""
    pairs = ((one, pair) for one, _ in plan.known for pair in (one.tool, *one.steps) if pair is not None)
    told = ((one, _value_at(span.attributes, pair[place])) for one, pair in pairs)
    return next((one.value_of(value) for one, value in told if value is not None), None)


def _value_at(attributes: Json, key: str) -> Any:
    """The value of an attribute, or the subtree below a key that ends with a dot."""
    return nest_attributes(attributes, key) if key.endswith(".") else attributes.get(key)


def _unquoted(key: str, value: Any, tree: Json) -> Any:
    """A text or a number out of its JSON text, as some libraries write every value; plain texts stay as they are."""
    if not isinstance(value, str):
        return value
    if key in _JSON_TEXTS:
        return _parsed(value)
    is_plain = value[:1] != '"' or pick_path(tree, (key.split(".")[0], "mime_type")) == _PLAIN
    return value if is_plain else parse_json(value)


def _parsed(value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _usage(tree: Json, rows: Paths, agent: AgentSpan | None) -> Json:
    """What is known of the tokens, as an entry of `summary.usage`; empty for a span that reports none.

    `prompt_tokens` and `input_tokens` are two spellings of one count and are summed where they are priced, so a span
    that says the same count in both is stored with the first only; likewise for the answer's tokens. Cached tokens lie
    within the prompt's where the conventions say so for the library that reported them.
    """
    picked = _picked(tree, rows).items()
    found: Json = {name: count for name, value in picked if (count := _number(value)) is not None}
    for first, second in _SPELLINGS:
        if second in found and found.get(first) == found[second]:
            del found[second]
    if agent is not None:
        _complete_usage(found, agent)
    if "total_tokens" not in found:
        for given, came in _SUMMANDS:
            if given in found and came in found:
                found["total_tokens"] = found[given] + found[came]
                break
    return found


def _number(value: Any) -> int | None:
    """A count; None for anything else, and for what is below nothing."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else -1
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 else None


def _complete_usage(found: Json, agent: AgentSpan) -> None:
    """Add the counts that only the conventions know."""
    is_sum = agent.operation_name in _SUMS
    if is_sum and not found:
        return
    for name in ("cache_read_input_tokens", "cache_creation_input_tokens", "reasoning_tokens"):
        if (tokens := getattr(agent, name)) and name not in found:
            found[name] = tokens
    for (first, second), tokens in zip(_SPELLINGS, (agent.input_tokens, agent.output_tokens), strict=True):
        if tokens and not is_sum and first not in found and second not in found:
            found[second] = tokens
    held = [name for name in _SPELLINGS[0] if name in found]
    cached = found.get("cache_read_input_tokens", 0) + found.get("cache_creation_input_tokens", 0)
    if len(held) == 1 and agent.input_tokens and cached <= found[held[0]] < agent.input_tokens:
        # This library counts cached tokens beside the others. Where the price could not tell, they are added.
        found[held[0]] = agent.input_tokens
