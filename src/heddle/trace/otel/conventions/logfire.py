"""Logfire and pydantic-ai, all versions of its format.

Version 1 writes messages as event records (`events`, on the agent's span `all_messages_events`), a tool's arguments as
`tool_arguments` and `tool_response`; later ones the GenAI attributes, and `pydantic_ai.all_messages` on the agent's
span. The messages that end an agent's span, after the last that is not the assistant's, are its answer.

Tokens: as the GenAI conventions have them, cached tokens inside. The agent's span of older versions repeats the sum of
the requests below it.
"""

from heddle.trace.otel.conventions.convention import (
    Convention,
    as_list,
    as_object,
    as_text,
    objects,
    offer,
    parsed,
    told,
)
from heddle.trace.otel.conventions.genai import read_events
from heddle.trace.otel.conventions.messages import messages_of, simple
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_ALL = ("pydantic_ai.all_messages", "all_messages_events")
_TOOL = (("tool_arguments", "tool_call_arguments"), ("tool_response", "tool_call_result"))
_RUN = frozenset((*_ALL, "final_result"))
_PARAMETERS = "model_request_parameters"


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The agent's run and the tool's, where no operation is named."""
    values = span.attributes
    if "gen_ai.operation.name" not in values:
        if "tool_arguments" in values or span.name == "running tool":
            offer(into, "operation_name", "execute_tool")
        elif not _RUN.isdisjoint(values) or span.name == "agent run":
            offer(into, "operation_name", "invoke_agent")


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Event records, the messages of a whole run, tools."""
    values = span.attributes
    for key, field in _TOOL:
        offer(into, field, told(values.get(key)))
    if (events := objects(parsed(values.get("events")))) and "event.name" in events[0]:
        read_events(events, into)
    for key in _ALL:
        if key in values:
            _whole_run(messages_of(values[key], "user"), into)
    if values.get("final_result") is not None:
        offer(into, "output_messages", [simple("assistant", values["final_result"])])
    if "gen_ai.tool.definitions" not in values:
        tools = as_list(as_object(values.get(_PARAMETERS)).get("function_tools"))
        offer(into, "tool_definitions", as_text(tools) if tools else None)


def _whole_run(told: list[Json], into: AgentSpan) -> None:
    end = len(told)
    while end and told[end - 1]["role"] == "assistant":
        end -= 1
    offer(into, "input_messages", told[:end])
    offer(into, "output_messages", told[end:])


CONVENTION = Convention(
    "logfire",
    {"agent_name": ("agent_name",), "request_model": ("model_name",)},
    more=(*_RUN, "logfire.json_schema", "logfire.metrics", "events", _PARAMETERS, "tool_arguments", "tool_response"),
    # `agent_name` and `events` alone could be anybody's.
    marks=_RUN | {"logfire.msg", "logfire.span_type", "logfire.msg_template"},
    scopes=("pydantic-ai", "logfire"),
    derive=_derive,
    messages=_messages,
)
