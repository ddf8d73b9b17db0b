"""The conversation of a call as the API tells it: of calls of SDKs and of spans, alone and in lists of columns."""

import json
from typing import Any

import httpx

from tests.conftest import Wire
from tests.support.chats import Chats
from tests.support.otlp import Exporter, request, span
from tests.support.server import HeddleProcess

OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "gpt-4o",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "Hi",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "find",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"q": 1}',
    "llm.tools.0.tool.json_schema": '{"type": "function", "function": {"name": "find"}}',
    "input.value": '{"messages": [{"lc": 1, "kwargs": {}}]}',
    "output.value": "ChatResult(...)",
}
MLFLOW = {
    "mlflow.spanType": '"CHAT_MODEL"',
    "mlflow.spanInputs": '{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}',
    "mlflow.spanOutputs": '{"choices": [{"message": {"role": "assistant", "content": "Yo"}, "finish_reason": "stop"}]}',
}
VERCEL = {
    "ai.operationId": "ai.generateObject.doGenerate",
    "ai.prompt.messages": '[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]',
    "ai.response.object": '{"city": "Rome"}',
    "ai.response.finishReason": "stop",
}
CHAIN = {"openinference.span.kind": "CHAIN", "input.value": '{"q": "Hi"}', "output.value": "Yo"}


def text(content: str) -> dict[str, Any]:
    """A part."""
    return {"type": "text", "content": content}


def exported(server: HeddleProcess, project: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """The conversation of a span with these attributes."""
    exporter = Exporter(server.url, project)
    assert not exporter.export(request(span(attributes=attributes))).HasField("partial_success")
    body = {"project_id": project, "id": f"{1:016x}", "include_conversation": True}
    call = exporter.client.post("/call/read", json=body).json()["call"]
    found: dict[str, Any] = call["conversation"]
    return found


def test_spans_of_openinference(server: HeddleProcess, project: str) -> None:
    call = {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": 1}}
    answer = {"role": "assistant", "parts": [call]}
    assert exported(server, project, OPENINFERENCE) == {
        "kind": "llm",
        "is_chat": True,
        "messages": [{"role": "system", "parts": [text("Be brief")]}, {"role": "user", "parts": [text("Hi")]}],
        "choices": [{"messages": [answer], "finish_reason": "", "logprobs": None}],
        "tools": [{"type": "function", "function": {"name": "find"}}],
    }


def test_spans_of_mlflow(server: HeddleProcess, project: str) -> None:
    found = exported(server, project, MLFLOW)
    answer = {"role": "assistant", "parts": [text("Yo")], "finish_reason": "stop"}
    assert found["is_chat"] and found["messages"] == [{"role": "user", "parts": [text("Hi")]}]
    assert found["choices"] == [{"messages": [answer], "finish_reason": "stop", "logprobs": None}]


def test_spans_of_the_vercel_ai_sdk(server: HeddleProcess, project: str) -> None:
    found = exported(server, project, VERCEL)
    assert found["messages"] == [{"role": "user", "parts": [text("Hi")]}]
    assert [one["parts"] for one in found["choices"][0]["messages"]] == [[text('{"city":"Rome"}')]]


def test_instructions_do_not_hide_what_else_a_span_holds(server: HeddleProcess, project: str) -> None:
    """Of a library that no convention knows."""
    names = {"gen_ai.operation.name": "chat", "gen_ai.system_instructions": "Be brief"}
    found = exported(server, project, {**names, "input": '[{"role": "user", "content": "Hi"}]', "output": "Yo"})
    assert text("Hi") in [part for one in found["messages"] for part in one["parts"]]
    assert found["choices"][0]["messages"] == [{"role": "assistant", "parts": [text("Yo")]}]
    alone = exported(server, project, names)
    assert alone["messages"] == [{"role": "system", "parts": [text("Be brief")]}]


def test_steps_around_models_are_no_chat(server: HeddleProcess, project: str) -> None:
    found = exported(server, project, CHAIN)
    assert not found["is_chat"]


def test_calls_of_sdks_with_chosen_columns(wire: Wire) -> None:
    chats = Chats(wire)
    chats.rich("thread")
    chats.call({"question": "Why?"}, {"answer": 42}, tokens=0)
    chats.send()
    body = {"project_id": wire.project, "columns": ["id"], "include_conversation": True}
    answer = wire.client.post("/calls/stream_query", json=body)
    rich, plain = (json.loads(line) for line in answer.text.splitlines())
    for call in (rich, plain):
        assert call["inputs"] == call["attributes"] == {} and call["output"] is None
        assert set(call["summary"]) == {"weave"}
    found = rich["conversation"]
    assert [one["role"] for one in found["messages"]] == ["system", "user", "assistant", "tool"]
    assert [part["type"] for part in found["messages"][1]["parts"]] == ["text", "file"]
    assert found["messages"][1]["parts"][1]["modality"] == "image"
    assert [part["type"] for part in found["messages"][2]["parts"]] == ["reasoning", "tool_call"]
    (result,) = found["messages"][3]["parts"]
    assert result["id"] == "c1" and result["response"] == [text('{"temperature": 21}')]
    assert found["choices"][0]["logprobs"] and found["tools"][0]["function"]["name"] == "get_weather"
    assert plain["conversation"] == {
        "kind": "llm",
        "is_chat": False,
        "messages": [{"role": "user", "parts": [text("Why?")]}],
        "choices": [
            {
                "messages": [{"role": "assistant", "parts": [{"type": "data", "content": {"answer": 42}}]}],
                "finish_reason": "",
                "logprobs": None,
            }
        ],
        "tools": [],
    }
    without: httpx.Response = wire.client.post("/calls/stream_query", json={"project_id": wire.project})
    assert "conversation" not in json.loads(without.text.splitlines()[0])
