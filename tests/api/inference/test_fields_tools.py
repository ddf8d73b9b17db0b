"""Tools: every way of choosing, the parsed calls, their streams, and the round trip."""

import json
from typing import Any

import pytest

from tests.support.chat import USER, Chat, containing

CALLS = {"max_tokens": 240, "temperature": 1.0}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool with a closed object of these properties."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


F = tool("f", x={"enum": [1]})
G = tool("g", word={"enum": ["lamp", "rain"]})


def call_of(name: str, **arguments: Any) -> str:
    """How the shipped model writes a call, in the words of a grammar."""
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call> {json.dumps(chr(10) + text + chr(10))} </tool_call>"


def written(*parts: str) -> dict[str, Any]:
    """Fields that make the model write exactly these parts."""
    return {"structured_outputs": {"grammar": "start: " + " ".join(parts)}, "max_tokens": 120}


@pytest.mark.parametrize("stream", [False, True])
def test_required(chat: Chat, stream: bool) -> None:
    for seed in range(3):
        fields = {**CALLS, "tools": [F, G], "tool_choice": "required", "seed": seed}
        message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
        assert finish == "tool_calls" and message["tool_calls"]
        for call in message["tool_calls"]:
            assert set(call) == {"id", "type", "function"} and call["type"] == "function"
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            assert (name == "f" and arguments == {"x": 1}) or (name == "g" and arguments["word"] in ("lamp", "rain"))
        ids = [call["id"] for call in message["tool_calls"]]
        assert len(set(ids)) == len(ids) and all(ids)


@pytest.mark.parametrize("stream", [False, True])
def test_named(chat: Chat, stream: bool) -> None:
    """The finish reason of a named tool is `stop`."""
    choice = {"type": "function", "function": {"name": "g"}}
    fields = {**CALLS, "tools": [F, G], "tool_choice": choice, "seed": 5}
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "g" and json.loads(call["function"]["arguments"])["word"] in ("lamp", "rain")
    assert finish == "stop" and not message.get("content")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", None])
def test_auto_parses_what_the_model_writes(chat: Chat, choice: str | None, stream: bool) -> None:
    """Omitted or null with tools is auto."""
    fields = {**written(call_of("f", x=1)), "tools": [F, G]}
    fields |= {"tool_choice": choice} if choice else {}
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"x": 1})
    assert finish == "tool_calls" and not message.get("content")


@pytest.mark.parametrize("stream", [False, True])
def test_auto_with_text_before_the_call(chat: Chat, stream: bool) -> None:
    fields = {**written('"Let me see."', call_of("f", x=1)), "tools": [F]}
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    assert (message["content"] or "").strip() == "Let me see." and finish == "tool_calls"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]


@pytest.mark.parametrize("stream", [False, True])
def test_auto_without_a_call_is_text(chat: Chat, stream: bool) -> None:
    fields = {**written('"No call < here."'), "tools": [F]}
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    assert (message["content"], message.get("tool_calls") or [], finish) == ("No call < here.", [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_none_never_calls(chat: Chat, stream: bool) -> None:
    """Even when the model writes one, an explicit none yields text."""
    fields = {**written(call_of("f", x=1)), "tools": [F], "tool_choice": "none"}
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    assert not message.get("tool_calls") and finish == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls(chat: Chat, stream: bool) -> None:
    two = written(call_of("f", x=1), r'"\n"', call_of("g", word="lamp"))
    for parallel, names in ((True, ["f", "g"]), (None, ["f", "g"]), (False, ["f"])):
        fields = {**two, "tools": [F, G], "parallel_tool_calls": parallel}
        message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
        assert [call["function"]["name"] for call in message["tool_calls"]] == names and finish == "tool_calls"


def test_a_call_cut_by_length_is_text(chat: Chat) -> None:
    message, finish = whole(chat, **{**CALLS, "max_tokens": 6}, tools=[F], tool_choice="required")
    assert finish == "length" and not message.get("tool_calls")
    assert message["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_by_a_stop_string_ends_with_stop(chat: Chat, stream: bool) -> None:
    """Half a call is none: clients would run it."""
    fields = {
        "tools": [tool("weather", city={"type": "string"})],
        "tool_choice": "required",
        "stop": ["city"],
        "max_tokens": 80,
    }
    assert (streamed(chat, **fields) if stream else whole(chat, **fields))[1] == "stop"


def test_a_tool_without_parameters(chat: Chat) -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    bias = {**containing('"', -100), **containing("\n", -100)}
    fields = {"max_tokens": 60, "logit_bias": bias, "parallel_tool_calls": False}
    message, _ = whole(chat, **fields, tools=[bare], tool_choice="required")
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {})


def test_round_trip(chat: Chat) -> None:
    """The answer's message goes back as it came, with the tool's result."""
    fields = {**CALLS, "tools": [F], "seed": 1}
    message, _ = whole(chat, **fields, tool_choice="required", parallel_tool_calls=False)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done 17"}
    prompt = chat.prompt(messages=[*USER, message, result], tools=[F])
    assert prompt.count("<tool_call>") >= 1 and "done 17" in prompt


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"tools": []}, 400, "tools"),
        ({"tools": [], "tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": "auto"}, 400, "tool_choice"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "zzz"}}}, 400, "tool_choice"),
        ({"tools": [F], "tool_choice": "sometimes"}, 422, "tool_choice"),
        ({"tools": [{"type": "function"}]}, 422, "tools"),
        ({"tools": [{"type": "plant", "function": {"name": "f"}}]}, 422, "tools"),
        ({"tools": [{"type": "function", "function": {"name": 7}}]}, 422, "tools"),
        ({"tools": "f"}, 422, "tools"),
        ({"tools": [F, F]}, 400, "tools"),
    ],
    ids=[
        "empty",
        "required of none",
        "auto alone",
        "required alone",
        "unknown",
        "word",
        "no function",
        "type",
        "name",
        "text",
        "twice",
    ],
)
def test_tools_that_cannot_be(chat: Chat, fields: dict[str, Any], status: int, param: str) -> None:
    assert param in chat.refused(status, **fields)["param"]


NO_TOOLS: list[dict[str, Any]] = [
    {"tools": None},
    {"tool_choice": "none"},
    {"tool_choice": None, "tools": None},
    {"tools": [], "tool_choice": "none"},
    {"tools": [], "tool_choice": "auto"},
]


@pytest.mark.parametrize("fields", NO_TOOLS)
def test_no_tools_at_all(chat: Chat, fields: dict[str, Any]) -> None:
    assert chat.token_ids(**fields) == chat.token_ids()


def test_a_response_format_leaves_calls_possible(chat: Chat) -> None:
    """The answer has the format, or is a call; a model under such a constraint writes nothing else."""
    schema = {"type": "object", "properties": {"y": {"enum": [2]}}, "required": ["y"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = set()
    for seed in range(6):
        message, finish = whole(chat, **CALLS, tools=[{**F}], response_format=form, seed=seed)
        if message.get("tool_calls"):
            found.add("call")
            assert finish == "tool_calls" and not message["content"]
        else:
            found.add("answer")
            assert (json.loads(message["content"]), finish) == ({"y": 2}, "stop")
    assert found <= {"call", "answer"}
    (first,) = whole(chat, **CALLS, tools=[F], response_format=form, tool_choice="none", seed=1)[:1]
    assert json.loads(first["content"]) == {"y": 2}


def whole(chat: Chat, **fields: Any) -> tuple[dict[str, Any], str]:
    """Message and finish reason of an answer."""
    choice = chat.choice(**fields)
    return choice["message"], choice["finish_reason"]


def streamed(chat: Chat, **fields: Any) -> tuple[dict[str, Any], str]:
    """Message and finish reason that the deltas of a stream make up; only the first delta of a call names it."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    finish = ""
    for chunk in chat.chunks(**fields):
        (choice,) = chunk["choices"]
        message["content"] += choice["delta"].get("content") or ""
        parts = choice["delta"].get("tool_calls") or ()
        assert len({part["index"] for part in parts}) == len(parts), "clients read one entry of a call"
        for part in parts:
            if part["index"] == len(message["tool_calls"]):
                assert part["id"] and part["type"] == "function" and part["function"]["name"]
                call = {"id": part["id"], "type": "function", "function": {**part["function"]}}
                call["function"].setdefault("arguments", "")
                message["tool_calls"].append(call)
            else:
                assert part["index"] == len(message["tool_calls"]) - 1 and not part.get("id")
                message["tool_calls"][-1]["function"]["arguments"] += part["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return message, finish
