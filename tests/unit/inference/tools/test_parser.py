"""Tool calls in outputs: what is found does not depend on pieces, and text that is no call is kept."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.inference.tools.formats import HERMES, JSON, LLAMA, MISTRAL, MISTRAL_NAMED, ToolFormat
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta, Piece, ToolParser, new_call_id
from tests.unit.inference.vocabularies import feed_in_pieces

F, G = '{"name": "f", "arguments": {"a": [1, "}"]}}', '{"name": "g", "arguments": {}}'
STYLES = (HERMES, LLAMA, JSON, MISTRAL, MISTRAL_NAMED)


def parser(style: ToolFormat, early: bool, only_first: bool = False) -> ToolParser:
    """A parser that numbers its calls."""
    numbers = itertools.count()
    return ToolParser(style, {"f", "g"}, early, only_first, lambda: f"id{next(numbers)}")


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
]
UNFINISHED = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": [1', '{"a": [1'),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
    (LLAMA, '{"name": "f", "parameters": {"a": "x', '{"a": "x'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {', "{"),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a', '{"a'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": nope]', '{"a": nope]'),
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
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", F, G, F[:20], G[:-1], "f", "text"]
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
