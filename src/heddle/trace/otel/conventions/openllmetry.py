"""OpenLLMetry (Traceloop): workflows and tasks, and the shape its model instrumentations had until 2025.

Its newer model spans follow the GenAI conventions. The older ones number their messages (`gen_ai.prompt.0.content`,
`gen_ai.completion.0.tool_calls.0.name`), tell the operation by `llm.request.type` and the tools by
`llm.request.functions.N`. `traceloop.span.kind`, `traceloop.entity.*` and `traceloop.association.properties.*` are
written by its decorators.

Tokens: inside, also for Anthropic, whose three counts the library adds up.
"""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    Convention,
    as_object,
    as_text,
    branch,
    objects,
    offer,
    offer_name,
    parsed,
    text,
    told,
)
from heddle.trace.otel.conventions.messages import joined, message, simple
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_KINDS = {"workflow": "invoke_workflow", "agent": "invoke_agent", "tool": "execute_tool"}
_TYPES = {"completion": "text_completion", "embedding": "embeddings"}
_PROPERTIES = "traceloop.association.properties."
_FIRST_ROLE = "gen_ai.prompt.0.role"
_INPUT, _OUTPUT = "traceloop.entity.input", "traceloop.entity.output"


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, the entity's name, the provider as the conventions spell it."""
    values = span.attributes
    offer(into, "operation_name", _operation(values))
    system = values.get("gen_ai.system")
    if isinstance(system, str) and system != system.lower():
        offer(into, "provider_name", system.lower())
    offer_name(into, text(values.get("traceloop.entity.name")))


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Numbered messages and functions, and what went into an entity and came out."""
    values = span.attributes
    offer(into, "input_messages", _numbered(values, "gen_ai.prompt.", "user"))
    offer(into, "output_messages", joined(_numbered(values, "gen_ai.completion.", "assistant")))
    if tools := objects(branch(values, "llm.request.functions.")):
        offer(into, "tool_definitions", as_text([{key: parsed(one[key]) for key in one} for one in tools]))
    given, came = values.get(_INPUT), values.get(_OUTPUT)
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", told(_bare(given)))
        offer(into, "tool_call_result", told(_bare(came)))
    else:
        offer(into, "input_messages", [simple("user", given)] if given else None)
        offer(into, "output_messages", [simple("assistant", came)] if came else None)


def _numbered(attributes: Json, prefix: str, role: str) -> list[Json]:
    """Messages that stand at numbered keys below a prefix, such as `gen_ai.prompt.0.content`."""
    return [message(one, role) for one in objects(branch(attributes, prefix))]


def _bare(value: Any) -> Any:
    """What a tool was given or gave: without the record that the LangChain callbacks keep it in."""
    record = as_object(value)
    if "input_str" in record:
        given = record.get("inputs")
        return record["input_str"] if given is None else given
    if record.keys() != {"output", "kwargs"}:
        return value
    came = record["output"]
    # A message of LangChain, as its own serialisation writes it.
    return came["kwargs"].get("content") if isinstance(came, dict) and isinstance(came.get("kwargs"), dict) else came


def _operation(values: Json) -> str | None:
    asked_for = text(values.get("llm.request.type"))
    if asked_for is None:
        return "chat" if _FIRST_ROLE in values else _KINDS.get(str(values.get("traceloop.span.kind")))
    # Anthropic's chats are called completions.
    return "chat" if _FIRST_ROLE in values and asked_for == "completion" else _TYPES.get(asked_for, asked_for)


CONVENTION = Convention(
    "openllmetry",
    {
        "conversation_id": tuple(_PROPERTIES + name for name in ("session_id", "thread_id", "conversation_id")),
        "finish_reasons": ("gen_ai.completion.0.finish_reason",),
    },
    more=(
        "traceloop.span.kind",
        "traceloop.entity.name",
        "llm.request.type",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.content",
        "gen_ai.completion.0.role",
        _FIRST_ROLE,
        _INPUT,
        _OUTPUT,
        "llm.usage.total_tokens",
        "gen_ai.usage.total_tokens",
    ),
    prefixes=("gen_ai.prompt.", "gen_ai.completion.", "llm.request.functions."),
    derive=_derive,
    messages=_messages,
)
