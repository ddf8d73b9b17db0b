"""Log-probabilities, token ids and echoes in answers and streams."""

import math
from typing import Any

import pytest

from tests.support.chat import FORCED, USER, Chat, decoded, joined, tokenizer, word_tokens

SPELLED = {"structured_outputs": {"regex": "Größe: 7 €"}, "max_tokens": 40}
"""An output with characters of two and three bytes, which tokens may cut."""


def entries(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The logprobs of a choice, one per token."""
    return list(choice["logprobs"]["content"])


@pytest.mark.parametrize("asked", [{}, {"logprobs": None}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}])
def test_logprobs_only_when_asked(chat: Chat, asked: dict[str, Any]) -> None:
    assert chat.choice(**asked)["logprobs"] is None


@pytest.mark.parametrize("top", [None, 0])
def test_logprobs_of_each_token(chat: Chat, top: int | None) -> None:
    choice = chat.choice(logprobs=True, top_logprobs=top, return_token_ids=True, ignore_eos=True, max_tokens=6)
    found = entries(choice)
    assert len(found) == 6
    assert all(set(item) == {"token", "logprob", "bytes", "top_logprobs"} for item in found)
    assert all(item["top_logprobs"] == [] and item["logprob"] <= 0 for item in found)
    assert [item["token"] for item in found] == [
        decoded([token], skip_special_tokens=False) for token in choice["token_ids"]
    ]


def test_bytes_are_exact(chat: Chat) -> None:
    """The bytes of all tokens together are the text, also where tokens cut characters."""
    choice = chat.choice(**SPELLED, logprobs=True, top_logprobs=1)
    assert choice["message"]["content"] == "Größe: 7 €"
    found = [item for item in entries(choice) if not item["token"].startswith("<|")]
    assert bytes(byte for item in found for byte in item["bytes"]).decode() == "Größe: 7 €"
    for item in found:
        assert item["token"] == bytes(item["bytes"]).decode("utf-8", "replace")
        assert item["top_logprobs"][0]["token"] == bytes(item["top_logprobs"][0]["bytes"]).decode("utf-8", "replace")


@pytest.mark.parametrize("count", [1, 5, 20])
def test_top_logprobs_gives_the_best_in_order(chat: Chat, count: int) -> None:
    for item in entries(chat.choice(logprobs=True, top_logprobs=count, ignore_eos=True)):
        values = [top["logprob"] for top in item["top_logprobs"]]
        assert len(values) == count and values == sorted(values, reverse=True)
        assert item["logprob"] == values[0], "greedy choice takes the best"
        assert sum(map(math.exp, values)) <= 1 + 1e-5
        assert all(set(top) == {"token", "logprob", "bytes"} for top in item["top_logprobs"])


@pytest.mark.parametrize(
    "change", [{"logit_bias": {"300": 100}}, {"temperature": 2, "seed": 3}, {"repetition_penalty": 5}], ids=str
)
def test_logprobs_are_raw(chat: Chat, change: dict[str, Any]) -> None:
    """Bias, temperature and penalties change what is drawn, not the figures at the same position."""
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1}
    plain, changed = entries(chat.choice(**fields))[0], entries(chat.choice(**fields, **change))[0]
    for one, other in zip(plain["top_logprobs"], changed["top_logprobs"], strict=True):
        assert one["token"] == other["token"] and one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)


def test_a_forbidden_token_keeps_its_logprob(chat: Chat) -> None:
    """The chosen token is named by the item, even when it is far from the best."""
    token, word = word_tokens()[0]
    item = entries(chat.choice(max_tokens=1, logit_bias={str(token): FORCED}, logprobs=True, top_logprobs=1))[0]
    assert item["token"] == word and item["logprob"] <= item["top_logprobs"][0]["logprob"]


@pytest.mark.parametrize("top", [21, 50, -2, -1])
def test_too_many_logprobs(chat: Chat, top: int) -> None:
    assert "logprobs" in chat.refused(400, logprobs=True, top_logprobs=top)["param"]


def test_top_logprobs_needs_logprobs(chat: Chat) -> None:
    for flag in (None, False):
        assert chat.refused(400, logprobs=flag, top_logprobs=2)["param"] == "top_logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_as_token_ids(chat: Chat, stream: bool) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "ignore_eos": True, "max_tokens": 5}
    if stream:
        chunks = chat.chunks(**fields, return_tokens_as_token_ids=True)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        found = [item for choice in choices if choice["logprobs"] for item in entries(choice)]
        ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    else:
        choice = chat.choice(**fields, return_tokens_as_token_ids=True)
        found, ids = entries(choice), choice["token_ids"]
    plain = entries(chat.choice(**fields, return_tokens_as_token_ids=False))
    assert [item["token"] for item in found] == [f"token_id:{token}" for token in ids] and len(ids) == 5
    for item, text in zip(found, plain, strict=True):
        assert item["bytes"] == text["bytes"]
        assert [top["bytes"] for top in item["top_logprobs"]] == [top["bytes"] for top in text["top_logprobs"]]
        assert all(top["token"].startswith("token_id:") for top in item["top_logprobs"])


def test_return_token_ids(chat: Chat) -> None:
    fields = {"ignore_eos": True, "max_tokens": 5}
    answer = chat.answer(**fields, return_token_ids=True)
    choice = answer["choices"][0]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == 5
    assert decoded(choice["token_ids"]) == choice["message"]["content"]
    assert USER[0]["content"] in decoded(answer["prompt_token_ids"])
    for asked in (None, False):
        without = chat.answer(**fields, return_token_ids=asked)
        assert without["prompt_token_ids"] is None and without["choices"][0]["token_ids"] is None


def test_return_token_ids_in_a_stream(chat: Chat) -> None:
    """Prompt ids in the first chunk only; the deltas together are the ids, also those without text."""
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    whole = chat.answer(**fields)
    chunks = chat.chunks(**fields)
    assert [chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")] == [
        whole["prompt_token_ids"]
    ]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]
    assert ids == whole["choices"][0]["token_ids"]
    assert joined(chunks) == (whole["choices"][0]["message"]["content"] or "")


def test_ids_of_hidden_ends_are_returned(chat: Chat) -> None:
    """The text leaves the stop token out, the ids hold it; in streams too."""
    token, _ = word_tokens()[0]
    fields = {"logit_bias": {str(token): FORCED}, "stop_token_ids": [token], "return_token_ids": True}
    assert chat.choice(**fields)["token_ids"] == [token]
    chunks = chat.chunks(**fields)
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks if chunk["choices"][0].get("token_ids")] == [[token]]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_prompt_logprobs(chat: Chat, count: int) -> None:
    answer = chat.answer(prompt_logprobs=count, return_token_ids=True)
    ids, found = answer["prompt_token_ids"], answer["prompt_logprobs"]
    assert len(found) == len(ids) and found[0] is None
    for token, position in zip(ids[1:], found[1:], strict=True):
        keys = list(position)
        assert keys[0] == str(token)
        assert all(set(item) == {"logprob", "rank", "decoded_token"} for item in position.values())
        rank = position[keys[0]]["rank"]
        assert len(keys) == (count if 1 <= rank <= count else count + 1)
        assert sorted(item["rank"] for item in position.values()) == sorted({*range(1, count + 1), rank})
        others = sorted(position.values(), key=lambda item: item["rank"])
        values = [item["logprob"] for item in others]
        assert values == sorted(values, reverse=True) and values[0] <= 0
        assert position[keys[0]]["decoded_token"] == decoded([token], skip_special_tokens=False)


def test_prompt_logprobs_agree_with_logprobs(chat: Chat) -> None:
    """What was generated once is the prompt the second time: the same figures to 1e-4."""
    token, word = word_tokens()[0]
    first = chat.answer(
        logit_bias={str(token): FORCED}, max_tokens=3, ignore_eos=True, logprobs=True, return_token_ids=True
    )
    generated = first["choices"][0]
    assert generated["token_ids"] == [token] * 3
    again = chat.answer(
        messages=[*USER, {"role": "assistant", "content": generated["message"]["content"]}],
        add_generation_prompt=False,
        continue_final_message=True,
        prompt_logprobs=0,
        return_token_ids=True,
    )
    assert again["prompt_token_ids"] == [*first["prompt_token_ids"], token, token, token]
    figures = [position[str(token)]["logprob"] for position in again["prompt_logprobs"][-3:]]
    assert figures == pytest.approx([item["logprob"] for item in entries(generated)], abs=1e-4)
    assert again["prompt_logprobs"][-1][str(token)]["decoded_token"] == word


def test_prompt_logprobs_are_the_same_with_a_warm_cache(chat: Chat) -> None:
    messages = [{"role": "user", "content": "Copy: " + "red green blue " * 12}]
    plain = chat.answer(messages=messages, prompt_logprobs=1)["prompt_logprobs"]
    chat.answer(messages=messages)
    again = chat.answer(messages=messages, prompt_logprobs=1)["prompt_logprobs"]
    assert [list(item or {}) for item in again] == [list(item or {}) for item in plain]


@pytest.mark.parametrize("count", [-1, 21, -2])
def test_prompt_logprobs_that_cannot_be(chat: Chat, count: int) -> None:
    assert chat.refused(400, prompt_logprobs=count)["param"] == "prompt_logprobs"


def test_prompt_logprobs_do_not_stream(chat: Chat) -> None:
    for count in (1, -1):
        assert chat.refused(400, prompt_logprobs=count, stream=True)["param"] == "prompt_logprobs"


def test_prompt_logprobs_of_0_come_with_the_first_chunk(chat: Chat) -> None:
    whole, chunks = chat.answer(prompt_logprobs=0), chat.chunks(prompt_logprobs=0)
    found = [list(item or {}) for item in chunks[0]["prompt_logprobs"]]
    assert found == [list(item or {}) for item in whole["prompt_logprobs"]]
    assert all("prompt_logprobs" not in chunk for chunk in chunks[1:])


ECHO = [*USER, {"role": "assistant", "content": "HEAD "}]


def test_echo_puts_the_last_message_first(chat: Chat) -> None:
    plain = chat.answer(messages=ECHO)["choices"][0]["message"]["content"] or ""
    answer = chat.answer(messages=ECHO, echo=True)
    assert answer["choices"][0]["message"]["content"] == "HEAD " + plain
    assert answer["prompt_logprobs"][0] is None and len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    chunks = chat.chunks(messages=ECHO, echo=True)
    assert chunks[1]["choices"][0]["delta"] == {"content": "HEAD "}
    assert joined(chunks) == "HEAD " + plain


def test_echo_needs_the_same_role(chat: Chat) -> None:
    assert chat.content(echo=True) == chat.content()


def test_echo_with_continue_final_message_is_the_whole_text(chat: Chat) -> None:
    fields = {"messages": ECHO, "add_generation_prompt": False, "continue_final_message": True}
    assert chat.content(**fields, echo=True) == "HEAD " + chat.content(**fields)


def test_every_token_of_the_vocabulary_can_be_named(chat: Chat) -> None:
    """The greatest id is a token like any other."""
    token = tokenizer().get_vocab_size() - 1
    fields = {"logit_bias": {str(token): FORCED}, "max_tokens": 1, "ignore_eos": True, "logprobs": True}
    choice = chat.choice(**fields, return_token_ids=True, return_tokens_as_token_ids=True)
    assert choice["token_ids"] == [token] and entries(choice)[0]["token"] == f"token_id:{token}"
