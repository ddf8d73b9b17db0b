"""The tiny model's chat template: every kind of message and every variable leaves its mark."""

import json
from typing import Any

import pytest

pytest.importorskip("jinja2")

from heddle.inference.served_model import TINY_FOLDER
from tools.tiny_model.chat import TEMPLATE_FILE, render

USER = {"role": "user", "content": "Hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Größe & <Wetter>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def called(arguments: Any) -> dict[str, Any]:
    """An assistant's message with one tool call."""
    function = {"name": "get_weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


CALL_TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "system", "content": "Be brief."}, "<|im_start|>system\nBe brief.<|im_end|>\n"),
    ({"role": "developer", "content": "Be brief."}, "<|im_start|>developer\nBe brief.<|im_end|>\n"),
    ({"role": "user", "content": " Hi "}, "<|im_start|>user\n Hi <|im_end|>\n"),
    ({"role": "user", "content": "Hi", "name": "Anna"}, "<|im_start|>user Anna\nHi<|im_end|>\n"),
    (
        {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": " c"}]},
        "<|im_start|>user\nab c<|im_end|>\n",
    ),
    ({"role": "assistant", "content": "Hello"}, "<|im_start|>assistant\nHello<|im_end|>\n"),
    (
        {"role": "assistant", "content": "4", "reasoning": "2+2=4"},
        "<|im_start|>assistant\n<think>2+2=4</think>4<|im_end|>\n",
    ),
    (
        {"role": "assistant", "content": "4", "reasoning_content": "2+2=4"},
        "<|im_start|>assistant\n<think>2+2=4</think>4<|im_end|>\n",
    ),
    ({"role": "assistant", "content": None, "refusal": "No."}, "<|im_start|>assistant\nNo.<|im_end|>\n"),
    (called('{"city": "Oslo"}'), f"<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"),
    (called({"city": "Oslo"}), f"<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"),
    (called({"city": "Oslo"}) | {"content": "Wait."}, f"<|im_start|>assistant\nWait.\n{CALL_TEXT}<|im_end|>\n"),
    (
        called({"city": "Oslo"}) | {"tool_calls": called({"city": "Oslo"})["tool_calls"] * 2},
        f"<|im_start|>assistant\n{CALL_TEXT}\n{CALL_TEXT}<|im_end|>\n",
    ),
    (
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        },
        f"<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n",
    ),
    ({"role": "tool", "tool_call_id": "c9", "content": "9"}, "<|im_start|>tool\n9<|im_end|>\n"),
    ({"role": "tool", "name": "clock", "content": "9"}, "<|im_start|>tool clock\n9<|im_end|>\n"),
    ({"role": "function", "name": "clock", "content": "9"}, "<|im_start|>tool clock\n9<|im_end|>\n"),
    ({"role": "critic", "content": "Good."}, "<|im_start|>critic\nGood.<|im_end|>\n"),
    ({"role": "critic", "name": "Ben"}, "<|im_start|>critic Ben\n<|im_end|>\n"),
]


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=range(len(MESSAGES)))
def test_each_kind_of_message(message: dict[str, Any], expected: str) -> None:
    assert render([message]) == expected
    assert render([USER, message, USER]) == render([USER]) + expected + render([USER])


def test_a_tool_result_is_headed_by_the_called_tools_name() -> None:
    text = render([USER, called({"city": "Oslo"}), {"role": "tool", "tool_call_id": "c1", "content": "cold"}])
    assert text.endswith("<|im_start|>tool get_weather\ncold<|im_end|>\n")


def test_tools_documents_and_reasoning_join_the_first_system_turn() -> None:
    documents = [{"title": "House", "text": "It is red."}, {"text": "No title."}, {"page": 3}]
    text = render([{"role": "system", "content": "Be brief."}, USER], [WEATHER], documents, "low")
    head, rest = text.split("<|im_end|>\n", 1)
    parts = head.removeprefix("<|im_start|>system\n").split("\n\n")
    assert parts == [
        "Be brief.",
        "# Tools\n" + json.dumps(WEATHER["function"], ensure_ascii=False),
        '# Documents\nHouse: It is red.\nNo title.\n{"page": 3}',
        "# Reasoning: low",
    ]
    assert rest == "<|im_start|>user\nHi<|im_end|>\n"
    assert render([USER], [WEATHER]).startswith("<|im_start|>system\n# Tools\n")
    assert render([USER], [], []) == render([USER]) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, None),
        ({"enable_thinking": True}, "medium"),
        ({"enable_thinking": False}, None),
        ({"effort": "low"}, "low"),
        ({"effort": "medium"}, "medium"),
        ({"effort": "high"}, "high"),
        ({"effort": "none"}, None),
        ({"effort": "high", "enable_thinking": True}, "high"),
        ({"effort": "high", "enable_thinking": False}, None),
        ({"effort": "none", "enable_thinking": True}, None),
    ],
)
def test_thinking(variables: dict[str, Any], level: str | None) -> None:
    head = f"<|im_start|>system\n# Reasoning: {level}<|im_end|>\n" if level else ""
    assert render([USER], **variables) == head + render([USER])


def test_the_generation_prompt_opens_an_answer() -> None:
    assert render([USER], add_generation_prompt=True) == render([USER]) + "<|im_start|>assistant\n"
    assert render([USER], add_generation_prompt=False) == render([USER])


def test_content_that_is_not_text_is_refused() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(ValueError, match="image_url"):
        render([{"role": "user", "content": [picture]}])


def test_the_folder_carries_this_template() -> None:
    template = TEMPLATE_FILE.read_text(encoding="utf-8")
    assert (TINY_FOLDER / "chat_template.jinja").read_text(encoding="utf-8") == template
    settings = json.loads((TINY_FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["chat_template"] == template


def test_transformers_renders_the_same() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_FOLDER)
    messages = [{"role": "system", "content": "Be brief."}, USER, called({"city": "Oslo"})]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "cold"}]
    ours = render(messages, [WEATHER], [{"title": "T", "text": "x"}], "high", add_generation_prompt=True)
    theirs = tokenizer.apply_chat_template(
        messages,
        tools=[WEATHER],
        documents=[{"title": "T", "text": "x"}],
        reasoning_effort="high",
        add_generation_prompt=True,
        tokenize=False,
    )
    assert theirs == ours
