"""Answers as messages: blocks in the order in which they were written, whole and as events; pages of models."""

from typing import Any

import pytest

from heddle.errors import InvalidRequest, Unavailable
from heddle.inference.api.models import page_of
from heddle.inference.chat.generation import Choice, Facts, Reading
from heddle.inference.chat.wire import Shape
from heddle.inference.engine.base import Sampling, TokenEvent
from heddle.inference.messages.answer import MessagesAnswer
from heddle.inference.messages.request import MESSAGES
from heddle.inference.prompt.reasoning import ReasoningSplitter, detect_marks
from heddle.inference.tools.formats import HERMES
from heddle.inference.tools.parser import ToolParser
from tests.unit.inference.vocabularies import tokenizer

Json = dict[str, Any]
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


def answered(text: str, finish: str = "stop", max_tokens: int = 1000, **options: bool) -> tuple[Json, list[Json]]:
    """The body and the events of one output."""
    shaped = Shape("msg_1", 1, "m", "", "assistant", "", tokenizer(), Sampling(max_tokens, 1), reasons=True)
    marks = detect_marks(tokenizer())
    assert marks is not None
    keep = marks.token_ids | HERMES.token_ids(tokenizer())
    ids = tokenizer().encode(text)

    def make() -> MessagesAnswer:
        parser = ToolParser(HERMES, {"f": None}, early=True, new_id=lambda: "t1")
        splitter = ReasoningSplitter(marks, open_at_start=False)
        choice = Choice(0, Reading(), tokenizer().detokenizer(keep=keep), splitter, parser)
        more = {"omits_thoughts": False, "continues": False} | options
        return MessagesAnswer(shaped, [Facts((1, 2, 3), cached_tokens=2)], [choice], max_tokens=max_tokens, **more)

    answer = make()
    (choice,) = answer.choices
    events = answer.opening()
    for number, token in enumerate(ids):
        ends = number == len(ids) - 1
        for delta in choice.feed(TokenEvent((token,), finish_reason=finish if ends else None)):
            events += answer.delta(0, delta)
    return answer.body(), [*events, *answer.closing()]


def blocks(events: list[Json]) -> list[str]:
    """Each block of a stream as its type and text."""
    found: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            found.append(event["content_block"]["type"] + ":")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            found[-1] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi", ["text:Hi"]),
        (" \n", []),
        ("<think>hm</think>\n\nHi", ["thinking:hm", "text:Hi"]),
        (f"<think>hm</think>\n\n{CALL}", ["thinking:hm", 'tool_use:{"x": 1}']),
        (f"Look.{CALL}\n{CALL}\n", ["text:Look.", 'tool_use:{"x": 1}', 'tool_use:{"x": 1}']),
        (f"{CALL} bye", ['tool_use:{"x": 1}', "text:bye"]),
    ],
)
def test_blocks_are_the_same_whole_and_streamed(text: str, expected: list[str]) -> None:
    body, events = answered(text)
    assert blocks(events) == expected
    told = [
        f"{block['type']}:"
        + (block.get("text") or block.get("thinking") or str(block.get("input", "")).replace("'", '"'))
        for block in body["content"]
    ]
    assert told == expected
    assert body["stop_reason"] == ("tool_use" if CALL in text else "end_turn")
    assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (1, 2)


def test_a_call_that_is_cut_is_told_as_far_as_it_goes() -> None:
    body, events = answered(CALL[:-14], finish="length", max_tokens=1)
    assert blocks(events) == ['tool_use:{"x": 1']
    assert body["content"][0]["input"] == {"unfinished": '{"x": 1'}
    assert body["stop_reason"] == "max_tokens"
    assert answered("Hi", finish="length")[0]["stop_reason"] == "model_context_window_exceeded"


def test_a_text_that_is_continued_keeps_its_white_space() -> None:
    assert answered(" on", continues=True)[0]["content"] == [{"type": "text", "text": " on"}]
    assert answered("\n on")[0]["content"] == [{"type": "text", "text": "on"}]


def test_a_stream_that_fails_ends_with_an_error() -> None:
    shaped = Shape("msg_1", 1, "m", "", "assistant", "", tokenizer(), Sampling(1, 1))
    choice = Choice(0, Reading(), tokenizer().detokenizer(), None, None)
    answer = MessagesAnswer(shaped, [Facts((1,))], [choice], max_tokens=1, omits_thoughts=False, continues=False)
    events = answer.failure(Unavailable("gone"))
    error = {"type": "overloaded_error", "message": "gone"}
    assert events == [{"type": "error", "error": error}]
    assert MESSAGES.encode(events).startswith(b"event: error\ndata: {")


ENTRIES = [{"id": name, "created": 0, "max_model_len": 8} for name in "abcd"]


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({}, "abcd", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", False),
        ({"limit": "1", "before_id": "c"}, "b", True),
        ({"after_id": "d"}, "", False),
    ],
)
def test_pages_of_models(query: dict[str, str], ids: str, more: bool) -> None:
    page = page_of(ENTRIES, query)
    assert ("".join(model["id"] for model in page["data"]), page["has_more"]) == (ids, more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"after_id": "z"}])
def test_pages_that_cannot_be(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        page_of(ENTRIES, query)
    assert caught.value.param in query
