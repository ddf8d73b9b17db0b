"""A plain HTTP caller of the inference routes, and what tests need to know about the tiny model's tokens."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import httpx
from tokenizers import Tokenizer

from heddle.inference.served_model import TINY, TINY_FOLDER

API_KEY = "0123456789abcdef0123456789abcdef01234567"
USER = [{"role": "user", "content": "Say something."}]
FORCED = 100.0
"""A logit bias that no other token of the model outweighs."""


class Chat:
    """The inference routes of one server; `bearer` is the API key, None sends no key."""

    def __init__(self, url: str, bearer: str | None = API_KEY, model: str = TINY) -> None:
        headers = {"authorization": f"Bearer {bearer}"} if bearer is not None else {}
        self.url = url
        self.model = model
        self.client = httpx.Client(base_url=url, headers=headers, timeout=600)

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def body(self, **fields: Any) -> dict[str, Any]:
        """A request body: a short greedy chat with these fields over it."""
        return {"model": self.model, "messages": USER, "temperature": 0, "max_tokens": 4, **fields}

    def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """The raw answer of one chat."""
        return self.client.post("/v1/chat/completions", json=self.body(**fields), headers=headers)

    def answer(self, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """The body of a chat that must succeed."""
        answer = self.ask(headers, **fields)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:2000]}"
        return dict(answer.json())

    def choice(self, **fields: Any) -> dict[str, Any]:
        """The only choice of a chat that must succeed."""
        (choice,) = self.answer(**fields)["choices"]
        return dict(choice)

    def content(self, **fields: Any) -> str:
        """The text of a chat that must succeed."""
        return str(self.choice(**fields)["message"]["content"])

    def token_ids(self, **fields: Any) -> list[int]:
        """The generated token ids of a chat that must succeed."""
        return list(self.choice(return_token_ids=True, **fields)["token_ids"])

    def prompt_ids(self, **fields: Any) -> list[int]:
        """The token ids of the prompt that the fields make."""
        return list(self.answer(**{"max_tokens": 1, **fields, "return_token_ids": True})["prompt_token_ids"])

    def prompt(self, **fields: Any) -> str:
        """The text of the prompt that the fields make, special tokens included."""
        return decoded(self.prompt_ids(**fields), skip_special_tokens=False)

    def refused(self, status: int, **fields: Any) -> dict[str, Any]:
        """The error object of a chat that must be refused with that status; its outer shape is checked here."""
        answer = self.ask(**fields)
        assert answer.status_code == status, f"{answer.status_code} {answer.text[:2000]}"
        return error_of(answer)

    @contextlib.contextmanager
    def streaming(self, **fields: Any) -> Iterator[httpx.Response]:
        """An open stream."""
        body = self.body(**{"stream": True, **fields})
        with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            yield answer

    def chunks(self, **fields: Any) -> list[dict[str, Any]]:
        """Every chunk of a stream that must succeed; it must end with `[DONE]`."""
        with self.streaming(**fields) as answer:
            text = answer.read().decode()
            assert answer.status_code == 200, text[:2000]
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = data_lines(text)
        assert lines and lines[-1] == "[DONE]", text[-2000:]
        return [json.loads(line) for line in lines[:-1]]

    def engine(self) -> dict[str, Any]:
        """The figures of the served model's engine."""
        answer = self.client.get("/v1/engine")
        assert answer.status_code == 200, answer.text
        return engine_figures(answer.json(), self.model)

    def until_idle(self, timeout: float = 60) -> dict[str, Any]:
        """Poll until no request runs or waits and no block is held; the figures then."""

        def idle() -> bool:
            figures = self.engine()
            return not (figures["running"] or figures["waiting"] or figures["kv_blocks_used"])

        until(idle, "the engine is idle", timeout)
        return self.engine()


def engine_figures(body: Any, model: str) -> dict[str, Any]:
    """The figures of one model in the answer of GET /v1/engine."""
    found = [item for item in body["data"] if item["model"] == model]
    assert len(found) == 1, body
    return dict(found[0])


def data_lines(text: str) -> list[str]:
    """The payloads of a server-sent event stream, whose every event is one `data:` line and an empty line."""
    events = text.split("\n\n")
    assert events.pop() == "", text[-200:]
    assert all(event.startswith("data: ") and "\n" not in event for event in events), text[:500]
    return [event.removeprefix("data: ") for event in events]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object of a refusal: 422 carries a `detail` array beside it, every other status does not."""
    body = answer.json()
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, body
    assert error["code"] == answer.status_code and isinstance(error["message"], str) and error["message"], body
    if answer.status_code == 422:
        assert set(body) == {"detail", "error"} and body["detail"], body
        assert all({"loc", "msg", "type"} <= set(item) for item in body["detail"]), body
    else:
        assert set(body) == {"error"}, body
    return dict(error)


def joined(chunks: list[dict[str, Any]], key: str = "content", index: int = 0) -> str:
    """The text that the deltas of one choice make up."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(key) or "" for choice in choices)


def until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Poll until the condition holds; fails after the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)


@cache
def tokenizer() -> Tokenizer:
    """The tokenizer of the shipped model."""
    return Tokenizer.from_file(str(TINY_FOLDER / "tokenizer.json"))


def encoded(text: str) -> list[int]:
    """The token ids of a text."""
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def decoded(ids: list[int], skip_special_tokens: bool = True) -> str:
    """The text of token ids."""
    return str(tokenizer().decode(ids, skip_special_tokens=skip_special_tokens))


@cache
def word_tokens(count: int = 4) -> tuple[tuple[int, str], ...]:
    """Tokens that are a blank and a word and stay themselves when they are repeated: id and text."""
    words = sorted(text[1:] for text in tokenizer().get_vocab() if text[1:].isascii() and text[1:].isalpha())
    texts = [f" {word}" for word in words if len(word) > 2 and len(encoded(word)) == len(encoded(f" {word}")) == 1]
    found = [(encoded(text)[0], text) for text in texts if encoded(text * 3) == encoded(text) * 3]
    assert len(found) >= count, "the tokenizer has too few words"
    return tuple(found[:count])


def containing(character: str, bias: float) -> dict[str, float]:
    """A bias on every token whose text holds a character."""
    table = tokenizer()
    return {str(token): bias for token in range(table.get_vocab_size()) if character in table.decode([token])}


@cache
def end_token() -> int:
    """The end-of-sequence token of the shipped model."""
    return int(tokenizer().token_to_id("<|im_end|>"))
