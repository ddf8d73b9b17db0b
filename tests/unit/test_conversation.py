"""The conversation of a call: every library's way of writing it is one list of messages."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.wire.conversation.call import Conversation, of_call, of_span, of_value
from heddle.wire.conversation.messages import text_message
from heddle.wire.spans import AgentSpan
from tests.support.selection import examples

USER = ["user", "Hi"]
WIRES: dict[str, tuple[Any, Any, list[list[str]]]] = {
    "chat completions": (
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"choices": [{"message": {"role": "assistant", "content": "Yo", "reasoning": "Hm"}}]},
        [USER, ["assistant", "reasoning:Hm", "Yo"]],
    ),
    "responses": (
        {"input": "Hi", "instructions": "Be brief"},
        {
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yo"}]},
                {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
            ]
        },
        [["system", "Be brief"], USER, ["assistant", "reasoning:Hm", "Yo", 'call:find {"q":1}']],
    ),
    "anthropic with system messages in the middle": (
        {
            "system": [{"type": "text", "text": "Be brief"}],
            "messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Note"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Yo"}]},
        [["system", "Be brief"], USER, ["system", "Note"], ["assistant", "Yo"]],
    ),
    "anthropic": (
        {
            "system": "Be brief",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "three"}]},
            ],
        },
        {
            "role": "assistant",
            "type": "message",
            "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Yo"}],
        },
        [
            ["system", "Be brief"],
            USER,
            ["assistant", 'call:find {"q":1}'],
            ["user", "result:three"],
            ["assistant", "reasoning:Hm", "Yo"],
        ],
    ),
    "google": (
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "config": {"system_instruction": "Be brief"}},
        {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [{"text": "Yo"}, {"function_call": {"name": "find", "args": {}}}],
                    }
                }
            ]
        },
        [["system", "Be brief"], USER, ["assistant", "Yo", "call:find {}"]],
    ),
    "genai conventions": (
        {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]},
        {
            "gen_ai.output.messages": [
                {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "find", "arguments": {}}]}
            ]
        },
        [USER, ["assistant", "call:find {}"]],
    ),
    "older conventions": (
        {"gen_ai.prompt": [{"role": "user", "content": "Hi"}]},
        {"gen_ai.completion": [{"content": "Yo"}]},
        [USER, ["assistant", "Yo"]],
    ),
    "langchain": (
        {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Hi"}}]]},
        {"generations": [[{"text": "Yo", "message": {"lc": 1, "id": ["AIMessage"], "kwargs": {"content": "Yo"}}}]]},
        [USER, ["assistant", "Yo"]],
    ),
    "langgraph": (
        {"messages": [{"type": "human", "content": "Hi"}]},
        {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Yo"}]},
        [USER, ["assistant", "Yo"]],
    ),
    "vercel": (
        {"ai.prompt": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}},
        {"ai.response": {"text": "Yo"}},
        [USER, ["assistant", "Yo"]],
    ),
    "langchain by weave": (
        {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Hi", "type": "human"}}]]},
        {
            "id": "1",
            "run_type": "llm",
            "outputs": {"generations": [[{"text": "Yo", "message": {"lc": 1, "kwargs": {"content": "Yo"}}}]]},
        },
        [USER, ["assistant", "Yo"]],
    ),
    "a step of langgraph": (
        {"messages": [{"type": "human", "data": {"content": "Hi", "type": "human"}}]},
        [{"graph": None, "update": {"messages": [{"type": "ai", "data": {"content": "Yo", "type": "ai"}}]}}],
        [USER, ["assistant", "Yo"]],
    ),
    "llamaindex": (
        {"messages": [{"role": "MessageRole.USER", "blocks": [{"text": "Hi"}]}]},
        {
            "message": {
                "role": "assistant",
                "additional_kwargs": {"tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}]},
                "blocks": [{"tool_call_id": "c1", "tool_name": "find", "tool_kwargs": "{}"}],
            }
        },
        [USER, ["assistant", "call:find {}"]],
    ),
    "bedrock": (
        {"system": [{"text": "Be brief"}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
        {
            "output": {
                "message": {
                    "role": "assistant",
                    "content": [{"text": "Yo"}, {"toolUse": {"toolUseId": "c1", "name": "find", "input": {}}}],
                }
            },
            "stopReason": "tool_use",
        },
        [["system", "Be brief"], USER, ["assistant", "Yo", "call:find {}"]],
    ),
    "vercel with tools and an object": (
        {"ai.prompt": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}},
        {
            "ai.response": {
                "finishReason": "tool-calls",
                "toolCalls": [{"toolCallId": "c1", "toolName": "find", "input": "{}"}],
                "object": {"a": 1},
            }
        },
        [USER, ["assistant", '{"a":1}', "call:find {}"]],
    ),
    "plain": ({"prompt": "Hi"}, "Yo", [USER, ["assistant", "Yo"]]),
    "google's parts without roles": ({"contents": [{"text": "Hi"}]}, "Yo", [USER, ["assistant", "Yo"]]),
    "batches of pairs": ({"messages": [[["human", "Hi"]]]}, "Yo", [USER, ["assistant", "Yo"]]),
    "a refusal": (
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"role": "assistant", "content": None, "refusal": "No"},
        [USER, ["assistant", "refusal:No"]],
    ),
    "a provider's own tool and a refusal": (
        {"input": "Hi"},
        {
            "output": [
                {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "q"}},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
            ]
        },
        [USER, ["assistant", 'call:web_search {"action":{"query":"q"}}'], ["assistant", "refusal:No"]],
    ),
    "an answer that is spoken": (
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"role": "assistant", "content": None, "audio": {"id": "a", "data": "AAAA", "transcript": "Yo"}},
        [USER, ["assistant", "blob:AAAA", "Yo"]],
    ),
}


def part_told(part: dict[str, Any]) -> str:
    """A part in one line."""
    kind = part["type"]
    if kind == "text":
        return str(part["content"])
    if kind == "tool_call":
        return f"call:{part['name']} {json.dumps(part.get('arguments'), separators=(',', ':'))}"
    if kind == "tool_call_response":
        return "result:" + " ".join(map(part_told, part["response"]))
    return f"{kind}:{part.get('content', part.get('uri', part.get('name', '')))}"


def told(found: Conversation) -> list[list[str]]:
    """Roles and parts of the messages and of the first choice."""
    messages = [*found.messages, *(found.choices[0].messages if found.choices else [])]
    return [[one["role"], *map(part_told, one["parts"])] for one in messages]


@pytest.mark.parametrize("name", WIRES)
def test_every_wire_is_the_same_conversation(name: str) -> None:
    inputs, output, expected = WIRES[name]
    found = of_call(inputs, output, {"kind": "llm"}, is_model=True)
    assert found.is_chat and told(found) == expected
    # The same as JSON text, as exporters of spans write it.
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in inputs.items()}
    answer = output if isinstance(output, str) else json.dumps(output)
    assert told(of_call(texts, answer, {}, is_model=True)) == expected


ANSWER = {"choices": [{"message": {"role": "assistant", "content": "Yo"}}]}
PICTURE = {"type": "image_url", "image_url": {"url": "https://x/a.png"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ANSWER, [["assistant", "Yo"]]),
        ([{"type": "text", "text": "Yo"}, PICTURE], [["", "Yo", "uri:https://x/a.png"]]),
        ({"type": "text", "text": "Yo"}, [["", "Yo"]]),
        *[(value, None) for value in ([{"type": "text", "text": ""}], {"a": 1}, [1], "text", [])],
        ({"role": "admin", "content": "x"}, None),
        ([{"type": "text", "text": "Yo"}, {"a": 1}], None),
    ],
)
def test_a_value_is_a_conversation_when_it_is_an_answer_or_blocks(value: Any, expected: Any) -> None:
    for given_value in (value, json.dumps(value)):
        found = of_value(given_value)
        assert (found and told(found)) == expected


def test_a_span_tells_its_messages_alternatives_and_instructions() -> None:
    user, one, two = (
        text_message(role, text) for role, text in (("user", "Hi"), ("assistant", "A"), ("assistant", "B"))
    )
    span = AgentSpan(
        "team",
        "t",
        "s",
        1,
        2,
        operation_name="chat",
        input_messages=[user],
        output_messages=[one, two],
        system_instructions=["Be brief"],
    )
    found = of_span(span, is_agent=False)
    assert found is not None and told(found) == [["system", "Be brief"], USER, ["assistant", "A", "B"]]
    assert len(found.choices) == 1
    found = of_span(replace(span, request_choice_count=2), is_agent=False)
    assert found is not None and [told(Conversation([], [each])) for each in found.choices] == [
        [["assistant", "A"]],
        [["assistant", "B"]],
    ]
    found = of_span(replace(span, input_messages=[text_message("system", "Own"), user], output_messages=[]), False)
    assert found is not None and told(found) == [["system", "Own"], USER] and found.choices == []
    found = of_span(replace(span, finish_reasons=["length"]), is_agent=False)
    assert found is not None and [choice.finish_reason for choice in found.choices] == ["length"]
    agent = replace(span, operation_name="invoke_agent")
    assert of_span(agent, is_agent=False) is None and of_span(agent, is_agent=True) is not None
    assert of_span(replace(span, input_messages=[], output_messages=[], system_instructions=[]), False) is None


def test_a_request_within_another_value_is_read() -> None:
    found = of_call({"request": {"prompt": "Hi", "system": "Be brief"}}, "Yo", {}, is_model=True)
    assert told(found) == [["system", "Be brief"], USER, ["assistant", "Yo"]]


def test_an_answer_that_repeats_the_question() -> None:
    told_all = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    task = {"messages": told_all, "raw": "Yo"}
    assert told(of_call({"agent": {}}, task)) == [["system", "Be brief"], USER, ["assistant", "Yo"]]
    state = {"messages": [*told_all, {"role": "assistant", "content": "Yo"}]}
    found = of_call({"messages": told_all[1:]}, state)
    assert [one["role"] for one in found.messages] == ["user"]
    assert [one["role"] for one in found.choices[0].messages][-1] == "assistant"


def test_tools_are_no_chat() -> None:
    result = {"type": "tool", "content": "18 degrees", "tool_call_id": "c1"}
    for inputs, output in (({"city": "Paris"}, {"output": result}), ({"input": [{"type": "tool_call"}]}, [result])):
        assert not of_call(inputs, output).is_chat
    assert not of_call({"messages": [{"role": "user", "content": "Hi"}]}, "Yo", {}, False, is_tool=True).is_chat


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ({"question": "Hi"}, "Yo"),
        ({"input": 3}, {"content": 4}),
        (None, [1, {"role": 3}]),
        ({"user": {"role": "admin", "name": "ada"}}, {"role": "admin", "name": "ada"}),
        ({}, {"messages": [1, 2]}),
        ({"input.value": {"question": "Hi"}}, {"output.value": [{"answer": "Yo"}]}),
        # A conditional edge of LangGraph.
        ({"messages": [{"type": "human", "content": "Hi"}]}, "__end__"),
        ({"input.value": {"messages": [{"type": "human", "content": "Hi"}]}}, {"output.value": "__end__"}),
        ({"input.value": {"messages": [{"type": "human", "content": "Hi"}]}}, {"output.value": '"__end__"'}),
    ],
)
def test_what_went_to_no_model_is_no_chat(inputs: Any, output: Any) -> None:
    found = of_call(inputs, output)
    assert not found.is_chat
    assert [one["role"] for one in found.messages] == (["user"] if inputs else [])
    assert len(found.choices) == 1 and found.choices[0].messages[0]["role"] == "assistant"


@pytest.mark.parametrize("result", ["Yo", '{"city":"Paris"}'])
def test_the_result_of_an_agent_is_its_answer_and_is_told_once(result: str) -> None:
    """pydantic-ai writes all messages, the last one included, and the result beside."""
    said = [
        {"role": role, "parts": [{"type": "text", "content": text}]}
        for role, text in (("user", "Hi"), ("assistant", "Yo"))
    ]
    found = of_call({"pydantic_ai.all_messages": said}, {"final_result": result})
    (answer,) = found.choices[0].messages
    if result == "Yo":
        assert (len(found.messages), answer["parts"]) == (1, said[1]["parts"])
    else:
        assert (len(found.messages), answer["parts"]) == (2, [{"type": "data", "content": {"city": "Paris"}}])


MESSAGE = {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "ToolMessage"]}
MESSAGE |= {"kwargs": {"status": "success", "content": "18 degrees", "tool_call_id": "c1"}}


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"args": ["Paris"], "kwargs": {}}, [{"type": "text", "content": "Paris"}]),
        ({"args": [], "kwargs": {"city": "Paris"}}, [{"type": "text", "content": "Paris"}]),
        ({"args": [1, 2], "kwargs": {}}, [{"type": "data", "content": {"it": [1, 2]}}]),
        ({"args": [1], "kwargs": {"b": 2}}, [{"type": "data", "content": {"it": {"args": [1], "kwargs": {"b": 2}}}}]),
        ({"output": MESSAGE}, [{"type": "text", "content": "18 degrees"}]),
    ],
)
def test_arguments_and_results_without_what_is_around_them(value: Any, parts: list[Any]) -> None:
    found = of_call({"it": value}, {"it": value}, {}, False, is_tool=True)
    assert [message["parts"] for message in found.messages] == [parts]
    assert [message["parts"] for message in found.choices[0].messages] == [parts]


def test_a_failed_call_answered_nothing() -> None:
    for output in (None, {}):
        assert of_call({"messages": [{"role": "user", "content": "Hi"}]}, output, {}, True).choices == []
        assert of_call({"question": "Hi"}, output).choices == []


def test_alternatives_and_the_probabilities_of_their_tokens() -> None:
    tokens = [{"token": "a", "logprob": -0.1}]
    choices = [
        {
            "message": {"role": "assistant", "content": "one"},
            "finish_reason": "length",
            "logprobs": {"content": tokens},
        },
        {"message": {"role": "assistant", "content": "two"}, "finish_reason": "stop", "logprobs": None},
    ]
    found = of_call({"messages": [{"role": "user", "content": "Hi"}]}, {"choices": choices})
    assert [(one.finish_reason, one.logprobs) for one in found.choices] == [("length", tokens), ("stop", None)]
    assert [one.messages[0]["parts"][0]["content"] for one in found.choices] == ["one", "two"]


def test_media_of_every_wire() -> None:
    png, wav = "iVBORw0KGgo=", "UklGRg=="
    stored = {"_type": "CustomWeaveType", "weave_type": {"type": "PIL.Image.Image"}, "files": {"image.png": "digest"}}
    blocks: list[tuple[Any, dict[str, Any]]] = [
        ({"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}, {"type": "uri", "modality": "image"}),
        ({"type": "image_url", "image_url": "data:image/png;base64,AA"}, {"type": "uri", "modality": "image"}),
        ({"type": "input_image", "image_url": "https://a.example/x.png"}, {"type": "uri", "modality": "image"}),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": png},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
            {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": wav},
        ),
        (
            {"inline_data": {"mime_type": "image/png", "data": png}},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": png},
        ),
        ({"fileData": {"fileUri": "gs://b/x.pdf", "mimeType": "application/pdf"}}, {"type": "uri", "modality": "file"}),
        (
            {"image": {"format": "png", "source": {"bytes": png}}},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": png},
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"type": "file", "modality": "file", "name": "file-1"}),
        ({"type": "image_url", "image_url": {"url": stored}}, {"type": "file", "files": {"image.png": "digest"}}),
        (stored, {"type": "file", "modality": "image", "files": {"image.png": "digest"}}),
        ({"type": "blob", "modality": "image", "mime_type": "image/png", "content": png}, {"type": "blob"}),
        ({"type": "uri", "modality": "audio", "uri": "https://a.example/x.mp3"}, {"modality": "audio"}),
        ({"type": "something", "else": 1}, {"type": "data", "content": {"type": "something", "else": 1}}),
    ]
    for block, expected in blocks:
        found = of_call({"messages": [{"role": "user", "content": [block]}]}, None).messages
        (part,) = found[0]["parts"]
        assert {key: part.get(key) for key in expected} == expected, block


def test_tools_of_every_wire() -> None:
    function = {"name": "find", "description": "Finds", "parameters": {"type": "object"}}
    named = {"name": "find", "description": "Finds"}
    offered: list[Any] = [
        [{"type": "function", "function": function}],
        [{"type": "function", **function}],
        [{**named, "input_schema": {"type": "object"}}],
        [{"function_declarations": [function]}],
        [{"toolSpec": {**named, "inputSchema": {"json": {"type": "object"}}}}],
        [json.dumps({"type": "function", **function})],
    ]
    for tools in offered:
        said = {"messages": [{"role": "user", "content": "Hi"}]}
        for inputs in (
            {**said, "tools": tools},
            {**said, "kwargs": {"tools": tools}},
            {**said, "config": {"tools": tools}},
        ):
            assert of_call(inputs, None).tools == [{"type": "function", "function": function}], tools


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "Hi", "user", "[{", '{"role": "ai"}', '"x"']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "type",
                    "content",
                    "parts",
                    "messages",
                    "tool_calls",
                    "function",
                    "kwargs",
                    "lc",
                    "id",
                    "message",
                ]
                + [
                    "choices",
                    "generations",
                    "output",
                    "outputs",
                    "input",
                    "text",
                    "data",
                    "gen_ai.prompt",
                    "candidates",
                ]
                + ["input.value", "ai.response", "toolCalls", "response", "image_url", "tools", "system", "0", "source"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(500), deadline=None)
@given(values, values, values, st.booleans())
def test_any_value_is_read(inputs: Any, output: Any, attributes: Any, is_model: bool) -> None:
    found = of_call(inputs, output, attributes, is_model)
    for one in (*found.messages, *(message for choice in found.choices for message in choice.messages)):
        assert isinstance(one["role"], str) and one["parts"]
        assert {part["type"] for part in one["parts"]} <= {
            *("text", "reasoning", "refusal", "tool_call", "tool_call_response", "uri", "blob", "file", "data")
        }
    json.dumps([found.messages, found.tools])


def test_deep_and_long_values() -> None:
    deep: Any = "x"
    for _ in range(190):
        deep = [deep]
    for inputs in ({"messages": deep}, {"messages": [{"role": "user", "content": deep}]}, {"input": "[" * 5000}):
        of_call(inputs, deep, {}, True)
    many = [{"role": "user", "content": "Hi"}] * 50_000
    assert len(of_call({"messages": many}, None).messages) == 50_000


def test_embeddings_are_no_conversation() -> None:
    made = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}
    found = of_call({"input": ["Hi", "Yo"]}, made, {"kind": "llm"}, is_model=True)
    assert not found.is_chat
    assert found.messages[0]["parts"] == [{"type": "data", "content": {"input": ["Hi", "Yo"]}}]
    assert found.choices[0].messages[0]["parts"] == [{"type": "data", "content": made}]


def test_a_text_completion_is_one() -> None:
    found = of_call({"prompt": "Hi"}, {"choices": [{"index": 0, "text": "Yo", "finish_reason": "stop"}]}, {})
    assert found.is_chat and found.messages == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    assert [one["parts"] for one in found.choices[0].messages] == [[{"type": "text", "content": "Yo"}]]


def test_an_entry_of_choices_says_why_it_ended() -> None:
    entry = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "hi"}}
    found = of_call({"gen_ai.input.messages": [{"role": "user", "content": "?"}]}, {"gen_ai.output.messages": [entry]})
    assert [choice.finish_reason for choice in found.choices] == ["length"]
