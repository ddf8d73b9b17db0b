"""What a stream of chunks stands for, and token counts of answers."""

import time
from typing import Any

from heddle.inference.tracing import assemble, tokens_of, usage_entry

BASE = {"id": "chatcmpl-1", "created": 7, "model": "m", "object": "chat.completion.chunk"}


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {**BASE, "choices": [{"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}]}


def test_text_reasoning_and_reasons_are_put_together_per_choice() -> None:
    answer = assemble(
        [
            chunk(1, role="assistant", content=""),
            chunk(0, role="assistant", content=""),
            chunk(0, reasoning="think"),
            chunk(0, reasoning="ing"),
            chunk(1, content="b"),
            chunk(0, content="a"),
            chunk(0, content="A"),
            chunk(0, "stop"),
            {**BASE, "choices": [{"index": 1, "delta": {}, "finish_reason": "length", "stop_reason": None}]},
            {**BASE, "choices": [], "usage": {"prompt_tokens": 3}},
        ]
    )
    assert {key: answer[key] for key in ("id", "created", "model", "object")} == {**BASE, "object": "chat.completion"}
    assert answer["usage"] == {"prompt_tokens": 3}
    first, second = answer["choices"]
    assert first == {
        "index": 0,
        "message": {"role": "assistant", "content": "aA", "reasoning": "thinking"},
        "finish_reason": "stop",
    }
    assert second == {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "length"}


def test_tool_calls_are_put_together_by_index() -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    answer = assemble(
        [
            chunk(tool_calls=[{"id": "c0", "type": "function", **call(0, name="add", arguments="")}]),
            chunk(tool_calls=[call(0, arguments='{"a":')]),
            chunk(tool_calls=[{"id": "c1", **call(1, name="sub", arguments="{}")}]),
            chunk(tool_calls=[call(0, arguments="1}")]),
            chunk(tool_calls=[call(100_000, arguments="far beyond")]),
        ]
    )
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "c1", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
    ]


def test_logprobs_and_token_ids_are_joined() -> None:
    parts = [
        {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"token": text}]}, "token_ids": [number]}
        for number, text in enumerate("ab")
    ]
    (choice,) = assemble([{"choices": [part]} for part in parts])["choices"]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}
    assert choice["token_ids"] == [0, 1]


def test_a_million_pieces_are_joined_once() -> None:
    began = time.process_time()
    (choice,) = assemble(chunk(content="some ") for _ in range(300_000))["choices"]
    assert choice["message"]["content"] == "some " * 300_000
    assert time.process_time() - began < 5


def test_a_text_in_the_place_of_another_value_takes_it() -> None:
    (choice,) = assemble([chunk(content=[1]), chunk(content="a"), chunk(content="b")])["choices"]
    assert choice["message"]["content"] == "ab"


def test_odd_chunks_do_no_harm() -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"choices": None},
        {"choices": ["x", {"index": "0", "delta": None}]},
        {"choices": [{"delta": {"tool_calls": [{"index": -1}, {"index": None, "function": "f"}]}}]},
    ]
    (choice,) = assemble(odd)["choices"]
    assert choice["message"]["tool_calls"] == [{"type": "function", "function": {"name": "", "arguments": ""}}]


def test_tokens_are_read_with_care() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": "3",
        "prompt_tokens_details": {"cached_tokens": True},
        "completion_tokens_details": {"reasoning_tokens": -1},
    }
    zeros = {"completion_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0}
    assert tokens_of({"usage": usage}) == {"prompt_tokens": 9, **zeros}
    assert tokens_of({"usage": "none"}) == tokens_of({}) == {"prompt_tokens": 0, **zeros}
    assert usage_entry("m", {"error": "x"}) == {}
    entry = {"requests": 1, "prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    assert usage_entry("m", {"usage": usage}) == {"m": entry}
