"""Bodies of /v1/messages as chat requests."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.inference.chat.wire import ParsedRequest
from heddle.inference.messages.conversation import Conversation, InputMessage
from heddle.inference.messages.request import MESSAGES, read_user
from heddle.inference.prompt.messages import template_messages
from heddle.inference.prompt.opaque_reasoning import encode_reasoning
from tests.support.selection import examples

USER = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def read(messages: Any = USER, **fields: Any) -> ParsedRequest:
    """The chat request of a body."""
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    return MESSAGES.read(body)


def rendered(messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The messages as templates read them."""
    return template_messages(read(messages, **fields).chat.messages)


def test_texts_and_turns() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=ab;"},
        {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief"},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "remember"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    found = read(messages, system=system)
    assert template_messages(found.chat.messages) == [
        {"role": "system", "content": ["Be", "brief"]},
        {"role": "user", "content": ["a", "b", "<system-reminder>\nremember\n</system-reminder>"]},
        {"role": "assistant", "content": ["c"]},
        {"role": "user", "content": ["d"]},
    ]
    assert found.places == ("system", "messages.0", "messages.2", "messages.3")
    assert found.ignored == ("cache_control",)
    assert (found.chat.add_generation_prompt, found.chat.continue_final_message) == (True, False)
    assert rendered(USER, system="plain")[0] == {"role": "system", "content": ["plain"]}


def test_calls_results_and_thoughts_of_a_history() -> None:
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                CALL,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "18"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3", "content": "Error: no file", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t4"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    found = read(messages)
    shown = template_messages(found.chat.messages)
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    thoughts = {"reasoning": "hm", "reasoning_content": "hm"}
    assert shown[1] == {"role": "assistant", "content": ["I look."], "tool_calls": [call], **thoughts}
    assert [(message["tool_call_id"], message["content"]) for message in shown[2:6]] == [
        ("t1", ["18"]),
        ("t2", ["Error: gone"]),
        ("t3", ["Error: no file"]),
        ("t4", [""]),
    ]
    assert shown[2]["name"] == "f" and "name" not in shown[3]
    assert shown[6] == {"role": "user", "content": ["so?"]}
    assert found.ignored == ("redacted_thinking",)


def test_a_last_message_of_the_assistant_is_continued() -> None:
    found = read([*USER, {"role": "assistant", "content": "The answer is"}])
    assert (found.chat.add_generation_prompt, found.chat.continue_final_message) == (False, True)


def test_sealed_thoughts_come_back() -> None:
    block = {"type": "thinking", "thinking": "", "signature": encode_reasoning("so \U0001f642")}
    assert rendered([*USER, {"role": "assistant", "content": [block]}, *USER])[1]["reasoning"] == "so \U0001f642"


def test_sealed_thoughts_of_a_request_are_bounded() -> None:
    """A few kilobytes stood for four megabytes, as often as they were sent."""
    block = {"type": "thinking", "thinking": "", "signature": encode_reasoning("a" * (1 << 21))}
    with pytest.raises(
        InvalidRequest, match=r"messages\.1\.content\.2\.signature: opaque reasoning can have at most 4194304"
    ):
        rendered([*USER, {"role": "assistant", "content": [block] * 3}, *USER])


def test_documents_that_are_text_are_read() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}}
    parts = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "one"}]}}
    found = {"type": "search_result", "source": "http://x", "title": "R", "content": [{"type": "text", "text": "two"}]}
    assert rendered([{"role": "user", "content": [plain, parts, found]}])[0]["content"] == [
        "T\nbody",
        "one",
        "R\nhttp://x\ntwo",
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
    ],
)
def test_tools_and_choices(choice: Any, expected: Any, parallel: bool) -> None:
    chat = read(tools=[{**TOOL, "type": "custom", "strict": True}], tool_choice=choice).chat
    assert chat.tools is not None
    function = {"name": "f", "description": "d", "parameters": TOOL["input_schema"], "strict": True}
    assert chat.tools[0].model_dump(exclude_unset=True) == {"type": "function", "function": function}
    assert (chat.tool_choice, chat.parallel_tool_calls) == (expected, parallel)


def test_a_named_tool_and_no_tools() -> None:
    chat = read(tools=[TOOL], tool_choice={"type": "tool", "name": "f"}).chat
    assert chat.tool_choice is not None and not isinstance(chat.tool_choice, str)
    assert chat.tool_choice.function.name == "f"
    assert read(tools=[]).chat.tools is None


@pytest.mark.parametrize(
    ("thinking", "on"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
    ],
)
def test_thinking(thinking: Any, on: bool) -> None:
    chat = read(thinking=thinking).chat
    assert (chat.chat_template_kwargs, chat.include_reasoning) == ({"enable_thinking": on}, on)


def test_the_other_fields() -> None:
    schema = {"type": "object", "properties": {}}
    fields = {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": schema}}}
    chat = read(**fields, stop_sequences=["x"], temperature=0.5, top_p=0.9, top_k=3, seed=4, stream=True).chat
    assert (chat.reasoning_effort, chat.stop, chat.temperature, chat.top_p, chat.top_k, chat.seed, chat.stream) == (
        *("high", ["x"], 0.5, 0.9, 3, 4, True),
    )
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.json_schema == schema
    assert read(output_format={"type": "json_schema", "schema": schema}).chat.response_format == chat.response_format


def test_fields_without_effect_are_listed() -> None:
    tool = {**TOOL, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}
    found = read(
        tools=[tool, {**tool, "name": "g"}],
        thinking={"type": "enabled", "budget_tokens": 1024},
        context_management={"edits": []},
        service_tier="auto",
        output_config={"later": 1},
    )
    assert set(found.ignored) == {
        "context_management",
        "service_tier",
        "output_config.later",
        "thinking.budget_tokens",
        "tools.cache_control",
        "tools.eager_input_streaming",
    }


SESSION = "d03a14e2-e3e8-4961-9f7e-b6b5b9f6cfd6"


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        (None, (None, None)),
        ("ann", ("ann", None)),
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": SESSION}), ("d", SESSION)),
        (json.dumps({"device_id": "d", "account_uuid": "a", "session_id": SESSION}), ("a", SESSION)),
        (f"user_ab_account__session_{SESSION}", ("user_ab_account_", SESSION)),
        ("{broken", ("{broken", None)),
        ('{"a": 1}', ('{"a": 1}', None)),
    ],
)
def test_who_asks_and_in_which_session(user_id: str | None, expected: Any) -> None:
    assert read_user(user_id) == expected
    body = {"model": "m", "max_tokens": 9, "messages": USER, "metadata": {"user_id": user_id}}
    assert (read(metadata={"user_id": user_id}).chat.user, MESSAGES.read(body).thread_id) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"container": {"skills": []}}, "container"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages.0.content.0",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages.0.content.0.tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
            "messages.0.content.0.name",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
                        ],
                    }
                ]
            },
            "messages.0.content.0.content.0",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [1]}}]}
                ]
            },
            "messages.0.content.0.source.content.0",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param and param.split(".")[0] in caught.value.reason


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": "x"}, "max_tokens"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"system": 3}, "system"),
    ],
)
def test_wrong_types_name_their_places_with_status_400(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        read(**fields)
    assert caught.value.status == 400
    assert ".".join(map(str, caught.value.detail[0]["loc"])) == f"body.{place}"


RICH: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": encode_reasoning("so")},
                {"type": "text", "text": "x"},
                CALL,
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "1"}],
                    "is_error": True,
                },
                {"type": "document", "title": "T", "context": "c", "source": {"type": "content", "content": []}},
                {"type": "search_result", "source": "u", "title": "R", "content": [{"type": "text", "text": "2"}]},
            ],
        },
    ],
    "tools": [{**TOOL, "type": "custom", "strict": False}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
    "mcp_servers": [],
}


def places(value: Any) -> list[tuple[Any, ...]]:
    """Where something stands in a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key, *rest) for key, inner in items for rest in [(), *places(inner)]]


VALUES = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, "", "text", "\ud800", [], {}, [None], [[]], {"type": "x"}, [{}]]
)


@settings(deadline=None, max_examples=examples(200))
@given(place=st.sampled_from(places(RICH)), value=VALUES, leaves_out=st.booleans())
def test_bodies_that_are_wrong_somewhere_are_refused_as_requests(place: Any, value: Any, leaves_out: bool) -> None:
    body = copy.deepcopy(RICH)
    holder: Any = body
    for key in place[:-1]:
        holder = holder[key]
    if leaves_out:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    try:
        template_messages(MESSAGES.read(body).chat.messages)
    except (InvalidRequest, ValidationFailed) as error:
        assert error.status == 400 and error.reason


def test_turns_of_one_role_are_joined_in_place() -> None:
    """As many as a body has room for: a copy for each would take the square of their number."""
    conversation = Conversation()
    seen = set[int]()
    for number in range(100):
        thought = {"type": "thinking", "thinking": f"thought {number}", "signature": ""}
        block = {"type": "text", "text": str(number)}
        conversation.read(InputMessage.model_validate({"role": "assistant", "content": [thought, block]}), "messages.0")
        seen.add(id(conversation.messages[0].content))
    conversation.join_thoughts()
    (message,) = conversation.messages
    assert len(seen) == 1 and isinstance(message.content, list)
    assert [part.text for part in message.content] == [str(number) for number in range(100)]
    assert message.reasoning == "\n".join(f"thought {number}" for number in range(100))
