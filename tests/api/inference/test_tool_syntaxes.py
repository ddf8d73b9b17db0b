"""Tool calls in the syntaxes of other model families: short templates with their marks, on the shipped model.

Each is read from what the model writes, whole and streamed, forced by `tool_choice`, and written into a history.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.api.inference.test_fields_tools import F, G, streamed, tool, whole
from tests.support.chat import USER, Chat
from tests.support.selection import with_breadth

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}<|im_start|>assistant\n"
)
ELEMENTS = (
    "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value }}\n</parameter>\n{% endfor %}"
)
KEYS = (
    "{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>\n"
    "<arg_value>{{ value }}</arg_value>\n{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """How a family writes the call f(x=1): in its template, in the words of a grammar, and as text in a prompt."""

    name: str
    template: str
    written: str
    text: str


def family(name: str, call: str, text: str, written: str = "") -> Family:
    """A family whose call has no mark that is a token here, unless `written` says how a grammar names it."""
    return Family(name, TURNS.replace("CALL", call), written or json.dumps(text, ensure_ascii=False), text)


NAME, ARGUMENTS = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
FAMILIES = [
    family(
        "qwen3-coder",
        f"<tool_call>\n<function={NAME}>\n{ELEMENTS}</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        r'<tool_call> "\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n" </tool_call>',
    ),
    family(
        "glm",
        f"<tool_call>{NAME}\n{KEYS}</tool_call>",
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        r'<tool_call> "f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n" </tool_call>',
    ),
    family(
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    family(
        "kimi",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{NAME}:0<|tool_call_argument_begin|>{ARGUMENTS}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    family("mistral", f'[TOOL_CALLS][{{"name": "{NAME}", "arguments": {ARGUMENTS}}}]',
           '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]'),
    family("llama", f'{{"name": "{NAME}", "parameters": {ARGUMENTS}}}', '{"name": "f", "parameters": {"x": 1}}'),
    family("python", "[{#- [f1(key=value), f2()] -#}" + NAME + "(x={{ call.function.arguments.x }})]", "[f(x=1)]"),
]  # fmt: skip
EACH = pytest.mark.parametrize("given", with_breadth(FAMILIES, every=3), ids=lambda family: family.name)


@EACH
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_writes_is_read(chat: Chat, given: Family, stream: bool) -> None:
    fields: dict[str, Any] = {
        "chat_template": given.template,
        "structured_outputs": {"grammar": f"start: {given.written}"},
        "max_tokens": 200,
        "tools": [F, G],
    }
    message, finish = streamed(chat, **fields) if stream else whole(chat, **fields)
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"x": 1})
    assert (finish, message["content"] or "") == ("tool_calls", "")


@EACH
def test_a_forced_call_is_valid(chat: Chat, given: Family) -> None:
    typed = tool("typed", flag={"type": "boolean"}, word={"enum": ["lamp", "rain"]}, count={"enum": [1, 2]})
    fields = {"chat_template": given.template, "tools": [typed], "max_tokens": 300, "parallel_tool_calls": False}
    message, finish = whole(chat, **fields, tool_choice="required", temperature=1, seed=3)
    (call,) = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (call["function"]["name"], finish, set(arguments)) == ("typed", "tool_calls", {"flag", "word", "count"})
    assert isinstance(arguments["flag"], bool)
    assert arguments["word"] in ("lamp", "rain") and arguments["count"] in (1, 2)
    named = {"type": "function", "function": {"name": "g"}}
    message, finish = streamed(chat, **fields | {"tools": [F, G]}, tool_choice=named)
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], finish) == ("g", "stop")
    assert json.loads(call["function"]["arguments"])["word"] in ("lamp", "rain")


@EACH
def test_a_history_is_written_in_the_same_syntax(chat: Chat, given: Family) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    turns = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18"},
    ]
    assert given.text in chat.prompt(messages=turns, tools=[F], chat_template=given.template)
