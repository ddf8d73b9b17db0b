"""What the conventions know of a span where the table of the contract finds nothing."""

from typing import TYPE_CHECKING, Any

import orjson

from heddle.trace.otel import conventions
from heddle.trace.otel.span import OtelEvent, OtelSpan
from heddle.wire.spans import AgentSpan

if TYPE_CHECKING:
    from heddle.trace.otel.call import Fields

EXCEPTION_EVENT = "exception"
_TOOL = "execute_tool"


def fields(span: OtelSpan, agent: AgentSpan, found: "Fields") -> None:
    """Fill kind and model, messages in, the answer out; what is there stays."""
    for name, value in (("kind", conventions.kind_of(agent)), ("model", agent.response_model or agent.request_model)):
        if value and not found.attributes.get(name):
            found.attributes[name] = value
    if not found.inputs or found.output is None:
        conventions.messages(span, agent)
        _messages(agent, found)


def _messages(agent: AgentSpan, found: "Fields") -> None:
    is_tool = agent.operation_name == _TOOL or bool(agent.tool_name)
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


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def exception(span: OtelSpan) -> str:
    """Why a span failed: its status message, else what its exception event says; empty when neither says anything."""
    if span.status_message:
        return span.status_message
    for event in span.events:
        if event.name == EXCEPTION_EVENT and (text := _told(event)):
            return text
    kind = span.attributes.get("error.type")
    return kind if isinstance(kind, str) else ""


def _told(event: OtelEvent) -> str:
    """Type and message of an exception event, then its stack trace."""
    kind, message, stack = (event.attributes.get(f"exception.{name}") for name in ("type", "message", "stacktrace"))
    head = ": ".join(str(part) for part in (kind, message) if part)
    return "\n".join(str(part) for part in (head, stack) if part)
