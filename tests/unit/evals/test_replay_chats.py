"""The chat that a stored call holds, in the forms in which clients write it."""

import json
from typing import Any

import pytest

from heddle.evals.replay.chats import Chat, read_answer, read_chat

USER = {"role": "user", "content": "q"}


def chat(inputs: Any, attributes: Any = None) -> Chat:
    """The chat of a call that must have one."""
    found = read_chat(inputs, attributes or {})
    assert isinstance(found, Chat), found
    return found


def test_a_patched_openai_call_keeps_what_was_given() -> None:
    found = chat(
        {
            "self": {"client": {"base_url": "http://x/v1/"}},
            "messages": [USER],
            "model": "tiny",
            "stream": True,
            "timeout": "NOT_GIVEN",
            "temperature": 0.5,
            "top_p": "NOT_GIVEN",
            "max_tokens": "many",
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "_weave_stream_start_time": 1.5,
        }
    )
    assert found.messages == [USER] and found.model == "tiny"
    assert found.fields == {"temperature": 0.5, "tools": [{"type": "function", "function": {"name": "f"}}]}


def test_tool_turns_stay_whole() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    assert chat({"messages": messages}).messages == [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_messages_in_a_text_are_read_as_a_body_is() -> None:
    assert chat({"messages": '[{"role": "user", "content": "\\ud800"}]'}).messages == [
        {"role": "user", "content": "\ufffd"}
    ]
    deep = "[" * 500 + "]" * 500
    found = read_chat({"model": "m", "messages": f'[{{"role": "user", "content": "q", "tool_calls": {deep}}}]'}, {})
    assert isinstance(found, str), "one call that is nested too deep ended the replay of all"


def test_a_stored_prompt_and_its_variables_go_along() -> None:
    found = chat({"model": "m", "messages": [], "prompt": "greeting:v1", "template_vars": {"name": "Ada"}})
    assert (found.prompt, found.variables, found.messages) == ("greeting:v1", {"name": "Ada"}, [])


def test_anthropic_messages_become_a_chat() -> None:
    found = chat(
        {
            "model": "claude",
            "max_tokens": 100,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        }
    )
    assert found.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab"}]
    assert found.fields == {"max_tokens": 100}


def test_openai_responses_become_a_chat() -> None:
    assert chat({"model": "m", "input": "q", "instructions": "Be kind."}).messages == [
        {"role": "system", "content": "Be kind."},
        USER,
    ]
    listed = [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]
    assert chat({"model": "m", "input": listed}).messages == [USER]


def test_messages_of_the_genai_conventions_become_a_chat() -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "q"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"x": 1}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"y": 2}}]},
    ]
    attributes = {"model": "gpt", "system": ["Be exact."], "model_parameters": {"temperature": 0.1, "model": "gpt-4o"}}
    for stored in (messages, json.dumps(messages)):
        found = chat({"gen_ai.input.messages": stored}, attributes)
        assert found.messages == [
            {"role": "system", "content": "Be exact."},
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": '{"y": 2}'},
        ]
        assert found.model == "gpt-4o" and found.fields == {"temperature": 0.1}


def test_the_name_of_a_provider_is_no_system_message() -> None:
    assert chat({"gen_ai.prompt": [USER]}, {"system": "openai", "model": "m"}).messages == [USER]


def test_openinference_messages_are_unwrapped() -> None:
    assert chat({"llm.input_messages": [{"message": USER}]}).messages == [USER]
    assert chat({"messages": "[" + json.dumps(USER) + "]"}).messages == [USER]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({}, "it holds no chat request"),
        (None, "it holds no chat request"),
        ({"question": "x"}, "it holds no chat request"),
        ({"input": "text"}, "it holds no chat request"),
        ({"messages": []}, "its list of messages is empty"),
        ({"messages": ["q"]}, "its message 0 has no valid role"),
        ({"messages": [USER, {"role": "robot", "content": ""}]}, "its message 1 has no valid role"),
        ({"messages": [{"role": "user", "content": {"x": 1}}]}, "its message 0 has content that is neither"),
        ({"messages": [{"role": "user"}]}, "its message 0 is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "its message 0 has a part that"),
        ({"messages": [{"role": "user", "parts": [{"type": "blob"}]}]}, "its message 0 has a part of type 'blob'"),
    ],
)
def test_what_holds_no_chat_says_why(inputs: Any, reason: str) -> None:
    found = read_chat(inputs, {})
    assert isinstance(found, str) and found.startswith(reason)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        (None, None),
        ({"choices": [{"message": {"content": "hi"}}]}, "hi"),
        (
            {"choices": [{"message": {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}}]},
            '[{"type": "tool_call", "id": "c", "name": "f"}]',
        ),
        ({"generations": [[{"text": "Yo", "message": {"lc": 1, "kwargs": {"content": "Yo"}}}]]}, "Yo"),
        ({"ai.response": {"finishReason": "stop", "text": "Yo"}}, "Yo"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "x"}]}]}, "x"),
        ({"gen_ai.completion": '[{"role": "assistant", "content": "y"}]'}, "y"),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "z"}]}]}, "z"),
        ({"anything": 1}, None),
        (3, None),
    ],
)
def test_the_text_of_an_answer_is_found_in_each_form(output: Any, text: str | None) -> None:
    assert read_answer(output) == text
