"""How each family of instrumentation libraries writes models, messages, tools and tokens; one file per family.

Tokens are normalised: `input_tokens` has the cached tokens inside, and each family's file says what its libraries send.
Where a library sends more cached tokens than input tokens, they can only stand beside and are added.
"""

from functools import cache
from typing import NamedTuple

from heddle.trace.otel.conventions.adk import GoogleADK
from heddle.trace.otel.conventions.base import Convention
from heddle.trace.otel.conventions.genai import GenAI
from heddle.trace.otel.conventions.langfuse import Langfuse
from heddle.trace.otel.conventions.logfire import Logfire
from heddle.trace.otel.conventions.mlflow import MLflow
from heddle.trace.otel.conventions.openinference import OpenInference
from heddle.trace.otel.conventions.openllmetry import OpenLLMetry
from heddle.trace.otel.conventions.parts import system_texts, thoughts
from heddle.trace.otel.conventions.values import as_text, offer, text
from heddle.trace.otel.conventions.vercel import Vercel
from heddle.trace.otel.conventions.weave import Weave
from heddle.trace.otel.span import OtelSpan
from heddle.wire.spans import AgentSpan

CONVENTIONS: tuple[Convention, ...] = (
    Weave(),
    Vercel(),
    OpenLLMetry(),
    OpenInference(),
    Logfire(),
    MLflow(),
    GoogleADK(),
    Langfuse(),
    GenAI(),
)
"""In the order of asking: those with names of their own before the general one, whose names many of them write too."""

_SPAN_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES = ("UNSET", "OK", "ERROR")
_KINDS = {
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
_SESSION, _ERROR = "session.id", "error.type"
_MOST_READINGS, _MOST_KEYS, _MOST_CHARACTERS = 2000, 200, 8000


def recognised(span: OtelSpan) -> bool:
    """True when a convention knows the span."""
    return any(one.recognises(span) for one in CONVENTIONS)


def describe(span: OtelSpan, project: str) -> AgentSpan:
    """The span with every scalar that its conventions tell; attributes that none maps are its custom attributes."""
    return _describe(span, project, _reading(span))


def describe_known(span: OtelSpan, project: str) -> AgentSpan | None:
    """As `describe`, None when no convention knows the span."""
    reading = _reading(span)
    return _describe(span, project, reading) if reading.known else None


def _known(span: OtelSpan) -> tuple[Convention, ...]:
    return tuple([one for one in CONVENTIONS if one.recognises(span)])


class _Reading(NamedTuple):
    """How a span is read: the conventions that know it, and the attributes that none of them maps."""

    known: tuple[Convention, ...]
    custom: tuple[str, ...]


def _reading(span: OtelSpan) -> _Reading:
    """The reading of a span; spans with the same attributes share it, as long as no event may tell them apart."""
    shape = (span.scope, *span.attributes)
    found = _readings.get(shape)
    if found is None or span.events:
        known = _known(span)
        mapped, prefixes = _mapped(known)
        custom = [key for key in span.attributes if key not in mapped and not key.startswith(prefixes)]
        found = _Reading(known, tuple(custom))
        if not span.events and len(shape) <= _MOST_KEYS and sum(map(len, shape)) <= _MOST_CHARACTERS:
            if len(_readings) >= _MOST_READINGS:
                _readings.clear()
            _readings[shape] = found
    return found


_readings: dict[tuple[str, ...], _Reading] = {}


def _describe(span: OtelSpan, project: str, reading: _Reading) -> AgentSpan:
    into = AgentSpan(
        project=project,
        trace_id=span.trace_id,
        span_id=span.span_id,
        started_at=span.start // 1000,
        ended_at=span.end // 1000,
        parent_span_id=span.parent_id or None,
        span_name=span.name,
        span_kind=_SPAN_KINDS[span.kind] if 0 <= span.kind < len(_SPAN_KINDS) else "UNSPECIFIED",
        status_code=_STATUSES[span.status_code] if 0 <= span.status_code < len(_STATUSES) else "UNSET",
        status_message=span.status_message or None,
    )
    for convention in reading.known:
        convention.describe(span, into)
    if into.conversation_id is None:
        into.conversation_id = text(span.attributes.get(_SESSION))
    _count_cached_inside(into)
    _error(span, into)
    if reading.custom:
        _custom(span, into, reading.custom)
    return into


def messages(span: OtelSpan, into: AgentSpan) -> None:
    """Add messages, system instructions, tools with arguments and results, and reasoning to what `describe` gave."""
    for convention in _known(span):
        convention.messages(span, into)
    offer(into, "system_instructions", system_texts(into.input_messages))
    offer(into, "reasoning_content", thoughts(into.output_messages))


def kind_of(agent: AgentSpan) -> str | None:
    """A word for what the span is: llm, tool, agent, workflow, embedding, retriever, reranker; None when unknown."""
    return _KINDS.get(agent.operation_name or "")


def _count_cached_inside(into: AgentSpan) -> None:
    cached = (into.cache_read_input_tokens or 0) + (into.cache_creation_input_tokens or 0)
    if into.input_tokens is not None and cached > into.input_tokens:
        into.input_tokens += cached


def _error(span: OtelSpan, into: AgentSpan) -> None:
    if into.error_type is None:
        into.error_type = text(span.attributes.get(_ERROR))
    if into.error_type is None and span.status_code == 2:
        for event in span.events:
            if event.name == "exception":
                into.error_type = text(event.attributes.get("exception.type"))


@cache
def _mapped(known: tuple[Convention, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    keys = frozenset({_SESSION, _ERROR}).union(*(one.keys | one.shared for one in known))
    return keys, tuple(prefix for one in known for prefix in one.prefixes)


def _custom(span: OtelSpan, into: AgentSpan, keys: tuple[str, ...]) -> None:
    for key in keys:
        value = span.attributes[key]
        if isinstance(value, str):
            into.custom_attrs_string[key] = value
        elif isinstance(value, bool):
            into.custom_attrs_bool[key] = value
        elif isinstance(value, int):
            into.custom_attrs_int[key] = value
        elif isinstance(value, float):
            into.custom_attrs_float[key] = value
        else:
            into.custom_attrs_string[key] = as_text(value)
