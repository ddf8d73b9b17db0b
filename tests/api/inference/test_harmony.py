"""A model that writes channels (gpt-oss), on a server whose engine plays a script in its tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from heddle.inference.tools.channels import MARKS
from tests.api.inference.test_fields_tools import F, G, streamed, whole
from tests.support.chat import Chat, joined
from tests.support.script_engine import scripted_settings, write_script
from tests.support.server import HeddleProcess

TEMPLATE = """\
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}
{%- set call = message.tool_calls[0].function %}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
THINK = "<|channel|>analysis<|message|>so 17<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
RULES: list[dict[str, Any]] = [
    {"prompt": "as an object", "say": THINK + '<|channel|>final<|message|>{"x": 1}'},
    {"prompt": "call it", "say": THINK + CALL + '{"x": 1}'},
    {"prompt": "wrongly", "say": CALL + "no JSON"},
    {
        "prompt": "say so",
        "say": "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL + '{"x": 1}',
    },
    {"say": THINK + "<|channel|>final<|message|>Blue."},
]


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server of the shipped model's folder with the marks as tokens, and a template that writes them."""
    place = tmp_path_factory.mktemp("harmony")
    settings = scripted_settings(write_script(place, RULES), place)
    folder = Path(str(settings["model"]))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": tokenizer.get_vocab_size()}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with HeddleProcess(place / "data", **settings) as process, Chat(process.url) as caller:
        yield caller


def say(text: str) -> list[dict[str, Any]]:
    """A question."""
    return [{"role": "user", "content": text}]


def test_thoughts_and_answer(harmony: Chat) -> None:
    answer = harmony.answer(messages=say("sky?"), max_tokens=100)
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("so 17", "Blue.")
    chunks = harmony.chunks(messages=say("sky?"), max_tokens=100, stream_options={"include_usage": True})
    assert (joined(chunks, "reasoning"), joined(chunks)) == ("so 17", "Blue.")
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    assert chunks[-1]["usage"]["completion_tokens_details"] == details
    hidden = harmony.choice(messages=say("sky?"), max_tokens=100, include_reasoning=False)["message"]
    assert (hidden["reasoning"], hidden["content"]) == (None, "Blue.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("question", "content"), [("call it", ""), ("say so", "I look.")])
def test_calls(harmony: Chat, question: str, content: str, stream: bool) -> None:
    fields = {"messages": say(question), "tools": [F, G], "max_tokens": 200}
    message, finish = streamed(harmony, **fields) if stream else whole(harmony, **fields)
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("f", '{"x": 1}')
    assert (finish, message["content"] or "") == ("tool_calls", content)


def test_a_message_to_a_function_that_is_no_call_is_text(harmony: Chat) -> None:
    message, finish = whole(harmony, messages=say("wrongly"), tools=[F], max_tokens=200)
    assert (message["content"], finish) == (CALL + "no JSON", "stop")


def test_forced_calls_and_formats_stand_in_their_channels(harmony: Chat) -> None:
    """The engine plays only what the constraint allows."""
    forced = {"messages": say("call it"), "tools": [F, G], "max_tokens": 200}
    assert whole(harmony, **forced, tool_choice="required")[1] == "tool_calls"
    named = {"type": "function", "function": {"name": "f"}}
    assert whole(harmony, **forced, tool_choice=named)[0]["tool_calls"][0]["function"]["name"] == "f"
    other = named | {"function": {"name": "g"}}
    assert "script has nothing" in harmony.refused(400, **forced, tool_choice=other)["message"]
    schema = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    message = harmony.choice(messages=say("as an object"), response_format=form, max_tokens=100)["message"]
    assert (json.loads(message["content"]), message["reasoning"]) == ({"x": 1}, "so 17")


def test_a_history_with_two_calls_and_thoughts(harmony: Chat) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}} for name in ("f", "g")
    ]
    turns = [
        *say("sky?"),
        {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("f", "g")),
    ]
    ids = harmony.prompt_ids(messages=turns, tools=[F], max_tokens=100)
    assert len(ids) > 20
    answer = harmony.client.post("/v1/messages", json={
        "model": harmony.model, "max_tokens": 100, "thinking": {"type": "adaptive"}, "messages": say("sky?"),
    })  # fmt: skip
    assert [block["type"] for block in answer.json()["content"]] == ["thinking", "text"]


def test_an_answer_goes_on(harmony: Chat) -> None:
    """The text of a last message is continued inside its channel; the script then ends it and begins anew."""
    turns = [*say("sky?"), {"role": "assistant", "content": "The sky is"}]
    fields = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 100}
    assert harmony.choice(**fields)["message"]["content"] == "Blue."
