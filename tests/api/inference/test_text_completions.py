"""POST /v1/completions: prompts of every form, what is echoed, log-probabilities, streams, and what is refused."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.support.chat import Chat, data_lines, decoded, encoded, error_of
from tests.support.models import make_adapter

PROMPT = "the sum of two and three is"
OTHER = "say it again"


class Texts:
    """A caller of the route."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def ask(self, **fields: Any) -> Any:
        """The raw answer of a short greedy completion with these fields over it."""
        body = {"model": self.chat.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 5, **fields}
        return self.chat.client.post("/v1/completions", json=body)

    def answer(self, **fields: Any) -> dict[str, Any]:
        """The body of a completion that must succeed."""
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def choice(self, **fields: Any) -> dict[str, Any]:
        """The only choice."""
        (choice,) = self.answer(**fields)["choices"]
        return dict(choice)

    def texts(self, **fields: Any) -> list[str]:
        """The text of each choice."""
        return [choice["text"] for choice in self.answer(**fields)["choices"]]

    def refused(self, status: int, **fields: Any) -> dict[str, Any]:
        """The error object of a refusal."""
        answer = self.ask(**fields)
        assert answer.status_code == status, answer.text
        return error_of(answer)

    def chunks(self, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, which ends with `[DONE]`."""
        answer = self.ask(stream=True, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = data_lines(answer.text)
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def texts(chat: Chat) -> Texts:
    return Texts(chat)


def test_the_fields_of_an_answer(texts: Texts, chat: Chat) -> None:
    body = texts.answer()
    assert set(body) == {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
        "kv_transfer_params",
    }  # fmt: skip
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-") and body["model"] == chat.model
    (choice,) = body["choices"]
    assert set(choice) == {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs",
        "prompt_token_ids",
    }  # fmt: skip
    prompt, made = len(encoded(PROMPT)), body["usage"]["completion_tokens"]
    assert body["usage"]["prompt_tokens"] == prompt and body["usage"]["total_tokens"] == prompt + made
    assert choice["text"] and choice["finish_reason"] in ("stop", "length") and choice["logprobs"] is None


def test_a_prompt_is_read_as_it_stands(texts: Texts, chat: Chat) -> None:
    """No template touches it: the rendered prompt of a chat continues as the chat does."""
    prompt = chat.prompt_ids()
    assert texts.choice(prompt=prompt, return_token_ids=True)["token_ids"] == chat.token_ids(max_tokens=5)
    assert texts.choice(prompt=chat.prompt(), return_token_ids=True)["prompt_token_ids"] == prompt


def test_the_four_forms_of_a_prompt(texts: Texts) -> None:
    one, other = texts.choice()["text"], texts.choice(prompt=OTHER)["text"]
    ids, other_ids = encoded(PROMPT), encoded(OTHER)
    assert texts.texts(prompt=ids) == texts.texts(prompt=[PROMPT]) == texts.texts(prompt=[ids]) == [one]
    assert texts.texts(prompt=[PROMPT, OTHER]) == texts.texts(prompt=[ids, other_ids]) == [one, other]
    body = texts.answer(prompt=[PROMPT, OTHER])
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == len(ids) + len(other_ids)


def test_several_choices_of_several_prompts(texts: Texts) -> None:
    fields = {"prompt": [PROMPT, OTHER], "n": 2, "temperature": 1.0, "seed": 7, "return_token_ids": True}
    choices = texts.answer(**fields)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    asked = [encoded(PROMPT)] * 2 + [encoded(OTHER)] * 2
    assert [choice["prompt_token_ids"] for choice in choices] == asked
    alone = texts.answer(**fields | {"prompt": OTHER})["choices"]
    assert [choice["text"] for choice in choices[2:]] == [choice["text"] for choice in alone]


def test_sixteen_tokens_by_default(texts: Texts) -> None:
    body = texts.answer(max_tokens=None, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 16 and body["choices"][0]["finish_reason"] == "length"


def test_echo_puts_the_prompt_first(texts: Texts) -> None:
    plain = texts.choice()["text"]
    assert texts.choice(echo=True)["text"] == PROMPT + plain
    assert texts.choice(prompt=encoded(PROMPT), echo=True)["text"] == PROMPT + plain
    assert texts.choice(echo=True, truncate_prompt_tokens=2)["text"].startswith(decoded(encoded(PROMPT)[-2:]))


def test_echo_alone(texts: Texts) -> None:
    choice = texts.choice(echo=True, max_tokens=0, logprobs=1)
    assert choice["text"] == PROMPT == "".join(choice["logprobs"]["tokens"])
    assert len(choice["logprobs"]["token_logprobs"]) == len(encoded(PROMPT))
    assert choice["logprobs"]["token_logprobs"][0] is None and choice["logprobs"]["top_logprobs"][0] is None
    assert texts.refused(400, max_tokens=0)["param"] == "max_tokens"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_logprobs_are_four_lists_side_by_side(texts: Texts, count: int) -> None:
    choice = texts.choice(logprobs=count, return_token_ids=True, ignore_eos=True)
    told = choice["logprobs"]
    assert set(told) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert {len(items) for items in told.values()} == {5}
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == [len("".join(told["tokens"][:number])) for number in range(5)]
    for token, logprob, best in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        assert best[token] == logprob == max(best.values()), "greedy takes the best"
        assert len(best) == max(count, 1)


def test_logprobs_of_an_echoed_prompt_are_those_of_the_chat_route(texts: Texts, chat: Chat) -> None:
    ids = chat.prompt_ids()
    choice = texts.choice(prompt=ids, echo=True, logprobs=2, return_token_ids=True)
    told = chat.answer(prompt_logprobs=2)["prompt_logprobs"]
    wanted = [None, *(entry[str(token)]["logprob"] for token, entry in zip(ids[1:], told[1:], strict=True))]
    assert choice["logprobs"]["token_logprobs"][: len(ids)] == pytest.approx(wanted)
    assert len(choice["logprobs"]["tokens"]) == len(ids) + len(choice["token_ids"])
    assert choice["logprobs"]["text_offset"][0] == 0


def test_tokens_named_by_id(texts: Texts) -> None:
    choice = texts.choice(echo=True, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in ids]


def test_prompt_logprobs(texts: Texts) -> None:
    told = texts.choice(prompt_logprobs=1)["prompt_logprobs"]
    assert told[0] is None and len(told) == len(encoded(PROMPT))
    assert all({"logprob", "rank", "decoded_token"} == set(entry) for item in told[1:] for entry in item.values())
    assert texts.refused(400, prompt_logprobs=1, stream=True)["param"] == "prompt_logprobs"


def test_stop_strings_and_why_it_ended(texts: Texts) -> None:
    text = texts.choice(max_tokens=20, ignore_eos=True)["text"]
    stop = text[4:8]
    choice = texts.choice(max_tokens=20, ignore_eos=True, stop=stop)
    assert choice["text"] == text.partition(stop)[0] and choice["stop_reason"] == stop
    assert choice["finish_reason"] == "stop"


def test_structured_outputs_and_their_older_names(texts: Texts) -> None:
    wanted = {"choice": ["lamp", "rain"]}
    (text,) = texts.texts(structured_outputs=wanted)
    assert text in wanted["choice"]
    assert texts.texts(guided_choice=wanted["choice"]) == [text]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [7]}}}
    assert texts.texts(response_format=schema) == ["7"]


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}, {"n": 2, "temperature": 1.0}])
def test_a_stream_is_the_whole_in_parts(texts: Texts, fields: dict[str, Any]) -> None:
    fields = {"prompt": [PROMPT, OTHER], "logprobs": 1, "seed": 3, "return_token_ids": True, **fields}
    whole = texts.answer(**fields)
    chunks = texts.chunks(**fields, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] and parts[0]["prompt_token_ids"]
        told = {
            name: [item for part in parts if part["logprobs"] for item in part["logprobs"][name]]
            for name in choice["logprobs"]
        }
        assert told["tokens"] == choice["logprobs"]["tokens"]
        assert told["text_offset"] == choice["logprobs"]["text_offset"]
        assert told["token_logprobs"] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
        assert [set(best or ()) for best in told["top_logprobs"]] == [
            set(best or ()) for best in choice["logprobs"]["top_logprobs"]
        ]


def test_usage_in_every_chunk(texts: Texts) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = texts.chunks(prompt=[PROMPT, OTHER], ignore_eos=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [PROMPT, ""]}, "prompt"),
        ({"prompt": [5, 10**6]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * 20, "n": 60}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(texts: Texts, fields: dict[str, Any], param: str) -> None:
    error = texts.refused(400, **fields)
    assert error["param"] == param and param in error["message"]


def test_stream_options_need_a_stream(texts: Texts) -> None:
    assert texts.refused(400, stream_options={"include_usage": True})["param"] == "stream_options"


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [[]], [None], ["x", 5], [[5], "x"], [["x"]], [5.5], True])
def test_a_prompt_of_another_form_is_named_once(texts: Texts, prompt: Any) -> None:
    answer = texts.ask(prompt=prompt)
    assert answer.status_code == 422, answer.text
    assert [item["loc"] for item in answer.json()["detail"]] == [["body", "prompt"]]
    assert "list of token ids" in error_of(answer)["message"]


def test_a_prompt_that_is_too_long(texts: Texts, chat: Chat) -> None:
    longest = chat.client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert "maximum context length" in texts.refused(400, prompt="word " * longest)["message"]
    assert "maximum context length" in texts.refused(400, prompt=[5] * longest)["message"]


def test_suffix_and_best_of_without_effect_are_taken(texts: Texts) -> None:
    assert texts.texts(suffix="", best_of=1) == texts.texts() == texts.texts(suffix=None, best_of=None)


def test_ignored_fields_are_named_and_refused_where_asked(texts: Texts, chat: Chat) -> None:
    answer = texts.ask(colour="blue", structured_outputs={"regex": "a", "kind": 1})
    assert answer.headers["x-heddle-ignored-fields"] == "colour, structured_outputs.kind"
    body = {"prompt": PROMPT, "use_beam_search": True}
    strict = chat.client.post("/v1/completions", json=body, headers={"x-heddle-strict-fields": "true"})
    assert strict.status_code == 400 and error_of(strict)["param"] == "use_beam_search"


def test_the_marks_of_reasoning_are_text(texts: Texts) -> None:
    (text,) = texts.texts(structured_outputs={"regex": "<think>a</think>b"}, max_tokens=40)
    assert text == "<think>a</think>b"


def test_an_adapter_answers_under_its_name(texts: Texts, chat: Chat, tmp_path: Path) -> None:
    folder, name = make_adapter(tmp_path / "adapter", TINY_FOLDER, lora_alpha=800), f"texts-{uuid.uuid4().hex[:8]}"
    loaded = chat.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    fields: dict[str, Any] = {
        "prompt": chat.prompt_ids(),
        "max_tokens": 8,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = texts.ask(model=name, **fields)
    assert answer.json()["model"] == name and answer.headers["x-heddle-policy"].startswith(f"{name}@")
    made = answer.json()["choices"][0]["token_ids"]
    assert made == chat.token_ids(model=name, max_tokens=8, ignore_eos=True)
    assert made != texts.choice(**fields)["token_ids"]
    assert texts.refused(404, model="zzz")["param"] == "model"
