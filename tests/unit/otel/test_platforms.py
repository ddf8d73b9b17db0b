"""Calls of what Laminar 0.8, LangWatch 1.4, AgentOps 0.4, Langtrace 3.8, LiteLLM 1.110 and others were seen to send."""

from typing import Any

import orjson
import pytest

from heddle.trace.otel.reading import read
from heddle.wire.calls import End, Start
from heddle.wire.conversation.call import of_call, of_span
from tests.support.otel import event_of, seen, span_of
from tests.support.otlp import span
from tests.unit.otel.test_call import packed

Json = dict[str, Any]
ASKED, ANSWERED = [{"role": "user", "content": "hello"}], [{"role": "assistant", "content": "hi"}]
HELLO = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
HI = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}]}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def text(value: Any) -> str:
    """JSON text."""
    return orjson.dumps(value).decode()


def told(value: Any, kind: str = "json") -> str:
    """A value as LangWatch writes it."""
    return text({"type": kind, "value": value})


def call_of(attributes: Json) -> tuple[Start, End]:
    """The call of a span."""
    (start,), (end,), _ = packed(span(1, attributes=attributes))
    return start, end


OF_LAMINAR = {
    "lmnr.span.type": "TOOL",
    "lmnr.span.input": text({"a": 1}),
    "lmnr.span.output": text("done"),
    "lmnr.association.properties.session_id": "s1",
    "lmnr.association.properties.user_id": "ann",
    "lmnr.association.properties.tags": ["t1"],
    "lmnr.association.properties.metadata.plan": "x",
}
OF_LANGWATCH = {
    "langwatch.span.type": "tool",
    "langwatch.input": told({"a": 1}),
    "langwatch.output": told("done", "text"),
    "metadata": text({"thread_id": "s1", "user_id": "ann", "labels": ["t1"], "plan": "x"}),
}
OF_AGENTOPS = {
    "agentops.span.kind": "tool",
    "operation.name": "step",
    "agentops.tool.input": text({"args": [], "kwargs": {"a": 1}}),
    "agentops.tool.output": text("done"),
    "agentops.tags": ["t1"],
}


@pytest.mark.parametrize(
    "attributes", [OF_LAMINAR, OF_LANGWATCH, OF_AGENTOPS], ids=["laminar", "langwatch", "agentops"]
)
def test_a_function_has_what_it_was_given_and_gave(attributes: Json) -> None:
    start, end = call_of(attributes)
    known = orjson.loads(start.attributes)
    assert (orjson.loads(start.inputs), orjson.loads(end.output or "")) == ({"a": 1}, "done")
    assert (known["kind"], known["tags"]) == ("tool", ["t1"])
    agent = seen(span_of(attributes))
    assert (agent.tool_name, agent.tool_call_arguments, agent.tool_call_result) == ("step", '{"a":1}', "done")
    if attributes is not OF_AGENTOPS:
        assert (start.thread_id, start.user, known["metadata"]["plan"]) == ("s1", "ann", "x")


@pytest.mark.parametrize(
    "attributes",
    [
        {"lmnr.span.type": "DEFAULT", "lmnr.span.input": text({"q": "?"}), "lmnr.span.output": text(["a"])},
        {"langwatch.span.type": "chain", "langwatch.input": told({"q": "?"}), "langwatch.output": told(["a"])},
        {
            "agentops.span.kind": "task",
            "agentops.task.input": text({"args": [], "kwargs": {"q": "?"}}),
            "agentops.task.output": text(["a"]),
        },
    ],
    ids=["laminar", "langwatch", "agentops"],
)
def test_a_step_is_no_conversation(attributes: Json) -> None:
    start, end = call_of(attributes)
    assert (orjson.loads(start.inputs), orjson.loads(end.output or "")) == ({"q": "?"}, ["a"])
    assert not seen(span_of(attributes)).input_messages


def test_models_have_messages_tokens_and_tools() -> None:
    by_hand = {"lmnr.span.type": "LLM", "lmnr.span.input": text(ASKED), "lmnr.span.output": text(ANSWERED)}
    of_langwatch = {
        "langwatch.span.type": "llm",
        "gen_ai.request.model": "openai/gpt-4o-mini",
        "langwatch.input": told(ASKED, "chat_messages"),
        "langwatch.output": told(ANSWERED, "chat_messages"),
        "langwatch.params": text({"temperature": 0.5, "tools": [TOOL]}),
        "langwatch.metrics": text({"prompt_tokens": 12, "completion_tokens": 3, "reasoning_tokens": 2}),
    }
    for attributes in (by_hand, of_langwatch):
        agent = seen(span_of(attributes))
        assert (agent.operation_name, agent.input_messages, agent.output_messages) == ("chat", HELLO, HI)
        start, end = call_of(attributes)
        assert orjson.loads(start.inputs) == {"gen_ai.input.messages": HELLO}
        assert orjson.loads(end.output or "") == {"gen_ai.output.messages": HI}
    (entry,) = end.usage
    assert (entry.model, entry.prompt, entry.completion) == ("openai/gpt-4o-mini", 12, 3)
    assert (agent.reasoning_tokens, agent.request_temperature) == (2, 0.5)
    assert orjson.loads(agent.tool_definitions or "") == [TOOL]


def test_tools_below_the_request() -> None:
    """AgentOps numbers them there."""
    numbered = {"gen_ai.request.functions.0.name": "add", "gen_ai.request.functions.0.parameters": "{}"}
    agent = seen(span_of({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello", **numbered}))
    assert orjson.loads(agent.tool_definitions or "") == [{"name": "add", "parameters": {}}]


def test_what_a_model_called_is_a_tool_below_its_request() -> None:
    """AgentOps sets the kind of these spans to an object, which the OpenTelemetry SDK drops."""
    called = {"tool.name": "add", "tool.parameters": text({"a": 1}), "tool.call.id": "c1", "tool.call.type": "function"}
    agent = seen(span_of(called, scope="agentops.instrumentation.providers.openai.wrappers.chat"))
    assert (agent.operation_name, agent.tool_name, agent.tool_call_id) == ("execute_tool", "add", "c1")
    assert agent.tool_call_arguments == '{"a":1}'


def test_messages_and_tools_of_future_agi_are_numbered() -> None:
    asked = "gen_ai.input.messages."
    called = "gen_ai.output.messages.0.message.tool_calls.0.tool_call."
    attributes = {
        "gen_ai.span.kind": "LLM",
        "gen_ai.request.model": "m",
        "gen_ai.request.parameters": text({"temperature": 0.5}),
        asked + "0.message.role": "system",
        asked + "0.message.content": "be brief",
        asked + "1.message.role": "user",
        asked + "1.message.content": "hello",
        called + "id": "c1",
        called + "function.name": "add",
        called + "function.arguments": text({"a": 1}),
        "gen_ai.tool.definitions.0.type": "function",
        "gen_ai.tool.definitions.0.tool.json_schema": text(TOOL),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.input_tokens.cache_read": 4,
        "input.value": "be brief",
        "output.value": 'Function: add({"a": 1})',
        "session.id": "s1",
        "user.id": "ann",
    }
    agent = seen(span_of(attributes))
    assert agent.input_messages == [{"role": "system", "parts": [{"type": "text", "content": "be brief"}]}, *HELLO]
    (answer,) = agent.output_messages
    assert answer["parts"] == [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}]
    assert orjson.loads(agent.tool_definitions or "") == [TOOL]
    assert (agent.operation_name, agent.request_temperature, agent.cache_read_input_tokens) == ("chat", 0.5, 4)
    start, _ = call_of(attributes)
    assert (start.thread_id, start.user) == ("s1", "ann")


def test_a_function_of_honeyhive_has_what_it_was_given_and_gave() -> None:
    attributes = {
        "honeyhive.session_id": "s1",
        "honeyhive_event_type": "tool",
        "honeyhive_inputs.city": "Paris",
        "honeyhive_outputs.result": "18 degrees",
        "honeyhive_user_properties.user_id": "ann",
    }
    start, end = call_of(attributes)
    assert (orjson.loads(start.inputs), orjson.loads(end.output or "")) == ({"city": "Paris"}, "18 degrees")
    assert (start.thread_id, start.user) == ("s1", "ann")


def test_threads_customers_and_metadata_of_respan() -> None:
    start, _ = call_of(
        {
            "traceloop.span.kind": "workflow",
            "respan.threads.thread_identifier": "s1",
            "respan.customer_params.customer_identifier": "ann",
            "respan.metadata.plan": "x",
        }
    )
    assert (start.thread_id, start.user) == ("s1", "ann")
    assert orjson.loads(start.attributes)["metadata"] == {"plan": "x"}


def test_contexts_of_a_search_are_kept() -> None:
    contexts = [{"document_id": "d1", "content": "warm"}]
    start, _ = call_of({"langwatch.span.type": "rag", "langwatch.rag_contexts": text(contexts)})
    assert orjson.loads(start.attributes) == {"kind": "retriever", "rag_contexts": contexts}


def test_a_result_of_a_tool_may_have_its_id_beside_parts_of_text() -> None:
    """As the spans of LiteLLM's own tracing have it."""
    result = {"role": "tool", "parts": [{"type": "text", "content": "18"}], "tool_call_id": "c1"}
    found = of_call({"gen_ai.input.messages": [{"role": "user", "content": "?"}, result]}, {}, is_model=True)
    answered = {"type": "tool_call_response", "id": "c1", "response": [{"type": "text", "content": "18"}]}
    assert found.messages[1]["parts"] == [answered]


def test_langtrace_has_calls_of_tools_for_content() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    events = (
        event_of("gen_ai.content.prompt", {"gen_ai.prompt": text(ASKED)}),
        event_of(
            "gen_ai.content.completion", {"gen_ai.completion": text([{"role": "assistant", "content": [called]}])}
        ),
    )
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.tools": [text([TOOL])]}
    counts = {"gen_ai.usage.input_tokens": 120, "gen_ai.usage.cached_tokens": 64}
    agent = seen(span_of({**attributes, **counts}, events=list(events)))
    assert (agent.input_messages, agent.cache_read_input_tokens) == (HELLO, 64)
    part = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}
    assert agent.output_messages == [{"role": "assistant", "parts": [part]}]
    found = of_span(agent, is_agent=False)
    assert found is not None and [one["function"]["name"] for one in found.tools] == ["add"]


@pytest.mark.parametrize("name", ["embed", "embedding", "embeddings"])
def test_embeddings_by_other_names(name: str) -> None:
    """Langtrace's, LiteLLM's, and that of the conventions; each is a request to a model."""
    start, end = call_of({"gen_ai.operation.name": name, "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 5})
    assert orjson.loads(start.attributes)["kind"] == "embedding" and [one.requests for one in end.usage] == [1]


REQUESTS = {
    "acompletion": "chat",
    "aresponses": "chat",
    "anthropic_messages": "chat",
    "agenerate_content_stream": "generate_content",
    "atext_completion": "text_completion",
    "aembedding": "embeddings",
}
"""What the proxy of LiteLLM calls its requests, and the conventions."""


@pytest.mark.parametrize(("name", "operation"), REQUESTS.items())
def test_requests_of_the_proxy_of_litellm(name: str, operation: str) -> None:
    """It names the functions that it calls, in both attributes."""
    attributes = {
        "gen_ai.operation.name": name,
        "llm.request.type": name,
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.input.messages": text(HELLO),
        "gen_ai.output.messages": text([{"role": "assistant", "parts": [], "finish_reason": "tool_calls"}]),
        "gen_ai.completion.0.function_call.name": "add",
        "gen_ai.completion.0.function_call.arguments": '{"a": 1}',
    }
    _, end = call_of(attributes)
    assert [one.requests for one in end.usage] == [1]
    agent = seen(span_of(attributes))
    assert (agent.operation_name, agent.input_messages) == (operation, HELLO)
    part = {"type": "tool_call", "name": "add", "arguments": {"a": 1}}
    assert agent.output_messages == [{"role": "assistant", "parts": [part]}]


def test_the_model_behind_a_name_of_the_proxy_of_litellm() -> None:
    """It puts the name that its caller used in place of the model that answered."""
    named = {"gen_ai.request.model": "gpt-5-mini", "gen_ai.response.model": "fast", "gen_ai.usage.input_tokens": 5}
    assert [one.model for one in call_of(named)[1].usage] == ["fast"]
    proxied = {**named, "metadata.user_api_key_hash": "h"}
    assert [one.model for one in call_of(proxied)[1].usage] == ["gpt-5-mini"]
    assert seen(span_of(proxied)).response_model == "gpt-5-mini"


def test_a_model_that_is_named_alone_was_not_asked() -> None:
    """The proxy of LiteLLM copies the model and the user of a request to its spans of routes and dependencies."""
    copied = {"gen_ai.request.model": "m", "litellm.metadata.user_api_key_end_user_id": "ann"}
    start, end = call_of(copied)
    assert (start.user, [one.requests for one in end.usage]) == ("ann", [])
    assert "kind" not in orjson.loads(start.attributes) and seen(span_of(copied)).operation_name is None
    asked = seen(span_of({**copied, "gen_ai.system": "openai"}))
    assert asked.operation_name == "chat"


@pytest.mark.parametrize("name", ["gen_ai.user", "llm.user"])
def test_the_user_that_a_request_names(name: str) -> None:
    start, _ = call_of({"llm.request.type": "chat", name: "ann"})
    assert start.user == "ann"


@pytest.mark.parametrize(
    "output",
    [
        {"ai.response": {"finishReason": "stop", "text": {"city": "Paris"}}},
        {"output": {"city": "Paris"}},
        {"text": {"city": "Paris"}},
    ],
)
def test_an_object_that_follows_a_schema_is_what_was_said(output: Json) -> None:
    """Attributes with JSON texts are stored as their values: the AI SDK 6 has such a text for `Output.object`."""
    found = of_call({"ai.prompt": {"prompt": "hello"}}, output, is_model=True)
    parts = [part for choice in found.choices for one in choice.messages for part in one["parts"]]
    assert parts == [{"type": "text", "content": '{"city":"Paris"}'}]


def test_nemo_guardrails_names_a_task_and_has_contents_in_events() -> None:
    """As nemoguardrails 0.24 sends a rail that asks a model."""
    attributes = {
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.operation.name": "self_check_input",
        "gen_ai.usage.input_tokens": 120,
    }
    events = [
        event_of("gen_ai.content.prompt", {"content": "hello"}),
        event_of("gen_ai.content.completion", {"content": "hi"}),
    ]
    agent = seen(span_of(attributes, events=events))
    assert (agent.operation_name, agent.input_messages, agent.output_messages) == ("chat", HELLO, HI)
    found = of_span(agent, is_agent=False)
    assert found is not None and found.messages == HELLO


@pytest.mark.parametrize("prompt", ["hello", text(ASKED)], ids=["a text", "messages"])
@pytest.mark.parametrize("answer", ["hi", '{"city":"Paris"}'])
def test_promptfoo_has_prompt_and_output_beside_genai(prompt: str, answer: str) -> None:
    """As promptfoo 0.121 sends what a provider was asked."""
    attributes = {
        "gen_ai.system": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 19,
        "promptfoo.provider.id": "openai:chat:m",
        "promptfoo.request.body": prompt,
        "promptfoo.response.body": answer,
    }
    agent = seen(span_of(attributes))
    assert (agent.input_messages, agent.input_tokens) == (HELLO, 19)
    assert agent.output_messages == [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]


def test_deepeval_has_its_own_names_for_everything() -> None:
    """As DeepEval 4.3 reads spans that a program makes for it."""
    trace = {"confident.trace.thread_id": "thread-1", "confident.trace.user_id": "user-1"}
    llm = {
        "confident.span.type": "llm",
        "confident.span.name": "ask",
        "confident.span.input": text(ASKED),
        "confident.span.output": "hi",
        "confident.llm.model": "m",
        "confident.llm.input_token_count": 7,
        "confident.llm.output_token_count": 2,
    }
    agent = seen(span_of(trace | llm))
    assert (agent.operation_name, agent.request_model, agent.conversation_id) == ("chat", "m", "thread-1")
    assert (agent.input_messages, agent.output_messages) == (HELLO, HI)
    start, end = call_of(trace | llm)
    assert (start.thread_id, start.user, start.display_name) == ("thread-1", "user-1", "ask")
    assert (end.usage[0].prompt, end.usage[0].completion) == (7, 2)
    given = {"confident.span.input": '{"a": 1}', "confident.span.output": "2"}
    tool = seen(span_of({"confident.span.type": "tool", "confident.span.name": "add", **given}))
    assert (tool.operation_name, tool.tool_name) == ("execute_tool", "add")
    assert (tool.tool_call_arguments, tool.tool_call_result) == ('{"a":1}', "2")
    worker = seen(span_of({"confident.span.type": "agent", "confident.agent.name": "forecaster"}))
    assert (worker.operation_name, worker.agent_name) == ("invoke_agent", "forecaster")


def test_records_of_usage_of_ag2_are_not_counted_again() -> None:
    """As AG2 1.2 sends a request, a record of its usage, and one of a compaction, which has no span of its own."""
    told = {"gen_ai.response.model": "m", "gen_ai.usage.input_tokens": 120, "gen_ai.usage.thinking_tokens": 16}
    request = told | {"ag2.span.type": "llm", "gen_ai.operation.name": "chat"}
    repeated = told | {"ag2.span.type": "usage", "ag2.usage.kind": "model_call"}
    alone = told | {"ag2.span.type": "usage", "ag2.usage.kind": "compaction"}
    agents = [seen(span_of(attributes)) for attributes in (request, repeated, alone)]
    assert [agent.operation_name for agent in agents] == ["chat", "record_usage", "record_usage"]
    assert [(agent.input_tokens, agent.reasoning_tokens) for agent in agents] == [(120, 16), (None, None), (120, 16)]
    counted = [[one.prompt for one in call_of(attributes)[1].usage] for attributes in (request, repeated, alone)]
    assert counted == [[120], [], [120]]


TRU = "ai.observability."


def trulens(kind: str, function: str, given: Json, came: Any, **more: Any) -> Json:
    """The attributes of a function that TruLens 2.16 decorates."""
    told = {f"{TRU}span_type": kind, f"{TRU}call.function": f"app.RAG.{function}", f"{TRU}call.return": came}
    told |= {f"{TRU}call.kwargs.{name}": value for name, value in given.items()}
    return told | {f"{TRU}conversation_id": "thread-1"} | {TRU + name: value for name, value in more.items()}


def test_trulens_has_records_and_what_their_models_cost() -> None:
    said = {"record_root.input": "hello", "record_root.output": "hi"}
    root = seen(span_of(trulens("record_root", "query", {"query": "hello"}, "hi", **said)))
    assert (root.operation_name, root.conversation_id) == ("invoke_workflow", "thread-1")
    assert (root.input_messages, root.output_messages) == (HELLO, HI)
    costs = {"cost.model": "m", "cost.num_prompt_tokens": 240, "cost.num_completion_tokens": 60}
    given = {"query": "hello", "ctx": ["a", "b"]}
    asking = trulens("generation", "generate", given, "hi", **costs, **{"cost.num_reasoning_tokens": 16})
    agent = seen(span_of(asking))
    assert (agent.operation_name, agent.request_model, agent.reasoning_tokens) == ("chat", "m", 16)
    assert (agent.input_messages, agent.output_messages) == ([], HI)
    start, end = call_of(asking)
    assert (start.thread_id, start.inputs) == ("thread-1", text(given))
    assert (end.usage[0].prompt, end.usage[0].completion) == (240, 60)
    alone = seen(span_of(trulens("record_root", "ask", {"query": "hello"}, "hi", **costs)))
    assert (alone.operation_name, alone.input_messages) == ("chat", HELLO)
    without = seen(span_of(trulens("generation", "generate", given, "hi")))
    assert (without.operation_name, without.output_messages) == ("agent_step", [])


def test_trulens_has_tools_and_retrievals() -> None:
    attributes = trulens("tool", "add", {"a": 1}, "2") | {"gen_ai.tool.name": "app.RAG.add"}
    tool = seen(span_of(attributes))
    assert (tool.operation_name, tool.tool_name) == ("execute_tool", "add")
    assert (tool.tool_call_arguments, tool.tool_call_result) == ('{"a":1}', "2")
    start, end = call_of(trulens("retrieval", "retrieve", {"query": "hello"}, ["a", "b"]))
    assert (start.inputs, end.output) == (text({"query": "hello"}), text(["a", "b"]))
    kinds = {"reranking": "rerank", "eval_root": "evaluator", "agent": "invoke_agent", "unknown": None}
    assert {kind: seen(span_of(trulens(kind, "f", {}, ""))).operation_name for kind in kinds} == kinds


def test_gemini_cli_has_requests_and_tools() -> None:
    """As Gemini CLI 0.61 sends them with its setting `traces`, and a request without."""
    told = {"gen_ai.conversation.id": "s1", "gen_ai.agent.name": "gemini-cli"}
    contents = text([{"role": "user", "parts": [{"text": "hello"}]}])
    request = told | {
        "gen_ai.operation.name": "llm_call",
        "gen_ai.request.model": "m",
        "gen_ai.prompt.name": "s1",
        "gen_ai.input.messages": contents,
        "gen_ai.output.messages": text([{"role": "model", "parts": [{"text": "hi"}]}]),
        "gen_ai.usage.input_tokens": 120,
    }
    agent = seen(span_of(request, scope="gemini-cli"))
    assert (agent.operation_name, agent.conversation_id, agent.input_tokens) == ("chat", "s1", 120)
    assert (agent.input_messages, agent.output_messages) == (HELLO, HI)
    event = event_of("gemini_cli.api_request", {"request_text": contents})
    plain = told | {"gen_ai.operation.name": "llm_call", "gen_ai.request.model": "m"}
    assert seen(span_of(plain, scope="gemini-cli", events=[event])).input_messages == HELLO
    came = {"response": {"responseParts": [{"functionResponse": {"id": "c1", "response": {"output": "2"}}}]}}
    tool = seen(
        span_of(
            told
            | {
                "gen_ai.operation.name": "tool_call",
                "gen_ai.tool.name": "add",
                "gen_ai.tool.call_id": "c1",
                "gen_ai.input.messages": text({"callId": "c1", "name": "add", "args": {"a": 1}}),
                "gen_ai.output.messages": text(came),
            },
            scope="gemini-cli",
        )
    )
    assert (tool.operation_name, tool.tool_name, tool.tool_call_id) == ("execute_tool", "add", "c1")
    assert (tool.tool_call_arguments, tool.tool_call_result) == ('{"a":1}', '{"output":"2"}')


def test_nemo_guardrails_has_rails_by_their_names() -> None:
    """As NeMo Guardrails 0.24 sends a request that a rail stopped."""
    rail = {"rail.type": "input", "rail.name": "self check input", "rail.stop": True}
    steps = {
        "guardrails.rail": (rail, "guardrail", "self check input"),
        "guardrails.action": ({"action.name": "self_check_input"}, "agent_step", "self_check_input"),
        "guardrails.request": ({"gen_ai.operation.name": "guardrails"}, "invoke_workflow", None),
    }
    said = [
        event_of("guardrails.utterance.user.finished", {"content": "hello"}),
        event_of("guardrails.utterance.bot.started", {"content": "hi"}),
    ]
    for name, (attributes, operation, shown) in steps.items():
        told = span_of(attributes, name, "nemo_guardrails", said)
        agent, call = seen(told), read(told, {}, "project")
        assert (agent.operation_name, call.context.display_name) == (operation, shown)
        assert bool(agent.input_messages) == (operation == "invoke_workflow")
    assert (agent.input_messages, agent.output_messages) == (HELLO, HI)


@pytest.mark.parametrize("name", ["cache_read_input_tokens", "cache_read.input_tokens"])
def test_cached_tokens_alone_are_those_of_the_request_below(name: str) -> None:
    """As OpenHands 1.58 sends a span around LiteLLM's; it would count in the place of the request."""
    around = {"lmnr.span.type": "LLM", f"gen_ai.usage.{name}": 64}
    agent = seen(span_of(around))
    assert (agent.operation_name, agent.input_tokens, agent.cache_read_input_tokens) == ("chat", None, None)
    assert call_of(around)[1].usage == []
    request = around | {"gen_ai.usage.input_tokens": 120}
    assert seen(span_of(request)).cache_read_input_tokens == 64
    assert [(one.prompt, one.cache_read) for one in call_of(request)[1].usage] == [(120, 64)]


def test_a_run_of_langsmith_without_an_answer_failed() -> None:
    """As the package of npm 0.12 sends it, with the status OK."""
    run = {"langsmith.span.kind": "llm", "gen_ai.prompt": "{}"}
    failure = [event_of("exception", {"exception.message": "no such model: m"})]
    agent = seen(span_of(run, events=failure))
    assert (agent.status_code, agent.status_message) == ("ERROR", "no such model: m")
    answered = seen(span_of(run | {"gen_ai.completion": "{}"}, events=failure))
    assert answered.status_code == "UNSET"


def test_the_name_of_a_prompt_is_no_prompt() -> None:
    start, _ = call_of({"gen_ai.operation.name": "chat", "gen_ai.prompt.name": "greeting", "input.value": "hello"})
    assert start.inputs == text({"input.value": "hello"})


def test_an_answer_that_says_nothing_is_no_data() -> None:
    """As Mastra 1.71 sends a request that was answered with calls of tools alone."""
    output = {"gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": ""}]}]}
    assert of_call({}, output, is_model=True).choices == []


GENKIT_ASKED = {
    "messages": [
        {"role": "system", "content": [{"text": "Be brief."}]},
        {"role": "user", "content": [{"text": "hello"}, {"media": {"url": "https://example.com/a.png"}}]},
        {"role": "model", "content": [{"toolRequest": {"name": "add", "ref": "c1", "input": {"a": 1}}}]},
        {"role": "tool", "content": [{"toolResponse": {"name": "add", "ref": "c1", "output": 2}}]},
    ],
    "config": {"temperature": 0.5, "maxOutputTokens": 9},
    "tools": [{"name": "add"}],
}


def genkit(kind: str, name: str, given: Any, came: Any) -> Json:
    """The attributes of an action of Genkit 1.42."""
    about = {"genkit:type": "action", "genkit:metadata:subtype": kind, "genkit:name": name}
    return about | {"genkit:input": text(given), "genkit:output": text(came)}


def test_genkit_has_requests_and_answers_of_models() -> None:
    said = {"role": "model", "content": [{"reasoning": "hm"}, {"text": "hi"}]}
    raw = {"model": "m-1", "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}
    answer = {"message": said, "finishReason": "stop", "usage": {"inputTokens": 7, "outputTokens": 2}, "raw": raw}
    agent = seen(span_of(genkit("model", "p/team/m", GENKIT_ASKED, answer)))
    assert (agent.operation_name, agent.provider_name, agent.request_model) == ("chat", "p", "team/m")
    assert (agent.response_model, agent.finish_reasons, agent.request_temperature) == ("m-1", ["stop"], 0.5)
    assert (agent.input_tokens, agent.output_tokens, agent.cache_read_input_tokens) == (7, 2, 3)
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert [one["parts"] for one in agent.input_messages] == [
        [{"type": "text", "content": "Be brief."}],
        [{"type": "text", "content": "hello"}, picture],
        [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}],
        [{"type": "tool_call_response", "id": "c1", "response": 2}],
    ]
    parts = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "hi"}]
    assert agent.output_messages == [{"role": "assistant", "parts": parts}]
    assert agent.tool_definitions == text(GENKIT_ASKED["tools"])


def test_gemini_thinks_beside_the_output_of_genkit() -> None:
    usage = {"inputTokens": 7, "outputTokens": 2, "thoughtsTokens": 5}
    for total, output in ((14, 7), (9, 2)):
        answer = {"usage": usage | {"totalTokens": total}}
        agent = seen(span_of(genkit("model", "m", {}, answer)))
        assert (agent.request_model, agent.output_tokens, agent.reasoning_tokens) == ("m", output, 5)


def test_genkit_has_flows_agents_tools_and_loops() -> None:
    start, end = call_of(genkit("flow", "weather", "Paris", {"degrees": 18}))
    assert (start.inputs, end.output, end.usage) == ('{"input":"Paris"}', '{"degrees":18}', [])
    tool = seen(span_of(genkit("tool", "add", {"a": 1}, "done")))
    assert (tool.tool_name, tool.tool_call_arguments, tool.tool_call_result) == ("add", '{"a":1}', "done")
    agent = seen(span_of(genkit("agent", "helper", {}, {}) | {"genkit:metadata:agent:sessionId": "s1"}))
    assert (agent.operation_name, agent.agent_name, agent.conversation_id) == ("invoke_agent", "helper", "s1")
    attributes = genkit("", "generate", GENKIT_ASKED, {"message": {"role": "model", "content": [{"text": "hi"}]}})
    loop = seen(span_of(attributes | {"genkit:type": "util"}))
    assert (loop.operation_name, loop.output_messages) == ("agent_step", HI)


def haystack(kind: str, given: Json, came: Json) -> Json:
    """The attributes of a component of Haystack 3.4."""
    about = {"haystack.component.name": "it", "haystack.component.type": kind}
    return about | {"haystack.component.input": text(given), "haystack.component.output": text(came)}


HAYSTACK_META = {
    "model": "m-1",
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
}
SAID = {
    "role": "assistant",
    "meta": HAYSTACK_META,
    "content": [{"reasoning": {"reasoning_text": "hm"}}, {"text": "hi"}],
}


@pytest.mark.parametrize(
    ("kind", "given", "came", "answered"),
    [
        ("OpenAIGenerator", {"prompt": "hello"}, {"replies": ["hi"], "meta": [HAYSTACK_META]}, HI),
        (
            "OpenAIChatGenerator",
            {"messages": [{"role": "user", "content": [{"text": "hello"}]}]},
            {"replies": [SAID]},
            [{"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, *HI[0]["parts"]]}],
        ),
    ],
    ids=["text", "messages"],
)
def test_haystack_has_requests_and_answers_of_models(kind: str, given: Json, came: Json, answered: list[Json]) -> None:
    attributes = haystack(kind, given, came)
    agent = seen(span_of(attributes, name="haystack.component.run"))
    assert (agent.operation_name, agent.response_model, agent.finish_reasons) == ("chat", "m-1", ["stop"])
    assert (agent.input_tokens, agent.output_tokens, agent.reasoning_tokens) == (7, 2, 1)
    assert (agent.input_messages, agent.output_messages) == (HELLO, answered)
    start, end = call_of(attributes)
    assert (start.display_name, end.usage[0].prompt) == ("it", 7)


def test_haystack_has_agents_tools_and_other_components() -> None:
    call = {"tool_name": "add", "arguments": {"a": 1}, "id": "c1"}
    asked = [
        {"role": "user", "content": [{"text": "hello"}]},
        {"role": "assistant", "content": [{"tool_call": call}]},
        {"role": "tool", "content": [{"tool_call_result": {"result": "done", "origin": call}}]},
    ]
    tools = [{"type": "haystack.tools.tool.Tool", "data": {"name": "add"}}]
    request = {"haystack.agent.step.llm.input": text({"messages": asked, "tools": tools})}
    agent = seen(span_of(request, name="haystack.agent.step.llm"))
    assert (agent.operation_name, agent.tool_definitions) == ("chat", '[{"name":"add"}]')
    assert [one["parts"][0] for one in agent.input_messages[1:]] == [
        {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}},
        {"type": "tool_call_response", "id": "c1", "response": "done"},
    ]
    run = {"haystack.agent.input": text({"messages": asked[:1]}), "haystack.agent.output": text({"last_message": SAID})}
    agent = seen(span_of(run, name="haystack.agent.run"))
    assert (agent.operation_name, agent.input_messages, agent.input_tokens) == ("invoke_agent", HELLO, None)
    assert [one["role"] for one in agent.output_messages] == ["assistant"]
    values = {"haystack.agent.step.tool.input": '{"a": 1}', "haystack.agent.step.tool.output": "done"}
    tool = seen(span_of({"haystack.tool.name": "add", **values}, name="haystack.agent.step.tool"))
    assert (tool.tool_name, tool.tool_call_arguments, tool.tool_call_result) == ("add", '{"a":1}', "done")
    kinds = {"InMemoryBM25Retriever": "retrieval", "OpenAITextEmbedder": "embeddings", "LLMRanker": "rerank"}
    assert [seen(span_of(haystack(kind, {}, {}))).operation_name for kind in kinds] == list(kinds.values())
    start, end = call_of(haystack("OutputAdapter", {"a": 1}, {"b": 2}))
    assert (start.inputs, end.output) == ('{"a":1}', '{"b":2}')


@pytest.mark.parametrize("is_nested", [True, False], ids=["attributes", "JSON text"])
def test_llama_index_has_requests_in_events(is_nested: bool) -> None:
    """As llama-index-observability-otel sends what an agent asked after a tool answered."""
    result = {"role": "tool", "additional_kwargs": {"tool_call_id": "c1"}, "blocks": [{"text": "done"}]}
    hello = {"role": "user", "blocks": [{"block_type": "text", "text": "hello"}]}
    asked = {"messages": text([hello, result])}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    blocks = [{"block_type": "text", "text": "hi"}]
    if is_nested:
        asked |= {"model_dict.model_name": "m", "additional_kwargs.tools": text([TOOL])}
        answered = {"response.message.role": "assistant", "response.message.blocks": text(blocks)}
        answered |= {"response.raw.model": "m-1", "response.raw.usage": text(usage)}
    else:
        asked |= {"model_dict": text({"model_name": "m"}), "additional_kwargs": text({"tools": [TOOL]})}
        said = {"role": "assistant", "blocks": blocks}
        answered = {"response": text({"message": said, "raw": {"model": "m-1", "usage": usage}})}
    events = [event_of("LLMChatStartEvent", asked), event_of("LLMChatEndEvent", answered)]
    agent = seen(span_of({}, events=events))
    assert (agent.operation_name, agent.request_model, agent.response_model) == ("chat", "m", "m-1")
    assert (agent.input_tokens, agent.output_tokens, agent.cache_read_input_tokens) == (7, 2, 3)
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "done"}]}
    assert (agent.input_messages, agent.output_messages) == ([*HELLO, response], HI)
    assert agent.tool_definitions == text([TOOL])


def volt(kind: str | None, **others: Any) -> Json:
    """Attributes of a span of VoltAgent; the run of an agent has no type."""
    run = {"entity.type": "agent", "entity.name": "helper", "user.id": "ann", "conversation.id": "s1"}
    typed = {} if kind is None else {"span.type": kind}
    return (
        run | typed | {name.replace("__", "."): value for name, value in others.items()} | {"voltagent.operation_id": 1}
    )


def test_voltagent_has_runs_requests_and_tools() -> None:
    run = volt(None, input="hello", output="hi", ai__model__name="m", ai__response__finish_reason="stop")
    agent = seen(span_of(run))
    assert (agent.operation_name, agent.agent_name, agent.conversation_id) == ("invoke_agent", "helper", "s1")
    assert (agent.input_messages, agent.output_messages, agent.finish_reasons) == (HELLO, HI, ["stop"])
    start, end = call_of(run | {"usage.prompt_tokens": 14})
    assert (start.inputs, end.output, end.usage) == ('{"input":"hello"}', '"hi"', [])
    counts = {"llm.usage.prompt_tokens": 7, "llm.usage.completion_tokens": 2, "llm.usage.cached_tokens": 3}
    request = volt("llm", llm__model="m", llm__messages=text(ASKED)) | {"llm.messages.count": 1} | counts
    stored = request | {"llm.messages": {"count": 1, "0": ASKED[0]}}
    for attributes in (request, stored):
        agent = seen(span_of(attributes))
        assert (agent.operation_name, agent.agent_name, agent.input_messages) == ("chat", None, HELLO)
        assert (agent.input_tokens, agent.output_tokens, agent.cache_read_input_tokens) == (7, 2, 3)
    values = {"input": '{"a": 1}', "output": "done", "tool.name": "add", "span.label": "add"}
    tool = seen(span_of(volt("tool", tool__parameters="{}") | values))
    assert (tool.tool_name, tool.tool_call_arguments, tool.tool_call_result) == ("add", '{"a":1}', "done")


@pytest.mark.parametrize("is_nested", [True, False], ids=["attributes", "JSON text"])
def test_braintrust_has_requests_and_tools(is_nested: bool) -> None:
    metadata = {"model": "m", "temperature": 0.5, "user_id": "ann", "tools": [TOOL]}
    counts = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_cached_tokens": 3}
    of_request: Json = {}
    for name, value in (
        ("span_attributes", {"type": "llm", "name": "Chat"}),
        ("metadata", metadata),
        ("metrics", counts),
    ):
        flat = {f"braintrust.{name}.{key}": item for key, item in value.items()}
        of_request |= flat if is_nested else {f"braintrust.{name}": text(value)}
    values = {"braintrust.input_json": text(ASKED), "braintrust.output_json": text([{"message": ANSWERED[0]}])}
    agent = seen(span_of(of_request | values))
    assert (agent.operation_name, agent.request_model, agent.request_temperature) == ("chat", "m", 0.5)
    assert (agent.input_tokens, agent.output_tokens, agent.cache_read_input_tokens) == (7, 2, 3)
    assert (agent.input_messages, agent.output_messages, agent.tool_definitions) == (HELLO, HI, text([TOOL]))
    start, end = call_of(of_request | values | {"braintrust.scores": text({"good": 1})})
    assert (start.display_name, start.user, end.usage[0].prompt) == ("Chat", "ann", 7)
    assert orjson.loads(start.attributes)["scores"] == {"good": 1}
    of_tool = {"braintrust.span_attributes": text({"type": "tool", "name": "add"})}
    tool = seen(span_of(of_tool | {"braintrust.input": '{"a": 1}', "braintrust.output": "done"}))
    assert (tool.tool_name, tool.tool_call_arguments, tool.tool_call_result) == ("add", '{"a":1}', "done")


def test_spring_ai_has_clients_tools_and_searches() -> None:
    """As its documentation describes them: every value a text, the operation `framework` but for models."""
    framework = {"gen_ai.operation.name": "framework", "gen_ai.system": "spring_ai"}
    run = framework | {"spring.ai.kind": "chat_client", "spring.ai.chat.client.conversation.id": "s1"}
    agent = seen(span_of(run))
    assert (agent.operation_name, agent.conversation_id) == ("invoke_workflow", "s1")
    called = {"spring.ai.tool.definition.name": "add", "spring.ai.tool.call.arguments": '{"a": 1}'}
    of_tool = framework | {"spring.ai.kind": "tool_call", "spring.ai.tool.call.result": '"done"'} | called
    start, end = call_of(of_tool)
    assert (start.display_name, start.inputs, end.output) == ("add", '{"a":1}', '"done"')
    found = {"db.vector.query.content": "hello", "db.vector.query.response.documents": '["hi"]'}
    search = {"spring.ai.kind": "vector_store", "db.operation.name": "query"} | found
    start, end = call_of(search)
    assert (seen(span_of(search)).operation_name, start.inputs, end.output) == (
        "retrieval",
        '{"input":"hello"}',
        '["hi"]',
    )


def test_a_request_of_spring_ai_that_failed_has_the_model_that_was_asked() -> None:
    models = {"gen_ai.request.model": "m", "gen_ai.response.model": "none", "gen_ai.operation.name": "chat"}
    agent = seen(span_of(models, scope="org.springframework.boot"))
    assert (agent.operation_name, agent.request_model, agent.response_model) == ("chat", "m", "m")
