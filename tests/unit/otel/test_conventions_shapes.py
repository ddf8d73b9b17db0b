"""Shapes of the conventions that no recording has: older ones, other providers, other kinds of spans."""

from typing import Any

import orjson
import pytest

from heddle.trace.otel.conventions.convention import nest_attributes
from heddle.trace.otel.reading import KINDS
from heddle.wire.conversation.call import of_call
from heddle.wire.spans import AgentSpan
from tests.support.otel import event_of, seen, span_of

Json = dict[str, Any]
HELLO = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
HI = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}]}]
HELLO_OF_AI = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
CALL = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}


def text(value: Any) -> str:
    """JSON text."""
    return orjson.dumps(value).decode()


def of(attributes: Json, **more: Any) -> AgentSpan:
    """What is seen of a span with these attributes."""
    return seen(span_of(attributes, **more))


@pytest.mark.parametrize("encode", [text, lambda value: value], ids=["as JSON text", "structured"])
def test_genai_messages_in_either_encoding(encode: Any) -> None:
    agent = of(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": encode(HELLO),
            "gen_ai.output.messages": encode([{"role": "assistant", "parts": [CALL], "finish_reason": "tool_call"}]),
            "gen_ai.system_instructions": encode([{"type": "text", "content": "Be brief."}]),
            "gen_ai.tool.definitions": encode([{"name": "add"}]),
        }
    )
    assert agent.input_messages == HELLO
    assert agent.output_messages == [{"role": "assistant", "parts": [CALL], "finish_reason": "tool_call"}]
    assert agent.system_instructions == ["Be brief."]
    assert agent.tool_definitions == '[{"name":"add"}]'


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [
        (text([{"role": "user", "content": "hello"}]), text([{"role": "assistant", "content": "hi"}])),
        ("hello", "hi"),
        (text({"role": "user", "content": [{"type": "text", "text": "hello"}]}), text({"content": "hi"})),
    ],
)
def test_genai_of_2024_with_prompt_and_completion_in_one_attribute(prompt: str, completion: str) -> None:
    agent = of({"gen_ai.system": "openai", "gen_ai.prompt": prompt, "gen_ai.completion": completion})
    assert (agent.input_messages, agent.output_messages) == (HELLO, HI)
    assert agent.provider_name == "openai"


def test_genai_messages_as_events_of_the_span() -> None:
    choice = {"index": 0, "finish_reason": "tool_calls", "message": text({"role": "assistant", "content": "hi"})}
    function = {"name": "add", "arguments": '{"a": 1}'}
    events = [
        event_of("gen_ai.system.message", {"content": "Be brief."}),
        event_of("gen_ai.user.message", {"content": "hello"}),
        event_of("gen_ai.assistant.message", {"tool_calls": text([{"id": "c1", "function": function}])}),
        event_of("gen_ai.tool.message", {"id": "c1", "content": "2"}),
        event_of("gen_ai.choice", choice),
    ]
    agent = of({}, events=events)
    assert agent.operation_name == "chat"
    assert agent.system_instructions == ["Be brief."]
    assert agent.input_messages[1:] == [
        *HELLO,
        {"role": "assistant", "parts": [CALL]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}]},
    ]
    assert agent.output_messages == [{**HI[0], "finish_reason": "tool_calls"}]


def test_genai_content_events_and_the_event_with_all_details() -> None:
    contents = [
        event_of("gen_ai.content.prompt", {"gen_ai.prompt": text([{"role": "user", "content": "hello"}])}),
        event_of("gen_ai.content.completion", {"gen_ai.completion": text([{"role": "assistant", "content": "hi"}])}),
    ]
    details = {
        "gen_ai.input.messages": text(HELLO),
        "gen_ai.output.messages": text(HI),
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 3,
    }
    for events in (contents, [event_of("gen_ai.client.inference.operation.details", details)]):
        agent = of({"gen_ai.operation.name": "chat"}, events=events)
        assert (agent.input_messages, agent.output_messages) == (HELLO, HI)
    assert (agent.request_model, agent.input_tokens) == ("m", 3)


def test_a_genai_tool_span_and_its_fields() -> None:
    agent = of(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "add",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": "c1",
            "gen_ai.tool.description": "Adds.",
            "gen_ai.tool.call.arguments": {"a": 1},
            "gen_ai.tool.call.result": '{"sum":  2}',
            "gen_ai.agent.name": "clerk",
            "gen_ai.agent.id": "a1",
            "gen_ai.agent.version": "3",
            "gen_ai.agent.description": "Counts.",
        }
    )
    assert (agent.tool_name, agent.tool_type, agent.tool_call_id) == ("add", "function", "c1")
    assert (agent.tool_call_arguments, agent.tool_call_result) == ('{"a":1}', '{"sum":2}')
    assert (agent.agent_name, agent.agent_id, agent.agent_version) == ("clerk", "a1", "3")
    assert (agent.tool_description, agent.agent_description) == ("Adds.", "Counts.")
    assert KINDS.get(agent.operation_name or "") == "tool"


@pytest.mark.parametrize(
    ("reported", "stored"),
    [
        ({"input_tokens": 100, "cache_read.input_tokens": 40}, (100, 40, None)),
        ({"input_tokens": 100, "cache_read_input_tokens": 100}, (100, 100, None)),
        # More cached tokens than input tokens: they stand beside.
        ({"input_tokens": 20, "cache_read.input_tokens": 64, "cache_write.input_tokens": 16}, (100, 64, 16)),
        ({"prompt_tokens": "7", "cache_read.input_tokens": 0}, (7, 0, None)),
        ({"input_tokens": -1, "prompt_tokens": 4}, (4, None, None)),
        ({"input_tokens": "many"}, (None, None, None)),
    ],
)
def test_cached_tokens_are_counted_inside_the_input(reported: Json, stored: tuple[Any, ...]) -> None:
    agent = of({f"gen_ai.usage.{name}": count for name, count in reported.items()})
    assert (agent.input_tokens, agent.cache_read_input_tokens, agent.cache_creation_input_tokens) == stored


def test_vercel_with_anthropic_reports_cached_tokens_beside() -> None:
    agent = of(
        {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.model.provider": "anthropic.messages",
            "ai.usage.promptTokens": 70,
            "ai.usage.completionTokens": 30,
            "ai.response.providerMetadata": text(
                {"anthropic": {"cacheReadInputTokens": 64, "cacheCreationInputTokens": 16}}
            ),
        }
    )
    assert (agent.provider_name, agent.input_tokens, agent.output_tokens) == ("anthropic", 150, 30)
    assert (agent.cache_read_input_tokens, agent.cache_creation_input_tokens) == (64, 16)


def test_vercel_objects_and_reasoning_are_the_answer() -> None:
    agent = of(
        {
            "ai.operationId": "ai.generateObject.doGenerate",
            "ai.prompt.messages": text([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]),
            "ai.response.reasoning": "Think.",
            "ai.response.object": text({"a": 1}),
        }
    )
    assert agent.input_messages == HELLO
    assert agent.output_messages == [
        {
            "role": "assistant",
            "parts": [{"type": "reasoning", "content": "Think."}, {"type": "text", "content": '{"a":1}'}],
        }
    ]
    assert agent.reasoning_content == "Think."


@pytest.mark.parametrize(
    ("input", "output", "arguments", "result"),
    [
        ({"args": [], "kwargs": {"city": "Paris"}}, "18 degrees", '{"city":"Paris"}', "18 degrees"),
        ({"args": ["Paris"], "kwargs": {}}, {"output": "18", "kwargs": {}}, "Paris", "18"),
        ({"args": [1], "kwargs": {"b": 2}}, 3, '{"args":[1],"kwargs":{"b":2}}', "3"),
    ],
)
def test_tools_of_traceloop_have_the_arguments_of_their_function(
    input: Json, output: Any, arguments: str, result: str
) -> None:
    entity = {"traceloop.entity.input": text(input), "traceloop.entity.output": text(output)}
    agent = of({"traceloop.span.kind": "tool", "traceloop.entity.name": "get_weather", **entity})
    assert (agent.tool_name, agent.tool_call_arguments, agent.tool_call_result) == ("get_weather", arguments, result)


def test_results_of_autogen_stand_beside_their_message() -> None:
    result = {"name": "add", "content": "3", "call_id": "c1", "is_error": False}
    values = {f"llm.input_messages.0.function.0.{name}": value for name, value in result.items()}
    agent = of({"openinference.span.kind": "LLM", "llm.input_messages.0.message.role": "function", **values})
    assert agent.input_messages == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "3"}]}
    ]


def test_runs_of_google_adk_say_what_was_asked_and_answered() -> None:
    """OpenInference has the arguments of the runner and its last event."""
    asked = {"user_id": "ann", "invocation_id": None, "new_message": {"parts": [{"text": "hello"}], "role": "user"}}
    event = {"content": {"parts": [{"text": "hi"}], "role": "model"}, "finish_reason": "STOP", "author": "clerk"}
    agent = of({"openinference.span.kind": "CHAIN", "input.value": text(asked), "output.value": text(event)})
    assert agent.input_messages == HELLO
    assert agent.output_messages == [{**HI[0], "finish_reason": "STOP"}]
    found = of_call({"input.value": asked}, {"output.value": event})
    assert [message["parts"] for message in found.messages] == [HELLO[0]["parts"]]
    assert [message["parts"] for message in found.choices[0].messages] == [HI[0]["parts"]]


def test_messages_of_a_model_are_read_before_its_step() -> None:
    """OpenLLMetry's spans of LlamaIndex's models are steps, too, whose input and output are LlamaIndex's objects."""
    step = {"traceloop.span.kind": "task", "traceloop.entity.input": "{}", "traceloop.entity.output": '{"raw": 1}'}
    told = {"gen_ai.input.messages": text(HELLO), "gen_ai.output.messages": text(HI)}
    agent = of({**step, **told, "gen_ai.operation.name": "chat"})
    assert (agent.operation_name, agent.input_messages, agent.output_messages) == ("chat", HELLO, HI)


def test_a_step_that_calls_a_tool_is_one() -> None:
    """OpenLLMetry's span of LlamaIndex's step, which is told by the tool's name."""
    step = {"traceloop.span.kind": "task", "traceloop.entity.name": "Agent.task"}
    agent = of(
        {
            **step,
            "traceloop.entity.output": '{"tool_output": "18"}',
            "tool.name": "get_weather",
            "tool.arguments": '{"city": "Paris"}',
        }
    )
    assert (agent.operation_name, agent.tool_name) == ("execute_tool", "get_weather")
    assert orjson.loads(agent.tool_call_arguments or "") == {"city": "Paris"}
    assert orjson.loads(agent.tool_call_result or "") == {"tool_output": "18"}


def test_agents_of_traceloop_say_what_their_function_was_given_and_gave() -> None:
    entity = {"traceloop.entity.input": '{"args":["hello"],"kwargs":{}}', "traceloop.entity.output": '"hi"'}
    agent = of({"traceloop.span.kind": "agent", "traceloop.entity.name": "clerk", **entity})
    assert (agent.agent_name, agent.input_messages, agent.output_messages) == ("clerk", HELLO, HI)


def test_ax_tells_tokens_in_an_event_and_a_tool_by_its_name() -> None:
    usage = event_of("gen_ai.usage", {"gen_ai.usage.input_tokens": 56, "gen_ai.usage.output_tokens": 30})
    agent = seen(span_of({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, events=[usage]))
    assert (agent.input_tokens, agent.output_tokens) == (56, 30)
    tool = seen(span_of({"tool.name": "add"}, events=[event_of("gen_ai.tool.message", {"name": "add"})]))
    assert (tool.operation_name, tool.tool_name) == ("execute_tool", "add")


def test_a_function_of_traceloop_without_arguments_was_asked_nothing() -> None:
    entity = {"traceloop.entity.input": '{"args":[],"kwargs":{}}', "traceloop.entity.output": '"hi"'}
    agent = of({"traceloop.span.kind": "workflow", "traceloop.entity.name": "clerk", **entity})
    assert (agent.input_messages, agent.output_messages) == ([], HI)


@pytest.mark.parametrize("kind", ["agent_run", "model_generation", "model_step"])
def test_mastra_tells_what_agents_and_their_turns_said(kind: str) -> None:
    asked: Any = {"agent_run": "hello", "model_step": HELLO_OF_AI}.get(kind, {"messages": HELLO_OF_AI})
    answered = {"text": "hi", "files": [], "toolCalls": [{"toolCallId": "c1", "toolName": "add", "args": {"a": 1}}]}
    agent = of(
        {
            "gen_ai.operation.name": {"agent_run": "invoke_agent", "model_step": "agent_step"}.get(kind, kind),
            "mastra.span.type": kind,
            f"mastra.{kind}.input": asked if isinstance(asked, str) else text(asked),
            f"mastra.{kind}.output": text(answered),
            "mastra.metadata.sessionId": "s1",
        }
    )
    assert agent.input_messages == HELLO
    assert agent.output_messages == [{"role": "assistant", "parts": [*HI[0]["parts"], CALL]}]
    assert agent.operation_name == ("invoke_agent" if kind == "agent_run" else "agent_step")
    assert agent.conversation_id == "s1"


@pytest.mark.parametrize(
    ("kind", "operation", "shown"),
    [
        ("TOOL", "execute_tool", "tool"),
        ("AGENT", "invoke_agent", "agent"),
        ("CHAIN", "invoke_workflow", "workflow"),
        ("RETRIEVER", "retrieval", "retriever"),
        ("RERANKER", "rerank", "reranker"),
        ("GUARDRAIL", "guardrail", "guardrail"),
        ("EVALUATOR", "evaluator", "evaluator"),
        ("UNKNOWN", "unknown", None),
    ],
)
def test_kinds_of_openinference(kind: str, operation: str, shown: str | None) -> None:
    values = {"openinference.span.kind": kind, "input.value": "hello", "output.value": "hi", "session.id": "s1"}
    agent = of({**values, "tool.name": "add", "agent.name": "clerk"})
    assert (agent.operation_name, agent.conversation_id) == (operation, "s1")
    assert KINDS.get(agent.operation_name or "") == shown
    if kind == "TOOL":
        assert (agent.tool_name, agent.tool_call_arguments, agent.tool_call_result) == ("add", "hello", "hi")
    else:
        assert (agent.input_messages, agent.output_messages) == (HELLO, HI)


def test_the_end_of_a_graph_is_no_message_of_openinference() -> None:
    state = text({"messages": [{"type": "human", "content": "Hi"}]})
    found = of({"openinference.span.kind": "CHAIN", "input.value": state, "output.value": "__end__"})
    assert (len(found.input_messages), found.output_messages) == (1, [])


def test_documents_prompts_and_images_of_openinference() -> None:
    found = of(
        {
            "openinference.span.kind": "RETRIEVER",
            "input.value": "hello",
            "retrieval.documents.0.document.content": "one",
            "retrieval.documents.0.document.score": 0.5,
            "retrieval.documents.1.document.content": "two",
        }
    )
    documents = [{"type": "text", "content": "one", "score": 0.5}, {"type": "text", "content": "two"}]
    assert found.output_messages == [{"role": "tool", "parts": documents}]
    completion = of(
        {"llm.prompts.0.prompt.text": "hello", "llm.choices.0.completion.text": "hi", "llm.model_name": "m"}
    )
    assert (completion.input_messages, completion.output_messages) == (HELLO, HI)
    part = "llm.input_messages.0.message.contents.0."
    image = of(
        {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            part + "message_content.type": "image",
            part + "message_content.image.image.url": "https://example.org/a.png",
        }
    )
    assert image.input_messages[0]["parts"] == [
        {"type": "uri", "modality": "image", "uri": "https://example.org/a.png"}
    ]


@pytest.mark.parametrize(
    ("kind", "operation"), [("workflow", "invoke_workflow"), ("agent", "invoke_agent"), ("tool", "execute_tool")]
)
def test_decorated_functions_of_openllmetry(kind: str, operation: str) -> None:
    agent = of(
        {
            "traceloop.span.kind": kind,
            "traceloop.entity.name": "add",
            "traceloop.entity.input": '{"args": [1]}',
            "traceloop.entity.output": "2",
            "traceloop.association.properties.session_id": "s1",
        }
    )
    assert (agent.operation_name, agent.conversation_id) == (operation, "s1")
    if kind == "tool":
        assert (agent.tool_name, agent.tool_call_arguments, agent.tool_call_result) == ("add", '{"args":[1]}', "2")
    else:
        assert agent.input_messages == [{"role": "user", "parts": [{"type": "text", "content": '{"args": [1]}'}]}]
        assert agent.agent_name == ("add" if kind == "agent" else None)


def test_requests_and_tools_of_googles_adk() -> None:
    call = {"function_call": {"id": "c1", "name": "add", "args": {"a": 1}}}
    came = {"function_response": {"id": "c1", "name": "add", "response": {"sum": 2}}}
    request = {
        "model": "gemini-3",
        "config": {"system_instruction": "Be brief.", "temperature": 0.5, "tools": [{"name": "add"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hello"}]},
            {"role": "model", "parts": [call]},
            {"role": "user", "parts": [came]},
        ],
    }
    usage = {
        "prompt_token_count": 10,
        "cached_content_token_count": 4,
        "candidates_token_count": 5,
        "thoughts_token_count": 2,
    }
    response = {"content": {"role": "model", "parts": [{"text": "hi"}]}, "usage_metadata": usage}
    base = {"gen_ai.system": "gcp.vertex.agent", "gcp.vertex.agent.session_id": "s1"}
    agent = of({**base, "gcp.vertex.agent.llm_request": text(request), "gcp.vertex.agent.llm_response": text(response)})
    result = {"type": "tool_call_response", "id": "c1", "response": {"sum": 2}}
    assert agent.input_messages == [
        *HELLO,
        {"role": "assistant", "parts": [CALL]},
        {"role": "tool", "parts": [result]},
    ]
    assert (agent.output_messages, agent.system_instructions) == (HI, ["Be brief."])
    assert (agent.operation_name, agent.request_model, agent.conversation_id) == ("chat", "gemini-3", "s1")
    counts = (agent.input_tokens, agent.cache_read_input_tokens, agent.output_tokens, agent.reasoning_tokens)
    assert counts == (10, 4, 7, 2)
    tool = of({**base, "gcp.vertex.agent.tool_call_args": '{"a": 1}', "gcp.vertex.agent.tool_response": '{"sum": 2}'})
    assert (tool.operation_name, tool.tool_call_arguments, tool.tool_call_result) == (
        "execute_tool",
        '{"a":1}',
        '{"sum":2}',
    )


def test_tools_of_langchain_through_openllmetry() -> None:
    """The record that LangChain's callbacks keep around arguments and results is taken off."""
    given = {
        "input_str": "{'a': 1}",
        "tags": ["x"],
        "metadata": {},
        "inputs": {"a": 1},
        "kwargs": {"tool_call_id": "c"},
    }
    message = {"lc": 1, "type": "constructor", "id": ["ToolMessage"], "kwargs": {"content": "2", "type": "tool"}}
    base = {"traceloop.span.kind": "tool", "traceloop.entity.name": "sum", "gen_ai.operation.name": "execute_tool"}
    wrapped = {
        "traceloop.entity.input": text(given),
        "traceloop.entity.output": text({"output": message, "kwargs": {}}),
    }
    tool = of({**base, **wrapped, "gen_ai.tool.call.arguments": text(given)})
    assert (tool.tool_call_arguments, tool.tool_call_result) == ('{"a":1}', "2")
    older = of({**base, "traceloop.entity.input": text({"input_str": "7"}), "traceloop.entity.output": '{"output": 8}'})
    assert (older.tool_call_arguments, older.tool_call_result) == ("7", '{"output":8}')


def test_an_answer_of_an_unknown_role() -> None:
    """OpenLLMetry names no role for what LangChain streamed."""
    parts = [{"type": "text", "content": "hi"}]
    assert of({"gen_ai.output.messages": text([{"role": "unknown", "parts": parts}])}).output_messages == HI


def test_events_of_strands_with_blocks_of_converse() -> None:
    """Contents are JSON text of blocks whose only key says what they are; a tool's span tells its call in messages."""
    base = {"gen_ai.system": "strands-agents"}
    called = text([{"toolUse": {"toolUseId": "c1", "name": "add", "input": {"a": 1}}}])
    came = text([{"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "2"}]}}])
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}}
    events = [
        event_of("gen_ai.system.message", {"content": text([{"text": "Be brief."}])}),
        event_of("gen_ai.user.message", {"content": text([{"text": "hello"}])}),
        event_of("gen_ai.assistant.message", {"content": called}),
        event_of("gen_ai.tool.message", {"content": came}),
        event_of("gen_ai.choice", {"message": text([thought, {"text": "hi"}]), "finish_reason": "end_turn"}),
    ]
    agent = of({**base, "gen_ai.operation.name": "chat"}, events=events)
    assert agent.system_instructions == ["Be brief."]
    result = {"type": "tool_call_response", "id": "c1", "response": [{"text": "2"}]}
    assert agent.input_messages[1:] == [
        *HELLO,
        {"role": "assistant", "parts": [CALL]},
        {"role": "tool", "parts": [result]},
    ]
    assert agent.output_messages[0]["parts"] == [{"type": "reasoning", "content": "hm"}, *HI[0]["parts"]]
    events = [
        event_of("gen_ai.tool.message", {"role": "tool", "content": '{"a": 1}', "id": "c1"}),
        event_of("gen_ai.choice", {"message": text([{"text": "2"}]), "id": "c1"}),
    ]
    tool = of({**base, "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}, events=events)
    assert (tool.tool_name, tool.tool_call_arguments, tool.tool_call_result) == ("add", '{"a":1}', "2")
    asked = of({"gen_ai.prompt": text([{"role": "user", "content": '[{"text": "a", "id": 1}]'}])}).input_messages
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": '[{"text": "a", "id": 1}]'}]}]


@pytest.mark.parametrize(
    ("name", "kind", "agent"),
    [
        ("meteo.run", "AGENT", "meteo"),
        ("my.agent.arun", "AGENT", "my.agent"),
        ("run", "AGENT", None),
        ("Agent workflow", "AGENT", None),
        ("FunctionAgent.run", "CHAIN", None),
    ],
)
def test_agents_that_only_the_name_of_the_span_tells(name: str, kind: str, agent: str | None) -> None:
    assert of({"openinference.span.kind": kind, "input.value": "hi"}, name=name).agent_name == agent
    assert of({"openinference.span.kind": kind, "agent.name": "said"}, name=name).agent_name == "said"


@pytest.mark.parametrize("place", ["lk.pii.", "lk."], ids=["1.5", "before"])
def test_livekit_tells_what_nodes_and_turns_said(place: str) -> None:
    """What its text sessions were seen to send."""
    marked = {"type": "message", "role": "system", "content": ["Be brief.", {"type": "cache_breakpoint"}]}
    called = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    came = {"type": "function_call_output", "call_id": "c1", "name": "add", "output": "2"}
    told = {"type": "message", "role": "user", "content": ["hello"]}
    items = [marked, {"type": "agent_config_update", "tools_added": ["add"]}, told, called, came]
    node = {"gen_ai.request.model": "m", f"{place}chat_ctx": text({"items": items}), f"{place}response.text": "hi"}
    agent = of({**node, f"{place}response.function_calls": text([{"call_id": "c1", "name": "add", "arguments": "{}"}])})
    assert [one["role"] for one in agent.input_messages] == ["system", "user", "assistant", "tool"]
    assert agent.system_instructions == ["Be brief."] and agent.input_messages[1:2] == HELLO
    assert agent.input_messages[2]["parts"] == [CALL]
    assert agent.output_messages == [{"role": "assistant", "parts": [*HI[0]["parts"], {**CALL, "arguments": {}}]}]
    turn = {"gen_ai.operation.name": "invoke_agent", f"{place}user_input": "hello", f"{place}response.text": "hi"}
    agent = of(turn)
    assert (agent.input_messages, agent.output_messages) == (HELLO, HI)
    tool = {"lk.function_tool.name": "add", f"{place}function_tool.arguments": '{"a": 1}'}
    agent = of({**tool, f"{place}function_tool.output": "2"})
    assert (agent.operation_name, agent.tool_name) == ("execute_tool", "add")
    assert (agent.tool_call_arguments, agent.tool_call_result) == ('{"a":1}', "2")


def test_pipecat_has_messages_in_general_attributes() -> None:
    asked = [{"role": "user", "content": "hello"}]
    names = {"gen_ai.operation.name": "chat", "gen_ai.system_instructions": "Be brief.", "conversation.id": "c"}
    said = {"input": text(asked), "output": "hi", "tools": text([{"type": "function", "function": {"name": "add"}}])}
    agent = of({**names, **said}, scope="pipecat")
    assert (agent.input_messages, agent.output_messages, agent.conversation_id) == (HELLO, HI, "c")
    assert agent.system_instructions == ["Be brief."] and '"add"' in (agent.tool_definitions or "")
    assert not of({**names, **said}).input_messages, "of another library, these names say nothing"


def test_claude_code_has_texts_beside_its_spans() -> None:
    """As 2.1.332 exports them: answers are log records that join the span of the prompt."""
    scope = "com.anthropic.claude_code.tracing"
    turn = {"gen_ai.operation.name": "invoke_agent", "interaction.sequence": 1, "user_prompt": "hello"}
    answers = [event_of("claude_code.assistant_response", {"response": said}) for said in ("wait", "hi")]
    agent = of(turn, scope=scope, events=answers)
    assert (agent.agent_name, agent.input_messages, agent.output_messages) == ("Claude Code", HELLO, HI)
    hidden = event_of("claude_code.assistant_response", {"response": "<REDACTED>"})
    agent = of({**turn, "user_prompt": "<REDACTED>"}, scope=scope, events=[hidden])
    assert (agent.input_messages, agent.output_messages) == ([], [])
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
    agent = of(tool, scope=scope, events=[event_of("tool.output", {"output": "2"})])
    assert (agent.tool_name, agent.tool_call_result, agent.agent_name) == ("add", "2", None)
    assert not of({"user_prompt": "hello"}).input_messages, "of another library, this name says nothing"


def test_openinference_leaves_calls_of_tools_to_the_body() -> None:
    """The library for Mistral numbers no calls of the request: they are objects there, and in the JSON text."""
    function = {"name": "add", "arguments": '{"a": 1}'}
    asked = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "name": "add", "content": "2", "tool_call_id": "c1"},
    ]
    numbered: Json = {"openinference.span.kind": "LLM", "llm.system": "mistralai"}
    for index, message in enumerate(asked):
        told = {key: message[key] for key in ("role", "content") if message[key]}
        numbered |= {f"llm.input_messages.{index}.message.{key}": value for key, value in told.items()}
    numbered["llm.output_messages.0.message.role"] = "assistant"
    bodies = {
        "input.value": text({"model": "mistral-large", "messages": asked}),
        "output.value": text({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": asked[1]}]}),
    }
    agent = of(numbered | bodies)
    assert [one["role"] for one in agent.input_messages] == ["user", "assistant", "tool"]
    assert agent.input_messages[1] == {"role": "assistant", "parts": [CALL]}
    assert agent.output_messages == [{"role": "assistant", "parts": [CALL], "finish_reason": "tool_calls"}]
    other = of(numbered | {"input.value": text({"messages": asked[:1]})})
    assert other.input_messages[1] == {"role": "assistant", "parts": []}, "a body of other messages fills nothing"


_BLOCKS = [{"type": "text"}, {"type": "reasoning", "content": 1}, {"type": "reasoning"}, {"type": {"a": 1}}]


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "haystack.component.type": "OpenAIChatGenerator",
            "haystack.component.input": text({"messages": [{"role": "system", "content": _BLOCKS}]}),
            "haystack.component.output": text({"replies": [{"role": "assistant", "content": _BLOCKS}]}),
        },
        {
            "genkit:metadata:subtype": "model",
            "genkit:input": text({"messages": [{"role": "system", "content": _BLOCKS}]}),
            "genkit:output": text({"message": {"role": "model", "content": _BLOCKS}}),
        },
        {
            "gcp.vertex.agent.llm_request": text({"contents": [{"role": "system", "parts": _BLOCKS}]}),
            "gcp.vertex.agent.llm_response": text({"content": {"role": "model", "parts": _BLOCKS}}),
        },
    ],
    ids=["haystack", "genkit", "google_adk"],
)
def test_blocks_without_a_text_or_a_type_are_read_as_far_as_they_go(attributes: Json) -> None:
    agent = of(attributes)
    parts = [
        {"type": "text", "content": ""},
        {"type": "reasoning", "content": "1"},
        {"type": "reasoning", "content": ""},
        {"type": "text", "content": '{"type":{"a":1}}'},
    ]
    assert [one["parts"] for one in (*agent.input_messages, *agent.output_messages)] == [parts, parts]
    assert (agent.system_instructions, agent.reasoning_content) == (["", parts[3]["content"]], "1")


@pytest.mark.parametrize("key", ["9" * 5000, "a." * 3000 + "a"], ids=["a number of 5000 digits", "3001 levels"])
def test_keys_that_no_list_or_object_can_have_are_names(key: str) -> None:
    assert nest_attributes({f"model_dict.{key}": 1}, "model_dict.") == {key: 1}
    asked = event_of("LLMChatStartEvent", {f"model_dict.{key}": 1, "model_dict.model": "m"})
    assert of({}, events=[asked]).request_model == "m"
