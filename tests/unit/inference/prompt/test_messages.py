"""Messages of every kind, as they come and as templates see them."""

from typing import Any

import pytest
from pydantic import ValidationError

from heddle.errors import InvalidRequest
from heddle.inference.prompt.messages import MEDIA_TYPES, ChatMessage, message_text, template_messages


def plain(**fields: Any) -> dict[str, Any]:
    """One message as a template sees it."""
    return template_messages([ChatMessage.model_validate(fields)])[0]


def refusal(**fields: Any) -> InvalidRequest:
    """How one message is refused."""
    with pytest.raises(InvalidRequest) as caught:
        template_messages([ChatMessage(role="user", content="fine"), ChatMessage.model_validate(fields)])
    return caught.value


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant", "tool", "function", "alien"])
def test_every_role_keeps_its_text_and_name(role: str) -> None:
    assert plain(role=role, content="x", name="n") == {"role": role, "content": ["x"], "name": "n"}


def test_parts_of_text_of_every_type() -> None:
    message = plain(
        role="user",
        content=[
            "bare",
            {"type": "text", "text": "a", "cache_control": {}},
            {"type": "input_text", "text": "b"},
            {"type": "output_text", "text": "c"},
            {"type": "refusal", "refusal": "d"},
            {"type": "thinking", "thinking": "e"},
        ],
    )
    assert message["content"] == ["bare", "a", "b", "c", "d", "e"]
    assert message_text(message) == "bare\na\nb\nc\nd\ne"


@pytest.mark.parametrize("kind", sorted(MEDIA_TYPES))
def test_other_media_are_refused_by_name(kind: str) -> None:
    error = refusal(role="user", content=["a", {"type": kind, kind: {"url": "data:,"}}])
    assert error.param == "messages.1.content.1"
    assert f"'{kind}'" in error.reason and "only reads text" in error.reason


def test_an_unknown_part_is_refused_by_name() -> None:
    error = refusal(role="user", content=[{"type": "poem", "text": "x"}])
    assert error.param == "messages.1.content.0"
    assert "'poem'" in error.reason


@pytest.mark.parametrize("content", [None, []])
def test_no_content_is_an_empty_text(content: list[str] | None) -> None:
    assert message_text(plain(role="assistant", content=content)) == ""
    assert message_text(plain(role="assistant")) == ""


def test_a_refusal_stands_in_for_content() -> None:
    assert plain(role="assistant", content=None, refusal="no") == {"role": "assistant", "content": ["no"]}
    assert plain(role="assistant", content="yes", refusal="no")["content"] == ["yes"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [('{"a": [1, "x"]}', {"a": [1, "x"]}), ({"a": 1}, {"a": 1}), ("", {}), (" ", {}), (None, {})],
)
def test_arguments_of_calls_become_objects(arguments: Any, value: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert plain(role="assistant", content=None, tool_calls=[call])["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": value}}
    ]


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "[" * 100_000])
def test_arguments_that_are_no_object_become_one(arguments: str) -> None:
    """Or the history of an agent whose model once wrote them would be refused for ever."""
    calls = [{"function": {"name": "f"}}, {"function": {"name": "f", "arguments": arguments}}]
    read = plain(role="assistant", tool_calls=calls)["tool_calls"]
    assert [call["function"]["arguments"] for call in read] == [{}, {"not_json": arguments}]
    (old,) = plain(role="assistant", function_call={"name": "f", "arguments": arguments})["tool_calls"]
    assert old["function"]["arguments"] == {"not_json": arguments}


def test_the_old_form_of_a_call_is_a_tool_call() -> None:
    message = plain(role="assistant", content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert "function_call" not in message


def test_a_tool_result_keeps_the_id_of_its_call() -> None:
    message = plain(role="tool", content="7", tool_call_id="c1")
    assert message == {"role": "tool", "content": ["7"], "tool_call_id": "c1"}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(name: str) -> None:
    message = plain(role="assistant", content="x", **{name: "because"})
    assert (message["reasoning"], message["reasoning_content"]) == ("because", "because")


def test_keys_of_the_clients_own_reach_the_template() -> None:
    assert plain(role="alien", content="x", mood={"a": 1})["mood"] == {"a": 1}


@pytest.mark.parametrize(
    ("message", "location"),
    [
        ({"content": "x"}, ("role",)),
        ({"role": "", "content": "x"}, ("role",)),
        ({"role": 3}, ("role",)),
        ({"role": "user", "content": 3}, ("content",)),
        ({"role": "user", "content": [{"text": "no type"}]}, ("content",)),
        ({"role": "user", "content": [{"type": "text"}]}, ("content",)),
        ({"role": "user", "name": 3}, ("name",)),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, ("tool_calls", 0, "function")),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            ("tool_calls", 0, "type"),
        ),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}, ("tool_calls", 0)),
    ],
)
def test_a_wrong_shape_is_a_failed_validation(message: dict[str, Any], location: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatMessage.model_validate(message)
    assert {error["loc"][: len(location)] for error in caught.value.errors()} == {location}
