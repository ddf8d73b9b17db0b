"""Streams: the order and shape of chunks, usage, several choices, and equality with the whole answer."""

import json
from typing import Any

import pytest

from tests.support.chat import Chat, data_lines, joined
from tests.support.vllm_server import ENGINE_NAME

FOUR = {"max_tokens": 4, "ignore_eos": True, "logit_bias": {}}


def test_the_order_of_chunks(chat: Chat) -> None:
    chunks = chat.chunks(**FOUR)
    head = chunks[0]
    assert head["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert head["prompt_token_ids"] is None
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["id"], chunk["created"], chunk["model"]) == (head["id"], head["created"], chat.model)
        assert "usage" not in chunk
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1) and reasons[-1] == "length"
    last = chunks[-1]
    assert last["choices"][0]["stop_reason"] is None
    assert last["system_fingerprint"].startswith(f"{ENGINE_NAME}-")
    assert not any("system_fingerprint" in chunk or "stop_reason" in chunk["choices"][0] for chunk in chunks[:-1])


def test_a_stream_is_the_whole_answer(chat: Chat) -> None:
    for seed in range(5):
        fields = {"temperature": 1.2, "seed": seed, "max_tokens": 24}
        message = chat.choice(**fields)["message"]
        chunks = chat.chunks(**fields)
        assert joined(chunks) == (message["content"] or "")
        assert joined(chunks, "reasoning") == (message["reasoning"] or "")


def test_the_head_of_a_stream_names_the_weights(chat: Chat) -> None:
    with chat.streaming(**FOUR) as answer:
        assert answer.headers["x-heddle-policy"] == chat.model
        assert answer.headers["cache-control"] == "no-cache"
        answer.read()


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_without_include_usage_there_is_none(chat: Chat, options: dict[str, Any] | None) -> None:
    chunks = chat.chunks(**FOUR, stream_options=options)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_include_usage_adds_one_last_chunk(chat: Chat) -> None:
    chunks = chat.chunks(**FOUR, stream_options={"include_usage": True})
    last = chunks[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 4
    assert set(last["usage"]["prompt_tokens_details"]) == {"cached_tokens"}
    assert last["system_fingerprint"].startswith(f"{ENGINE_NAME}-")
    assert all("usage" not in chunk and "system_fingerprint" not in chunk for chunk in chunks[:-1])


def test_continuous_usage_stats_count_up(chat: Chat) -> None:
    chunks = chat.chunks(**FOUR, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0 and counts[-1] == 4 and counts == sorted(counts) and len(set(counts)) >= 3
    for chunk in chunks:
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_continuous_usage_stats_need_include_usage(chat: Chat) -> None:
    chunks = chat.chunks(**FOUR, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, None])
def test_stream_options_need_a_stream(chat: Chat, stream: bool | None) -> None:
    assert chat.refused(400, stream=stream, stream_options={"include_usage": True})["param"] == "stream_options"


def test_choices_of_a_stream_are_told_apart(chat: Chat) -> None:
    fields = {"n": 3, "temperature": 1.5, "seed": 9, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    chunks = chat.chunks(**fields)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""} for chunk in chunks[:3])
    whole = chat.answer(**fields)["choices"]
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        ids = [token for choice in own for token in choice.get("token_ids") or ()]
        assert ids == whole[index]["token_ids"]
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["length"]


def test_logprobs_of_a_stream_are_those_of_the_answer(chat: Chat) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 8, "temperature": 1.2, "seed": 9, "ignore_eos": True}
    chunks = chat.chunks(**fields)
    found = [
        item
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for item in choice["logprobs"]["content"]
    ]
    whole = chat.choice(**fields)["logprobs"]["content"]
    assert [item["token"] for item in found] == [item["token"] for item in whole] and len(found) == 8
    assert [item["logprob"] for item in found] == pytest.approx([item["logprob"] for item in whole], abs=1e-4)


def test_characters_are_never_cut(chat: Chat) -> None:
    """Every delta is whole characters, however tokens cut them; four bytes each here."""
    text = "a🙂é🙃€"
    chunks = chat.chunks(structured_outputs={"choice": [text]}, max_tokens=60)
    assert joined(chunks) == text
    assert "�" not in json.dumps(chunks, ensure_ascii=False)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "zzz"}, 404), ({"top_p": 2}, 400), ({"temperature": "hot"}, 422), ({"messages": []}, 400)],
    ids=["unknown model", "bad value", "bad type", "no messages"],
)
def test_errors_before_the_first_token_are_ordinary(chat: Chat, fields: dict[str, Any], status: int) -> None:
    answer = chat.ask(stream=True, **fields)
    assert answer.status_code == status and answer.headers["content-type"] == "application/json"
    chat.refused(status, stream=True, **fields)


def test_lines_are_server_sent_events(chat: Chat) -> None:
    with chat.streaming(**FOUR) as answer:
        text = answer.read().decode()
    lines = data_lines(text)
    assert lines[-1] == "[DONE]" and all(json.loads(line) for line in lines[:-1])
