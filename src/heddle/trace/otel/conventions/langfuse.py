"""How the SDKs of Langfuse write spans."""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    OPERATIONS,
    PARAMETERS,
    Convention,
    fill_from,
    offer,
    offer_name,
    to_count,
    to_text,
)
from heddle.trace.otel.span import FAILED, OtelSpan, status_name
from heddle.wire.conversation.bodies import read_answer, read_request
from heddle.wire.conversation.values import as_list, as_object, as_text, objects, parse_json
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_BASE, _TRACE, _INTERNAL = "langfuse.observation.", "langfuse.trace.", "langfuse.internal."
_TYPE, _INPUT, _OUTPUT = _BASE + "type", _BASE + "input", _BASE + "output"
_MODEL, _USAGE, _SETTINGS = _BASE + "model.name", _BASE + "usage_details", _BASE + "model.parameters"
_LEVEL, _MESSAGE = _BASE + "level", _BASE + "status_message"
_SESSION, _CALL_ID = _BASE + "metadata.langfuse_session_id", _BASE + "metadata.tool_call_id"
"""What LangChain's handler tells as metadata."""
_CONVERSING = frozenset(("generation", "agent"))
"""Types of observations whose input and output are messages."""
_COUNTS = {
    "cache_read_input_tokens": ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens"),
    "cache_creation_input_tokens": ("input_cache_creation", "cache_creation_input_tokens"),
    "reasoning_tokens": ("output_reasoning_tokens", "output_reasoning"),
}
_NESTED = (
    ("prompt_tokens_details", "cached_tokens", "cache_read_input_tokens"),
    ("input_tokens_details", "cached_tokens", "cache_read_input_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The observation's type, settings, tokens and failure; its name is the tool's or the agent's."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(values.get(_TYPE))))
    fill_from(PARAMETERS, as_object(values.get(_SETTINGS)), into)
    _tokens(as_object(values.get(_USAGE)), into)
    offer_name(into, span.name)
    for field, key in (("conversation_id", _SESSION), ("tool_call_id", _CALL_ID)):
        offer(into, field, to_text(parse_json(values.get(key))))
    if values.get(_LEVEL) == "ERROR" and span.status_code != FAILED:
        into.status_code = status_name(FAILED)
        into.status_message = to_text(values.get(_MESSAGE))


def _tokens(usage: Json, into: AgentSpan) -> None:
    for details, name, field in _NESTED:
        offer(into, field, to_count(as_object(usage.get(details)).get(name)))
    counts = {key: found for key, value in usage.items() if (found := to_count(value)) is not None}
    given = [number for key, number in counts.items() if key.startswith(("input", "prompt_tokens", "cache"))]
    came = [number for key, number in counts.items() if key.startswith(("output", "completion_tokens"))]
    offer(into, "input_tokens", sum(given) if given else None)
    offer(into, "output_tokens", sum(came) if came else None)
    fill_from(_COUNTS, counts, into)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Input and output of a model or an agent as messages."""
    values = span.attributes
    if str(values.get(_TYPE, "generation")) not in _CONVERSING:
        return
    given, came = parse_json(values.get(_INPUT)), values.get(_OUTPUT)
    tools = as_list(as_object(given).get("tools"))
    if isinstance(given, list):
        # LangChain's handler tells the tools as messages.
        tools = [one["content"] for one in objects(given) if _is_definition(one)]
        given = [one for one in given if not _is_definition(one)]
    offer(into, "tool_definitions", as_text(tools) if tools else None)
    offer(into, "input_messages", read_request(given) if given else None)
    offer(into, "output_messages", read_answer(came) if came else None)


def _is_definition(message: Any) -> bool:
    told = as_object(message)
    return told.get("role") == "tool" and "function" in as_object(told.get("content"))


LANGFUSE = Convention(
    "langfuse",
    {"conversation_id": ("langfuse.session.id",), "request_model": (_MODEL,)},
    more=(_TYPE, _SETTINGS, _USAGE, _SESSION, _CALL_ID),
    shared=frozenset({"session.id"}),
    context={
        "user": ("langfuse.user.id", _BASE + "metadata.langfuse_user_id"),
        "tags": (_TRACE + "tags", _BASE + "metadata.langfuse_tags"),
        "metadata": (_BASE + "metadata", _BASE + "metadata.", _TRACE + "metadata", _TRACE + "metadata."),
    },
    details={
        "level": (_LEVEL,),
        "status_message": (_MESSAGE,),
        "model_parameters": (_SETTINGS,),
        "completion_start_time": (_BASE + "completion_start_time",),
        "cost_details": (_BASE + "cost_details",),
        "prompt": (_BASE + "prompt",),
        "trace_name": (_TRACE + "name",),
        "trace_input": (_TRACE + "input",),
        "trace_output": (_TRACE + "output",),
        "is_public": (_TRACE + "public",),
        "environment": ("langfuse.environment",),
        "release": ("langfuse.release",),
        "version": ("langfuse.version",),
        "experiment": ("langfuse.experiment",),
    },
    roots=frozenset({"langfuse"}),
    outermost=(_INTERNAL + "is_app_root", _INTERNAL + "as_root"),
    trace_name=_TRACE + "name",
    tool=(_INPUT, _OUTPUT),
    derive=_derive,
    messages=_messages,
)
"""The SDKs of Langfuse: `langfuse.observation.*` of a span, `langfuse.trace.*` of its trace on each span of it.

Input and output of a model or an agent are messages; of everything else they are the values that went in and out. A
span whose parent is not exported is marked as the outermost.

Tokens: `usage_details` is one count per kind, each priced by itself, so `input` has cached tokens beside: all counts
whose names begin with `input` are added up for the input, likewise for the output. Counts as OpenAI sends them, with
`prompt_tokens_details` nested, have cached tokens and thoughts inside.
"""
