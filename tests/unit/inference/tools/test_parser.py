"""Tool calls in outputs: what is found does not depend on pieces, and text that is no call is kept."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.inference.tools.channels import MARKS
from heddle.inference.tools.formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    GLM,
    GLM_COMPACT,
    GRANITE,
    HERMES,
    JSON,
    KIMI,
    LFM2,
    LLAMA,
    LLAMA4_PYTHONIC,
    MINIMAX,
    MISTRAL,
    MISTRAL_NAMED,
    NEMOTRON,
    PYTHONIC,
    QWEN_XML,
    SEED_OSS,
    ToolFormat,
)
from heddle.inference.tools.harmony import HarmonyParser
from heddle.inference.tools.parser import (
    CallArguments,
    CallStart,
    ContentDelta,
    OutputParser,
    Piece,
    ReasoningDelta,
    ToolParser,
    new_call_id,
)
from tests.support.selection import examples
from tests.unit.inference.vocabularies import feed_in_pieces

F, G = '{"name": "f", "arguments": {"a": [1, "}"]}}', '{"name": "g", "arguments": {}}'
STYLES = (HERMES, LLAMA, JSON, MISTRAL, MISTRAL_NAMED, QWEN_XML, GLM, MINIMAX, PYTHONIC, LFM2, DEEPSEEK, KIMI)
SCHEMAS = {
    "f": {
        "properties": {
            "text": {"type": "string"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "flag": {"$ref": "#/$defs/Flag"},
            "items": {"type": "array"},
            "any": {},
        },
        "$defs": {"Flag": {"type": "boolean"}},
    },
    "g": None,
}


def parser(style: ToolFormat, early: bool, only_first: bool = False) -> ToolParser:
    """A parser that numbers its calls."""
    numbers = itertools.count()
    return ToolParser(style, SCHEMAS, early, only_first, lambda: f"id{next(numbers)}")


def joined(pieces: list[Piece]) -> tuple[str, list[tuple[str, str, str]]]:
    """The content, and of each call id, name and arguments; pieces of a call come in order."""
    content, calls = "", []
    for piece in pieces:
        match piece:
            case ContentDelta(text):
                content += text
            case CallStart(index, call_id, name):
                assert index == len(calls)
                calls.append((call_id, name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1 and text
                call_id, name, arguments = calls[index]
                calls[index] = (call_id, name, arguments + text)
    return content, calls


def read(style: ToolFormat, text: str, early: bool = False, cuts: list[int] | None = None, only_first: bool = False):
    """Content and calls of an output."""
    reading = parser(style, early, only_first)
    pieces = [piece for part in feed_in_pieces(text, cuts or []) for piece in reading.push(part)]
    found = joined([*pieces, *reading.finish()])
    assert reading.num_calls == len(found[1])
    return found


CALLS_F = [("id0", "f", '{"a": [1, "}"]}')]
CALLS_FG = [*CALLS_F, ("id1", "g", "{}")]
ARGS = '{"a": [1, "}"]}'


def calls_of(arguments: str) -> list[tuple[str, str, str]]:
    """One call of f."""
    return [("id0", "f", arguments)]


def qwen(name: str = "f", values: str = 'a=[1, "}"]') -> str:
    """A call between tags; `values`: key=value;key=value."""
    pairs = [pair.partition("=") for pair in values.split(";") if pair]
    elements = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, _, value in pairs)
    return f"<tool_call>\n<function={name}>\n{elements}</function>\n</tool_call>"


def deepseek(name: str, arguments: str) -> str:
    """One call as DeepSeek V3 and R1 write it."""
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def minimax(calls: str) -> str:
    """Calls between the marks of MiniMax."""
    return f"<minimax:tool_call>\n{calls}\n</minimax:tool_call>"


DEEP = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>".format
CALLS_GG = [("id0", "g", "{}"), ("id1", "g", "{}")]
KIMI_OPEN, KIMI_ARGUMENTS = "<|tool_calls_section_begin|><|tool_call_begin|>", "<|tool_call_argument_begin|>"
COMPLETE = [
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", "", CALLS_F),
    (HERMES, f"Wait. <tool_call>{F}</tool_call>\n<tool_call>\n{G}\n</tool_call>\n", "Wait. ", CALLS_FG),
    (HERMES, f" \n<tool_call>{F}", "", CALLS_F),
    (HERMES, f"<tool_call>{F}<tool_call>{G}", "", CALLS_FG),
    (HERMES, f"<tool_call>{F}</tool_call> done", " done", CALLS_F),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("id0", "f", "{}")]),
    (HERMES, '<tool_call>{"arguments": {"b": 1}, "name": "f"}</tool_call>', "", [("id0", "f", '{"b": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "parameters": {"b": 1}}</tool_call>', "", [("id0", "f", '{"b": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("id0", "f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"b\\": 1}"}</tool_call>', "", [("id0", "f", '{"b": 1}')]),
    (HERMES, '<tool_call>{"name": "unheard of", "arguments": {}}</tool_call>', "", [("id0", "unheard of", "{}")]),
    (HERMES, '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {}}', []),
    (LLAMA, F, "", CALLS_F),
    (LLAMA, f"<|python_tag|>{F}; {G}", "", CALLS_FG),
    (LLAMA, F.replace("arguments", "parameters"), "", CALLS_F),
    (LLAMA, f"\n{F}\n{G}", "", CALLS_FG),
    (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (LLAMA, f"look: {F}", f"look: {F}", []),
    (JSON, f"[{F}, {G}]", "", CALLS_FG),
    (JSON, '{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}', []),
    (JSON, '{"name": "f"}', '{"name": "f"}', []),
    (JSON, '["a", 1]', '["a", 1]', []),
    (JSON, " {} ", " {} ", []),
    (MISTRAL, f"[TOOL_CALLS] [{F}, {G}]", "", CALLS_FG),
    (MISTRAL, f"ok[TOOL_CALLS][{F}]", "ok", CALLS_F),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": [1, "}"]}[TOOL_CALLS]g[ARGS]{}', "", CALLS_FG),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[CALL_ID]x1[ARGS]{"a": [1, "}"]}', "", CALLS_F),
    (MISTRAL_NAMED, '[TOOL_CALLS] f {"a": [1, "}"]}', "", CALLS_F),
    (QWEN_XML, qwen(), "", CALLS_F),
    (QWEN_XML, f"Wait. {qwen()}\n{qwen('g', '')}\n", "Wait. ", CALLS_FG),
    (QWEN_XML, qwen().replace("<tool_call>\n", ""), "", CALLS_F),
    (
        QWEN_XML,
        qwen(values="text=two\n\nlines \n;maybe=null"),
        "",
        calls_of('{"text": "two\\n\\nlines \\n", "maybe": null}'),
    ),
    (QWEN_XML, qwen(values="text=12;maybe=12;count=12"), "", calls_of('{"text": "12", "maybe": "12", "count": 12}')),
    (QWEN_XML, qwen(values="count=3.0;ratio=2;flag=True"), "", calls_of('{"count": 3, "ratio": 2, "flag": true}')),
    (QWEN_XML, qwen(values="items=['a', 1];any=x y"), "", calls_of('{"items": ["a", 1], "any": "x y"}')),
    (QWEN_XML, qwen(values="count=many;other=[1]"), "", calls_of('{"count": "many", "other": [1]}')),
    (
        QWEN_XML,
        qwen(values='text=a "b" </parameter> x </function> <parameter=;count=1'),
        "",
        calls_of('{"text": "a \\"b\\" </parameter> x </function> <parameter=", "count": 1}'),
    ),
    (QWEN_XML, qwen(values="text="), "", calls_of('{"text": ""}')),
    (QWEN_XML, "<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [("id0", "g", "{}")]),
    (GLM, '<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>[1, "}"]</arg_value>\n</tool_call>', "", CALLS_F),
    (GLM_COMPACT, '<tool_call>f<arg_key>a</arg_key><arg_value>[1, "}"]</arg_value></tool_call>', "", CALLS_F),
    (GLM, "ok<tool_call>g\n</tool_call>\n<tool_call>g</tool_call>", "ok", CALLS_GG),
    (GLM, "<tool_call>hello</tool_call>", "<tool_call>hello</tool_call>", []),
    (
        MINIMAX,
        minimax('<invoke name="f">\n<parameter name="text"> x </parameter>\n</invoke>'),
        "",
        calls_of('{"text": " x "}'),
    ),
    (
        MINIMAX,
        minimax('<invoke name="g">\n</invoke>\n<invoke name="g"></invoke>'),
        "",
        [("id0", "g", "{}"), ("id1", "g", "{}")],
    ),
    (PYTHONIC, """[f(a=[1, '}']), g()]""", "", CALLS_FG),
    (NEMOTRON, f"Ok. <TOOLCALL>[{F}, {G}]</TOOLCALL>\n", "Ok. ", CALLS_FG),
    (NEMOTRON, f"<TOOLCALL>[{F}]</TOOLCALL> done", " done", CALLS_F),
    (GRANITE, f"<|tool_call|>[{F}, {G}]", "", CALLS_FG),
    (
        SEED_OSS,
        "<seed:tool_call>\n<function=f>\n<parameter=text>two\n</parameter>\n</function>\n</seed:tool_call>",
        "",
        calls_of('{"text": "two\\n"}'),
    ),
    (PYTHONIC, """[f(a=(1, "}"))]""", "", CALLS_F),
    (
        PYTHONIC,
        """ [f(text="a, b) = [", flag=True, any={'k': None}, ratio=-1.5)]""",
        "",
        calls_of('{"text": "a, b) = [", "flag": true, "any": {"k": null}, "ratio": -1.5}'),
    ),
    (
        PYTHONIC,
        """[f(flag=true, any=null, text='it\\'s')]""",
        "",
        calls_of('{"flag": true, "any": null, "text": "it\'s"}'),
    ),
    (PYTHONIC, "[h(a=1)]", "[h(a=1)]", []),
    (PYTHONIC, "[1] see f(a=1)", "[1] see f(a=1)", []),
    (PYTHONIC, "text [g()]", "text [g()]", []),
    (LLAMA4_PYTHONIC, "Sure.<|python_start|>[g()]<|python_end|>", "Sure.", [("id0", "g", "{}")]),
    (LFM2, "<|tool_call_start|>[g()]<|tool_call_end|>Done.", "Done.", [("id0", "g", "{}")]),
    (DEEPSEEK, DEEP(f"{deepseek('f', ARGS)}\n{deepseek('g', '{}')}"), "", CALLS_FG),
    (DEEPSEEK, f"Hm.\n{DEEP(deepseek('f', ARGS))} bye", "Hm.\n bye", CALLS_F),
    (DEEPSEEK, deepseek("f", ARGS), "", CALLS_F),
    (DEEPSEEK_V31, DEEP(f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜>"), "", CALLS_F),
    (KIMI, f"{KIMI_OPEN}functions.f:0{KIMI_ARGUMENTS}{ARGS}<|tool_call_end|><|tool_calls_section_end|>", "", CALLS_F),
    (HERMES, "plain <b>text</b> \n", "plain <b>text</b> \n", []),
    (HERMES, " \n", " \n", []),
    (HERMES, "", "", []),
]
NO_CALLS = [
    (HERMES, "<tool_call>"),
    (HERMES, "a<tool_call>\n"),
    (HERMES, "a <tool_ca"),
    (HERMES, '<tool_call>{"name": "f", "argum'),
    (HERMES, "<tool_call></tool_call>"),
    (HERMES, "<tool_call>hi</tool_call>"),
    (HERMES, '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "name": "g"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "x": nope, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "x": 1"2", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "x": NaN}</tool_call>'),
    (LLAMA, '{"name": "f", "param'),
    (LLAMA, "<|python_tag|>"),
    (MISTRAL, "[TOOL_CALLS] ["),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]"),
    (MISTRAL_NAMED, "[TOOL_CALLS]{}"),
    (QWEN_XML, "Use <function= in C"),
    (QWEN_XML, "<tool_call>\n<function=f>\n"),
    (QWEN_XML, "<tool_call>\n<function=a b>\n</function></tool_call>"),
    (QWEN_XML, "<tool_call>\n<function=f>\ntext</function></tool_call>"),
    (QWEN_XML, '<tool_call>\n{"name": "f"}</tool_call>'),
    (GLM, "<tool_call>{}</tool_call>"),
    (GLM, "<tool_call>f\n<arg_key>a"),
    (PYTHONIC, "[f(1)]"),
    (PYTHONIC, "[f(a=b)]"),
    (PYTHONIC, "[f(a=[1)]"),
    (PYTHONIC, "[f(a=1"),
    (PYTHONIC, "[f"),
    (DEEPSEEK, "<｜tool▁calls▁begin｜>"),
    (DEEPSEEK, "<｜tool▁calls▁begin｜>no<｜tool▁calls▁end｜>"),
    (DEEPSEEK, "<｜tool▁call▁begin｜>f{}"),
    (KIMI, "<|tool_call_begin|>functions.f:0{}"),
]
UNFINISHED = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": [1', '{"a": [1'),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
    (LLAMA, '{"name": "f", "parameters": {"a": "x', '{"a": "x'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {', "{"),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a', '{"a'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": nope]', '{"a": nope]'),
    (QWEN_XML, "<tool_call>\n<function=f>\n<parameter=text>\nhal", '{"text": "hal'),
    (QWEN_XML, "<tool_call>\n<function=f>\n<parameter=text>\nhal\n</param", '{"text": "hal'),
    (QWEN_XML, "<tool_call>\n<function=f>\n<parameter=count>\n1", '{"count": '),
    (PYTHONIC, "[f(a=1, b=", '{"a": 1'),
    (DEEPSEEK, '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a', '{"a'),
]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("style", "text", "content", "calls"), COMPLETE)
def test_complete_outputs(style: ToolFormat, text: str, content: str, calls: list[Any], early: bool) -> None:
    assert read(style, text, early) == (content, calls)
    assert read(style, text, early, list(range(len(text)))) == (content, calls)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("style", "text"), NO_CALLS)
def test_text_that_is_no_call_is_content_as_it_stands(style: ToolFormat, text: str, early: bool) -> None:
    assert read(style, text, early) == (text, [])
    assert read(style, text, early, list(range(len(text)))) == (text, [])


@pytest.mark.parametrize(("style", "text", "arguments"), UNFINISHED)
def test_an_unfinished_call_is_content_unless_it_was_streamed(style: ToolFormat, text: str, arguments: str) -> None:
    for cuts in ([], list(range(len(text)))):
        assert read(style, text, early=False, cuts=cuts) == (text, [])
        assert read(style, text, early=True, cuts=cuts) == ("", [("id0", "f", arguments)])


def test_a_complete_call_stands_when_the_next_one_is_cut() -> None:
    first, second = f"<tool_call>{F}</tool_call>", '\n<tool_call>{"name": "g", "argu'
    assert read(HERMES, first + second) == (second, CALLS_F)


@pytest.mark.parametrize("early", [False, True])
def test_only_the_first_call_counts_where_calls_are_not_parallel(early: bool) -> None:
    text = f"<tool_call>{F}</tool_call><tool_call>{G}</tool_call> end"
    assert read(HERMES, text, early, only_first=True) == (" end", CALLS_F)
    assert read(HERMES, text, early, list(range(len(text))), only_first=True) == (" end", CALLS_F)


def test_arguments_are_streamed_as_they_are_written() -> None:
    reading = parser(HERMES, early=True)
    parts = ["<tool", "_call>", '\n{"name": "f",', ' "arguments"', ': {"a"', ': "x', '"}', "}\n</", "tool_call>"]
    pushed = [reading.push(part) for part in parts]
    assert pushed == [
        [],
        [],
        [],
        [],
        [CallStart(0, "id0", "f"), CallArguments(0, '{"a"')],
        [CallArguments(0, ': "x')],
        [CallArguments(0, '"}')],
        [],
        [],
    ]
    assert reading.finish() == []


def test_content_is_streamed_up_to_what_may_be_a_mark() -> None:
    reading = parser(HERMES, early=True)
    shown = [joined(reading.push(part))[0] for part in ("Hi", " <", "b> <tool", "_box> <tool_ca")]
    assert shown == ["Hi", " ", "<b> ", "<tool_box> "]
    assert joined(reading.finish())[0] == "<tool_ca"


PIECES = st.sampled_from(
    ["<function=f>\n", "<parameter=text>", "</parameter>", "</function>", "<arg_key>a</arg_key>", "<arg_value>"]
    + ["</arg_value>", "[f(", "a=1", ")", "=", "'", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"]
    + ["<|tool_call_start|>", '<invoke name="f">', "<minimax:tool_call>", "```", KIMI_OPEN, KIMI_ARGUMENTS]
    + ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", F, G, F[:20], G[:-1], "f", "text"]
    + list(' \n{}[]",;:\\1')
    + ['"name"', '"f"', '"arguments"', "null"]
)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("only_first", [False, True])
@settings(deadline=None, max_examples=40)
@given(text=st.lists(PIECES, max_size=12).map("".join), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_pieces_give_the_same(style: ToolFormat, early: bool, only_first: bool, text: str, cuts: list[int]) -> None:
    whole = read(style, text, early, only_first=only_first)
    assert read(style, text, early, cuts, only_first) == whole
    if not early:
        assert all(isinstance(json.loads(arguments), dict) for _, _, arguments in whole[1])
    if not whole[1]:
        assert whole[0] == text


def test_ids_are_fresh_and_in_the_known_form() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.removeprefix("chatcmpl-tool-").isalnum() and len(call_id) == 30 for call_id in ids)


def harmony(names: Any, early: bool) -> HarmonyParser:
    """A parser that numbers its calls."""
    numbers = itertools.count()
    return HarmonyParser(names, early, new_id=lambda: f"id{next(numbers)}")


def read_harmony(text: str, early: bool = False, cuts: list[int] | None = None, names: Any = SCHEMAS):
    """Reasoning, content and calls of an output."""
    reading: OutputParser = harmony(names, early)
    pieces = [piece for part in feed_in_pieces(text, cuts or []) for piece in reading.push(part)]
    pieces += reading.finish()
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
    return thoughts, *joined([piece for piece in pieces if not isinstance(piece, ReasoningDelta)])


THINK = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
CHANNELS = [
    (f"{THINK}<|channel|>final<|message|>Hello<|return|>", ("hm", "Hello", [])),
    ("<|channel|>final<|message|>Hello", ("", "Hello", [])),
    (f"{THINK}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGS}<|call|>", ("hm", "", CALLS_F)),
    (f"{THINK} to=functions.f<|channel|>commentary json<|message|>{ARGS}", ("hm", "", CALLS_F)),
    (f"{THINK}<|channel|>commentary to=f<|message|>{ARGS}<|call|>", ("hm", "", CALLS_F)),
    (
        f"<|channel|>commentary<|message|>I look.<|end|>{THINK[:0]}<|start|>assistant<|channel|>commentary "
        f"to=functions.f<|message|>{ARGS}<|call|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{{}}",
        ("", "I look.", CALLS_FG),
    ),
    ("<|channel|>analysis<|message|>hm", ("hm", "", [])),
    ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", ("1 + 1", "", [])),
    ("Hello", ("", "Hello", [])),
    ("", ("", "", [])),
]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("text", "expected"), CHANNELS)
def test_channels_are_thoughts_answers_and_calls(text: str, expected: tuple[Any, ...], early: bool) -> None:
    assert read_harmony(text, early) == expected
    assert read_harmony(text, early, list(range(len(text)))) == expected


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", '{"a": 1', '{"a": 1} more', ""])
def test_a_message_to_a_function_without_an_object_is_content_as_it_stands(arguments: str) -> None:
    message = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}"
    for cuts in ([], list(range(len(message)))):
        assert read_harmony(message, cuts=cuts) == ("", message, [])
        assert read_harmony(message + "<|call|>", cuts=cuts) == ("", message, [])
    assert read_harmony(message, names=()) == ("", arguments, [])


def test_an_output_goes_on_where_its_prompt_ends() -> None:
    for prompt, expected in (
        ("<|start|>user<|message|>hi<|end|><|start|>assistant", ("", "<|channel|>")),
        ("<|start|>assistant<|channel|>analysis<|message|>so", ("more", "")),
        ("<|start|>assistant<|channel|>final<|message|>so", ("", "more")),
    ):
        parser = harmony((), early=True)
        parser.begin_after(prompt)
        pieces = parser.push("more" if prompt.endswith("so") else "<|channel|>")
        found = {type(piece).__name__: getattr(piece, "text", "") for piece in [*pieces, *parser.finish()]}
        assert (found.get("ReasoningDelta", ""), found.get("ContentDelta", "")) == expected


@pytest.mark.parametrize("early", [False, True])
@settings(deadline=None, max_examples=examples(100))
@given(
    text=st.lists(
        st.sampled_from(
            [THINK, *MARKS, "analysis", "final", " to=functions.f ", "commentary", ARGS, "{}", "x", "<|", " "]
        ),
        max_size=10,
    ).map("".join),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_any_pieces_of_channels_give_the_same(early: bool, text: str, cuts: list[int]) -> None:
    assert read_harmony(text, early, cuts) == read_harmony(text, early)
