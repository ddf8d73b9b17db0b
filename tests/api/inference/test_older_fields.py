"""Fields under their older names, and what a request may have that nobody knows."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import Chat
from tests.support.server import HeddleProcess

NOW: dict[str, Any] = {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
GUIDED: dict[str, tuple[Any, dict[str, Any]]] = {
    "guided_json": ({"enum": ["lamp"]}, {"json": {"enum": ["lamp"]}}),
    "guided_regex": ("[ab]{3}", {"regex": "[ab]{3}"}),
    "guided_choice": (["red", "blue"], {"choice": ["red", "blue"]}),
    "guided_grammar": ('root ::= "yes" | "no"', {"grammar": 'root ::= "yes" | "no"'}),
}


@pytest.mark.parametrize("name", GUIDED)
def test_guided_fields_are_structured_outputs(chat: Chat, name: str) -> None:
    value, today = GUIDED[name]
    answer = chat.ask(max_tokens=20, **{name: value})
    assert answer.status_code == 200, answer.text
    assert "x-heddle-ignored-fields" not in answer.headers
    content = answer.json()["choices"][0]["message"]["content"]
    assert content == chat.content(max_tokens=20, structured_outputs=today)
    assert content != chat.content(max_tokens=20)


def test_a_guided_field_and_its_switches_act_together(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    compact = chat.content(max_tokens=20, guided_json=schema, guided_decoding_backend="xgrammar:disable-any-whitespace")
    assert compact == '{"a":1}'
    assert chat.content(max_tokens=20, guided_json=schema) == '{"a": 1}'
    assert chat.content(max_tokens=20, guided_json=schema, guided_whitespace_pattern="\n?") == compact


def test_two_names_of_one_constraint_must_agree(chat: Chat) -> None:
    agreed = chat.content(max_tokens=20, guided_choice=["red"], structured_outputs={"choice": ["red"]})
    assert agreed == "red"
    error = chat.refused(400, guided_choice=["red"], structured_outputs={"choice": ["blue"]})
    assert error["param"] == "guided_choice" and "structured_outputs.choice" in error["message"]
    assert chat.refused(400, guided_choice=["red"], guided_regex="a")["param"] == "structured_outputs"


def test_functions_are_tools_and_answered_as_function_call(chat: Chat) -> None:
    choice = chat.choice(functions=[NOW], function_call={"name": "now"}, max_tokens=20)
    assert choice["message"]["function_call"] == {"name": "now", "arguments": "{}"}
    assert "tool_calls" not in choice["message"] and choice["message"]["content"] is None
    assert chat.prompt(functions=[NOW]) == chat.prompt(tools=[{"type": "function", "function": NOW}])
    assert chat.refused(400, function_call="auto")["param"] == "function_call"
    tools = [{"type": "function", "function": NOW}]
    assert chat.refused(400, functions=[NOW], tools=tools)["param"] == "functions"


def test_a_function_call_in_a_stream(chat: Chat) -> None:
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in chat.chunks(functions=[NOW], function_call={"name": "now"}, max_tokens=20)
    ]
    called = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert [part.get("name") for part in called] == ["now", *[None] * (len(called) - 1)]
    assert "".join(part["arguments"] for part in called) == "{}"
    assert not any("tool_calls" in delta for delta in deltas)


def test_switches_of_reasoning(chat: Chat) -> None:
    template = "{% if enable_thinking is defined %}{{ enable_thinking }} {% endif %}{{ reasoning_effort }}"
    assert chat.prompt(chat_template=template, enable_thinking=False) == "False "
    assert chat.prompt(chat_template=template, thinking={"type": "enabled"}) == "True "
    assert chat.prompt(chat_template=template, reasoning={"enabled": False}) == "False "
    assert chat.prompt(chat_template=template, reasoning={"effort": "low"}) == "True low"
    own = chat.prompt(chat_template=template, enable_thinking=False, chat_template_kwargs={"enable_thinking": True})
    assert own == "True "


def test_parts_of_older_fields_that_nobody_knows_are_named(chat: Chat) -> None:
    answer = chat.ask(reasoning={"max_tokens": 5}, thinking={"type": "auto", "budget_tokens": 3})
    ignored = answer.headers["x-heddle-ignored-fields"].split(", ")
    assert ignored == ["reasoning.max_tokens", "thinking.budget_tokens"]


@pytest.mark.parametrize("arguments", ['{"city": "Par', "", "no JSON at all", "[1, 2]", "null"])
def test_an_earlier_call_with_broken_arguments_goes_on(chat: Chat, arguments: str) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "Error: the arguments are no JSON"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Again."},
    ]
    prompt = chat.prompt(messages=messages)
    assert arguments.strip('"[]{} ')[:4] in prompt
    template = "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments|items %}{{ v }}"
    written = chat.prompt(messages=messages, chat_template=template + "{% endfor %}{% endfor %}{% endfor %}.")
    assert written == f"{arguments}."


STRICT = {"x-heddle-strict-fields": "true"}


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("colour", "blue", "colour"),
        ("web_search_options", {}, "web_search_options"),
        ("structured_outputs", {"json_object": True, "kind": 3}, "structured_outputs.kind"),
        ("chat_template_kwargs", {"mood": "good"}, "chat_template_kwargs.mood"),
        ("stream_options", {"speed": 3}, "stream_options.speed"),
        ("response_format", {"type": "text", "colour": "blue"}, "response_format.colour"),
    ],
)
def test_strict_fields_refuses_by_name(chat: Chat, field: str, value: Any, named: str) -> None:
    fields = {field: value, "stream": field == "stream_options"}
    lenient = chat.ask(**fields)
    assert lenient.status_code == 200 and lenient.headers["x-heddle-ignored-fields"] == named
    strict = chat.ask(STRICT, **fields)
    assert strict.status_code == 400, strict.text
    error = strict.json()["error"]
    assert error["param"] == named and named in error["message"]


def test_strict_fields_takes_what_changes_no_answer(chat: Chat) -> None:
    harmless = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "colour": None}
    answer = chat.ask(STRICT, **harmless)
    assert answer.status_code == 200, answer.text
    assert set(answer.headers["x-heddle-ignored-fields"].split(", ")) == set(harmless)


def test_the_header_of_strict_fields_is_true_or_false(chat: Chat) -> None:
    assert chat.ask({"x-heddle-strict-fields": "false"}, colour="blue").status_code == 200
    refused = chat.ask({"x-heddle-strict-fields": "yes"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "x-heddle-strict-fields"


def test_the_setting_is_for_requests_without_the_header(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", strict_fields="on") as server, Chat(server.url) as chat:
        assert chat.refused(400, colour="blue")["param"] == "colour"
        assert chat.ask({"x-heddle-strict-fields": "false"}, colour="blue").status_code == 200


def test_refusals_and_ignored_fields_have_the_names_that_were_sent(chat: Chat) -> None:
    error = chat.refused(400, guided_regex="(")
    assert error["param"] == "guided_regex" and error["message"].startswith("guided_regex")
    template = "{{ messages[0].content }}"
    for sent in ({"enable_thinking": True}, {"thinking": {"type": "enabled"}}):
        (name,) = sent
        assert chat.ask(chat_template=template, **sent).headers["x-heddle-ignored-fields"] == name
    ignored = chat.ask(chat_template=template, reasoning={"effort": "low"}).headers["x-heddle-ignored-fields"]
    assert ignored == "reasoning.effort"
