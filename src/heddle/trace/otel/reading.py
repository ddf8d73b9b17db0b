"""A span's attributes read once: what its call and its agent span say.

The table of calls comes first (contract: trace-core, 12); where it finds nothing, what the conventions read fills in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from heddle.trace.otel.conventions import CONVENTIONS
from heddle.trace.otel.conventions.convention import Convention, Rows, as_text, fill, offer, present, text, told
from heddle.trace.otel.conventions.messages import system_texts, thoughts
from heddle.trace.otel.dump import kind_name, status_name, to_span
from heddle.trace.otel.expand import listed, parts, pick
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

INPUTS = (
    "ai.prompt",
    "gen_ai.prompt",
    "input.value",
    "mlflow.spanInputs",
    "gen_ai.input.messages",
    "pydantic_ai.all_messages",
    "traceloop.entity.input",
    "gcp.vertex.agent.tool_call_args",
    "gcp.vertex.agent.llm_request",
    "input",
    "inputs",
)
OUTPUT = (
    "ai.response",
    "gen_ai.completion",
    "output.value",
    "gen_ai.output.messages",
    "mlflow.spanOutputs",
    "final_result",
    "gen_ai.content.completion",
    "traceloop.entity.output",
    "gcp.vertex.agent.tool_response",
    "gcp.vertex.agent.llm_response",
    "output",
    "outputs",
)
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
_SESSION, _ERROR = "session.id", "error.type"
_EVENTS = frozenset().union(*(one.events for one in CONVENTIONS))
"""Span events by which a convention is known."""
_SPELLINGS = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_SUMMANDS = (
    ("prompt_tokens", "completion_tokens"),
    ("input_tokens", "output_tokens"),
    ("prompt_tokens", "output_tokens"),
    ("input_tokens", "completion_tokens"),
)
_SUMS = frozenset(("invoke_agent", "create_agent", "invoke_workflow"))
"""Operations whose tokens are those of the model calls below them, which report their own."""
_MOST_PLANS, _MOST_KEYS, _MOST_CHARACTERS = 2000, 200, 8000

Paths = tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
"""Fields or attributes, each with paths in the tree."""


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


class _Plan(NamedTuple):
    """Which rows of the tables can fill something in spans of one shape; `custom` are the attributes of none."""

    known: tuple[tuple[Convention, Rows], ...]
    custom: tuple[str, ...]
    inputs: Paths
    output: Paths
    attributes: Paths
    usage: Paths
    others: Paths


_plans: dict[tuple[Any, ...], _Plan] = {}


def read(span: OtelSpan, tree: Json, project: str) -> SpanReading:
    """The reading of a span; `tree` holds its attributes expanded, `project` is internal."""
    plan = _plan(span)
    agent = _scalars(span, project, plan) if plan.known else None
    found = SpanReading(
        agent, attributes={name: listed(value) for name, value in _picked(tree, plan.attributes).items()}
    )
    for key, value in _picked(tree, plan.inputs).items():
        value = listed(value)
        found.inputs = value if key in ("input", "inputs") and isinstance(value, dict) else {key: value}
        break
    for key, value in _picked(tree, plan.output).items():
        value = listed(value)
        found.output = value if key in ("output", "outputs") else {key: value}
        break
    found.usage = _usage(tree, plan.usage, agent)
    if not (found.attributes or found.inputs or found.output is not None or found.usage):
        found.attributes = {**tree}
    found.others = _picked(tree, plan.others)
    own = found.others.get("attributes")
    if isinstance(own, dict):
        found.attributes.update((key, listed(value)) for key, value in own.items())
    if agent is not None:
        _complete(span, plan, agent, found)
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
    beginnings = {".".join(path[:end]) for path in map(parts, keys) for end in range(1, len(path) + 1)}

    def some(table: Mapping[str, tuple[str, ...]]) -> Paths:
        held = ((field, tuple(parts(name) for name in names if may_hold(name))) for field, names in table.items())
        return tuple((field, paths) for field, paths in held if paths)

    def may_hold(name: str) -> bool:
        path = parts(name)
        return name in beginnings or any(".".join(path[:end]) in keys for end in range(1, len(path)))

    return _Plan(
        tuple((one, present(one.fields, keys)) for one in known),
        tuple(key for key in keys if key not in mapped and not key.startswith(prefixes)),
        some({name: (name,) for name in INPUTS}),
        some({name: (name,) for name in OUTPUT}),
        some(ATTRIBUTES),
        some(USAGE),
        some(OTHERS),
    )


def _picked(tree: Json, rows: Paths) -> Json:
    """The fields that the tree has anything for; of several paths the first that holds something counts."""
    found: Json = {}
    for name, paths in rows:
        for path in paths:
            if value := pick(tree, path):
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
    offer(into, "conversation_id", text(span.attributes.get(_SESSION)))
    cached = (into.cache_read_input_tokens or 0) + (into.cache_creation_input_tokens or 0)
    if into.input_tokens is not None and cached > into.input_tokens:
        # More cached tokens than input tokens can only stand beside them.
        into.input_tokens += cached
    offer(into, "error_type", text(span.attributes.get(_ERROR)))
    if into.error_type is None and span.status_code == 2:
        for event in span.events:
            if event.name == "exception":
                into.error_type = text(event.attributes.get("exception.type"))
    if plan.custom:
        _custom(span, into, plan.custom)
    return into


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
                offer(into, name, told(span.attributes.get(key)))
        elif convention.messages is not None:
            convention.messages(span, into)
    offer(into, "system_instructions", system_texts(into.input_messages))
    offer(into, "reasoning_content", thoughts(into.output_messages))


def _complete(span: OtelSpan, plan: _Plan, agent: AgentSpan, found: SpanReading) -> None:
    """Give the call what only the conventions know: kind and model, messages in, the answer out."""
    kind, model = KINDS.get(agent.operation_name or ""), agent.response_model or agent.request_model
    for name, value in (("kind", kind), ("model", model)):
        if value and not found.attributes.get(name):
            found.attributes[name] = value
    if found.inputs and found.output is not None:
        return
    _messages(span, plan, agent)
    is_tool = agent.operation_name == "execute_tool" or bool(agent.tool_name)
    if not found.inputs:
        if is_tool and agent.tool_call_arguments:
            arguments = _parsed(agent.tool_call_arguments)
            found.inputs = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        elif agent.input_messages:
            found.inputs = {"gen_ai.input.messages": agent.input_messages}
    if found.output is None:
        if is_tool and agent.tool_call_result:
            found.output = _parsed(agent.tool_call_result)
        elif agent.output_messages:
            found.output = {"gen_ai.output.messages": agent.output_messages}
    if agent.system_instructions and not found.attributes.get("system"):
        found.attributes["system"] = agent.system_instructions


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
