"""Reasoning blocks: split from the answer, hidden on demand, counted always."""

from typing import Any

import pytest

from tests.support.chat import Chat, joined

THOUGHT = {"structured_outputs": {"grammar": 'start: <think> "so 17" </think> "Blue."'}, "max_tokens": 60}
"""The model writes a reasoning block and an answer; the grammar names the marks as the special tokens they are."""


def split(chat: Chat, stream: bool, **fields: Any) -> tuple[str | None, str | None]:
    """Reasoning and content of an answer."""
    if stream:
        chunks = chat.chunks(**fields)
        return joined(chunks, "reasoning") or None, joined(chunks) or None
    message = chat.choice(**fields)["message"]
    return message["reasoning"], message["content"] or None


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_split_from_the_answer(chat: Chat, stream: bool) -> None:
    assert split(chat, stream, **THOUGHT) == ("so 17", "Blue.")
    assert split(chat, stream, **THOUGHT, include_reasoning=True) == ("so 17", "Blue.")


@pytest.mark.parametrize("stream", [False, True])
def test_include_reasoning_false_hides_it(chat: Chat, stream: bool) -> None:
    assert split(chat, stream, **THOUGHT, include_reasoning=False) == (None, "Blue.")


def test_hidden_reasoning_is_still_counted(chat: Chat) -> None:
    shown = chat.answer(**THOUGHT)["usage"]
    hidden = chat.answer(**THOUGHT, include_reasoning=False)["usage"]
    assert shown["completion_tokens"] == hidden["completion_tokens"]
    count = hidden["completion_tokens_details"]["reasoning_tokens"]
    assert count == shown["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < count < hidden["completion_tokens"]


def test_hidden_reasoning_hides_its_ids_and_logprobs(chat: Chat) -> None:
    fields = {**THOUGHT, "return_token_ids": True, "logprobs": True}
    shown, hidden = chat.choice(**fields), chat.choice(**fields, include_reasoning=False)
    assert len(shown["token_ids"]) == len(shown["logprobs"]["content"]) > 0
    assert (hidden["token_ids"], hidden["logprobs"]) == (None, None)
    chunks = chat.chunks(**fields, include_reasoning=False)
    assert not any(choice.get("token_ids") or choice["logprobs"] for chunk in chunks for choice in chunk["choices"])


def test_an_answer_without_reasoning(chat: Chat) -> None:
    fields = {"structured_outputs": {"choice": ["Blue."]}, "max_tokens": 30}
    assert split(chat, False, **fields) == (None, "Blue.")
    assert chat.answer(**fields)["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_block_that_is_never_closed_is_all_reasoning(chat: Chat) -> None:
    fields = {"structured_outputs": {"grammar": 'start: <think> "so 17 and so on"'}, "max_tokens": 60}
    reasoning, content = split(chat, False, **fields)
    assert (reasoning, content) == ("so 17 and so on", None)


def test_with_reasoning_effort_the_prompt_asks_for_it(chat: Chat) -> None:
    assert chat.prompt(reasoning_effort="high") != chat.prompt(reasoning_effort="low")
    for effort in ("low", "medium", "high"):
        choice = chat.choice(reasoning_effort=effort, max_tokens=8, ignore_eos=True)
        assert (choice["message"]["reasoning"] or "") + (choice["message"]["content"] or "")
