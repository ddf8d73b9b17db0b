"""POST /tokenize and /detokenize."""

from typing import Any

import pytest

from tests.support.chat import TINY, USER, Chat, decoded, encoded, error_of

TEXT = "the sum of two and three <|im_end|>"


def ask(chat: Chat, path: str, **body: Any) -> dict[str, Any]:
    """The body of an answer that must succeed."""
    answer = chat.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_text_and_back(chat: Chat) -> None:
    found = ask(chat, "/tokenize", model=TINY, prompt=TEXT)
    longest = chat.client.get("/v1/models").json()["data"][0]["max_model_len"]
    ids = encoded(TEXT)
    assert found == {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": None}
    assert ask(chat, "/detokenize", model=TINY, tokens=ids) == {"prompt": decoded(ids, skip_special_tokens=False)}
    assert ask(chat, "/tokenize", prompt="")["tokens"] == []
    assert ask(chat, "/detokenize", tokens=[]) == {"prompt": ""}


def test_the_pieces_of_the_vocabulary(chat: Chat) -> None:
    found = ask(chat, "/tokenize", prompt="two and", return_token_strs=True)
    assert len(found["token_strs"]) == found["count"] and found["token_strs"][-1] == "Ġand"


def test_a_conversation_is_what_a_completion_reads(chat: Chat) -> None:
    assert ask(chat, "/tokenize", messages=USER)["tokens"] == chat.prompt_ids()
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert ask(chat, "/tokenize", messages=USER, tools=tools)["tokens"] == chat.prompt_ids(tools=tools)
    fields = {"messages": USER, "chat_template": "{{ messages[0].content }}{{ x }}", "chat_template_kwargs": {"x": "!"}}
    assert ask(chat, "/tokenize", **fields)["tokens"] == encoded("Say something.!")
    open_end = ask(chat, "/tokenize", messages=USER, add_generation_prompt=False)["tokens"]
    assert len(open_end) < len(chat.prompt_ids())


def test_longer_than_the_context(chat: Chat) -> None:
    longest = chat.client.get("/v1/models").json()["data"][0]["max_model_len"]
    messages = [{"role": "user", "content": "word " * longest}]
    assert ask(chat, "/tokenize", messages=messages)["count"] > longest


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 422, "body.prompt"),
        ("/tokenize", {"prompt": 5}, 422, "body.prompt"),
        ("/tokenize", {"messages": [{"content": "x"}]}, 422, "body.messages.0.role"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "x", "model": "zzz"}, 404, "model"),
        ("/tokenize", {"prompt": "ab " * 1_200_000}, 400, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "ab " * 1_200_000}]}, 400, "messages"),
        ("/detokenize", {"tokens": ["x"]}, 422, "body.tokens.0"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/detokenize", {"tokens": [5] * 1_048_577}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ],
)
def test_what_cannot_be_done(chat: Chat, path: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = chat.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert error_of(answer)["param"] == param


def test_ignored_fields_are_named_and_refused_where_asked(chat: Chat) -> None:
    strict = {"x-heddle-strict-fields": "true"}
    for path, body in (
        ("/tokenize", {"prompt": "x"}),
        ("/tokenize", {"messages": USER}),
        ("/detokenize", {"tokens": [5]}),
    ):
        answer = chat.client.post(path, json={**body, "colour": "blue"})
        assert answer.status_code == 200 and answer.headers["x-heddle-ignored-fields"] == "colour"
        assert "x-heddle-ignored-fields" not in chat.client.post(path, json=body).headers
        refused = chat.client.post(path, json={**body, "colour": "blue"}, headers=strict)
        assert refused.status_code == 400 and error_of(refused)["param"] == "colour"
