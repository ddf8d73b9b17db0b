"""Training reads the prompts that the chat had: the same ids for the same messages, tools and answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat import Chat
from tests.support.server import HeddleProcess
from tests.support.trajectories import Json, pair, prepared, tiny_renderer, user

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
CONVERSATIONS: dict[str, list[Json]] = {
    "one": [user("What is 1 + 2?")],
    "system": [{"role": "system", "content": "Be brief."}, user("Is it warm?")],
    "several turns": [
        user("a"),
        {"role": "assistant", "content": "b"},
        user("c"),
        {"role": "assistant", "content": ""},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}],
    "names": [{"role": "user", "name": "ann", "content": "hi"}, {"role": "developer", "content": "x"}],
    "call": [
        user("1 + 2?"),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ],
    "old call": [
        user("1 + 2?"),
        {"role": "assistant", "content": "", "function_call": CALL["function"]},
        {"role": "function", "name": "add", "content": "3"},
    ],
    "unicode": [user("grüße, 你好 \U0001f642 <|im_end|>")],
}


@pytest.fixture
def chat(server: HeddleProcess) -> Iterator[Chat]:
    with Chat(server.url) as caller:
        yield caller


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_prompt(chat: Chat, name: str, tools: list[Json] | None) -> None:
    messages = CONVERSATIONS[name]
    options: dict[str, Any] = {"tools": tools} if tools else {}
    served = chat.prompt_ids(messages=messages, **options)
    assert tiny_renderer().render(messages, tools, generation_prompt=True) == served


def test_a_served_conversation_becomes_what_the_model_read_and_wrote(chat: Chat) -> None:
    """Two turns, each with its ids: the sequence (or both, after a split) ends with exactly prompt and answer."""
    options = {"logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True, "max_tokens": 12}
    items: list[Json] = [user("What is 1 + 2?")]
    turns: list[list[int]] = []
    for question in ("And 3 + 4?", None):
        messages = [item if "role" in item else item["message"] for item in items]
        answer = chat.answer(messages=messages, temperature=1, seed=7, **options)
        (sampled,) = answer["choices"]
        turns.append([*answer["prompt_token_ids"], *sampled["token_ids"]])
        items.append(sampled)
        if question is not None:
            items.append(user(question))
    made = [member for member in prepared(pair(*items)).sequences if member.trajectory == 0]
    read = [member.ids[:end] for member in made for end in range(1, len(member.ids) + 1)]
    assert all(turn in read for turn in turns)
    assert made[-1].ids == turns[-1]
    logprobs = [entry["logprob"] for item in items if "role" not in item for entry in item["logprobs"]["content"]]
    kept = [value for member in made for value, flag in zip(member.logprobs, member.mask, strict=True) if flag]
    assert kept == logprobs
