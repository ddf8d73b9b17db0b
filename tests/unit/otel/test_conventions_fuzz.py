"""Whatever an exporter writes into attributes that conventions read, nothing breaks and the result can be stored."""

from dataclasses import asdict
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.trace.otel import conventions
from heddle.trace.otel.reading import read
from heddle.trace.otel.span import OtelSpan, expand
from tests.support.otel import RECORDINGS, event_of, recorded, seen, span_of
from tests.support.selection import examples

_INNER = [
    "0.role",
    "0.content",
    "0.type",
    "0.tool_calls.0.name",
    "0.message.role",
    "0.message.contents.0.message_content.type",
    "0.message.tool_calls.0.tool_call.function.name",
    "0.tool.json_schema",
    "0.embedding.text",
    "0.document.content",
    "0",
    "1",
    "x.y",
    "00",
    "9" * 5000,
    "a." * 3000,
]
NAMES = sorted(
    set().union(*(one.keys | one.shared for one in conventions.CONVENTIONS))
    | {prefix + tail for one in conventions.CONVENTIONS for prefix in one.prefixes for tail in _INNER}
    | {f"braintrust.{name}.{tail}" for name in ("metadata", "metrics", "span_attributes") for tail in _INNER}
)
EVENTS = ["gen_ai.user.message", "gen_ai.choice", "gen_ai.content.prompt", "gen_ai.tool.message", "exception"]
EVENTS += ["gen_ai.client.inference.operation.details", "LLMChatStartEvent", "LLMChatEndEvent"]
EVENT_NAMES = [
    f"{name}.{tail}" for name in ("model_dict", "response", "additional_kwargs", "message") for tail in _INNER
]
EVENT_NAMES += ["model_dict", "additional_kwargs.tools", "response.message.blocks", "response.raw.usage"]
KEYS = [
    "role",
    "content",
    "parts",
    "type",
    "text",
    "name",
    "id",
    "tool_calls",
    "function",
    "arguments",
    "messages",
    "input",
    "output",
    "choices",
    "message",
    "prompt",
    "response",
    "result",
    "tool_call_id",
    "finish_reason",
    "event.name",
    "system",
    "contents",
    "config",
    "tools",
    "usage_metadata",
    "function_call",
    "summary",
    "thinking",
    "value",
    "openai",
    "anthropic",
    "cachedPromptTokens",
    "json_schema",
    "toolCallId",
    "candidates_token_count",
    "replies",
    "last_message",
    "meta",
    "usage",
    "tool_call_result",
    "origin",
    "toolRequest",
    "toolResponse",
    "media",
    "reasoning",
    "totalTokens",
    "raw",
    "blocks",
    "additional_kwargs",
    "type.name",
]
WORDS = [
    "", "user", "tool", "assistant", "thinking", "text", "tool_use", "tool_result", "reasoning", "[", "{", "[{", "null",
    '"a"', "12", "-1", "1e400", "nan", "AGENT", "LLM", "tool", '[{"type": 1}]', '{"role": null}', "[[[1]]]",
    "ai.toolCall", "gen_ai.choice", "message", "system", "model", "llm", "agent", "OpenAIChatGenerator", "chat_client",
    '[{"role": "system", "content": [{"type": "text"}]}]', '[{"content": [{"type": "reasoning", "content": 1}]}]',
]  # fmt: skip
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=10,
)
values = st.one_of(trees, trees.map(lambda value: orjson.dumps(value).decode()))
attributes = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)
events = st.lists(
    st.builds(
        event_of,
        st.sampled_from(EVENTS),
        st.dictionaries(
            st.sampled_from([*KEYS, *EVENT_NAMES, "message.content", "exception.type", *NAMES]), values, max_size=4
        ),
    ),
    max_size=2,
)
spans = st.builds(
    span_of,
    attributes,
    st.sampled_from(
        ["step", "agent run", "ai.toolCall x", "generate", "haystack.agent.run", "haystack.agent.step.llm"]
    ),
    st.sampled_from(["", "logfire", "braintrust", "@voltagent/core", "org.springframework.ai"]),
    events,
)


@settings(max_examples=examples(150), deadline=None)
@given(spans)
def test_any_value_of_any_attribute_gives_an_agent_span_in_form(span: OtelSpan) -> None:
    read(span, expand(span.attributes)[0], "project")
    agent = seen(span)
    orjson.dumps(asdict(agent))
    for one in (*agent.input_messages, *agent.output_messages):
        assert isinstance(one["role"], str)
        assert all(isinstance(part, dict) for part in one["parts"])
        for part in one["parts"]:
            assert isinstance(part.get("type"), str | None)
            if part.get("type") in ("text", "reasoning"):
                assert isinstance(part["content"], str)
    for field in ("operation_name", "provider_name", "request_model", "conversation_id", "tool_call_arguments"):
        assert isinstance(getattr(agent, field), str | None)
    for field in ("input_tokens", "output_tokens", "cache_read_input_tokens", "request_max_tokens", "server_port"):
        assert isinstance(getattr(agent, field), int | None)
    for listed in (agent.finish_reasons, agent.system_instructions, agent.content_refs, agent.request_stop_sequences):
        assert all(isinstance(item, str) for item in listed)


@pytest.mark.parametrize("name", RECORDINGS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_recorded_span_with_some_values_exchanged_breaks_nothing(name: str, data: Any) -> None:
    span = data.draw(st.sampled_from(recorded(name)))
    for key in data.draw(st.lists(st.sampled_from(sorted(span.attributes) or ["x"]), max_size=3)):
        span.attributes[key] = data.draw(values)
    orjson.dumps(asdict(seen(span)))
