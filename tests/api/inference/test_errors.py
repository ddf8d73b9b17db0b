"""Refusals: status, body shape and the field they name; nulls and defaults that are never refused; wild input."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat import API_KEY, Chat, error_of
from tests.support.cli import make_key
from tests.support.server import HeddleProcess

NULLABLE = [
    "model", "frequency_penalty", "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens", "n",
    "presence_penalty", "seed", "stream", "temperature", "top_p", "tools", "reasoning_effort",
    "parallel_tool_calls", "user", "top_k", "min_p", "repetition_penalty", "stop_token_ids",
    "truncate_prompt_tokens", "prompt_logprobs", "allowed_token_ids", "documents", "chat_template",
    "return_tokens_as_token_ids", "return_token_ids", "cache_salt",
]  # fmt: skip
"""What the interface marks as nullable."""
MORE_NULLS = [
    "logit_bias", "response_format", "stop", "stream_options", "tool_choice", "include_reasoning", "length_penalty",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "bad_words", "echo", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template_kwargs", "mm_processor_kwargs", "structured_outputs", "priority",
    "request_id", "kv_transfer_params", "engine_xargs", "vllm_xargs", "repetition_detection",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern",
    "guided_decoding_backend", "structural_tag", "functions", "function_call", "enable_thinking", "reasoning",
    "thinking",
]  # fmt: skip
"""The rest: real clients send null for what they leave out."""
DEFAULTS: dict[str, Any] = {
    "frequency_penalty": 0,
    "logprobs": False,
    "top_logprobs": 0,
    "n": 1,
    "presence_penalty": 0,
    "stop": [],
    "stream": False,
    "tool_choice": "none",
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "length_penalty": 1,
    "include_stop_str_in_output": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "echo": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "priority": 0,
    "logit_bias": {},
    "bad_words": [],
    "chat_template_kwargs": {},
    "mm_processor_kwargs": {},
    "kv_transfer_params": {},
    "engine_xargs": {},
    "vllm_xargs": {},
    "repetition_detection": {},
}
WRONG: dict[str, list[Any]] = {
    "messages": [None, "hello", {}, [None], ["hello"], [{"content": "x"}], [{"role": 5, "content": "x"}]],
    "model": [5, ["m"]],
    "frequency_penalty": ["x", [], True],
    "logit_bias": [[], "x", {"5": "x"}, {"5": None}],
    "logprobs": ["yes", 2],
    "top_logprobs": ["x", 1.5],
    "max_tokens": ["x", 1.5, []],
    "max_completion_tokens": ["x", 1.5],
    "n": ["x", 1.5],
    "presence_penalty": ["x"],
    "response_format": [[], "json"],
    "seed": ["x", 1.5],
    "stop": [5, [5], {}],
    "stream": ["yes", 2],
    "stream_options": [[], "x", {"include_usage": "yes"}],
    "temperature": ["hot", []],
    "top_p": ["x"],
    "tools": [{}, "x", [5]],
    "tool_choice": [5, []],
    "reasoning_effort": [5, "zzz"],
    "include_reasoning": ["x", 3],
    "parallel_tool_calls": ["x"],
    "user": [5, {}],
    "top_k": ["x", 1.5],
    "min_p": ["x"],
    "repetition_penalty": ["x"],
    "length_penalty": ["x"],
    "stop_token_ids": [5, ["x"], [1.5]],
    "include_stop_str_in_output": ["x"],
    "ignore_eos": ["x"],
    "min_tokens": ["x", 1.5],
    "skip_special_tokens": ["x"],
    "spaces_between_special_tokens": ["x"],
    "truncate_prompt_tokens": ["x", 1.5, -2],
    "prompt_logprobs": ["x", 1.5],
    "allowed_token_ids": [5, ["x"]],
    "bad_words": [5, [5]],
    "echo": ["x"],
    "add_generation_prompt": ["x"],
    "continue_final_message": ["x"],
    "add_special_tokens": ["x"],
    "documents": [5, [5], {}],
    "chat_template": [5, []],
    "chat_template_kwargs": [5, []],
    "mm_processor_kwargs": [5, []],
    "structured_outputs": [5, [], {"choice": "x"}, {"json_object": "x"}, {"regex": 5}, {"disable_fallback": "x"}],
    "priority": ["x", 1.5],
    "request_id": [5],
    "return_tokens_as_token_ids": ["x"],
    "return_token_ids": ["x"],
    "cache_salt": [5],
    "kv_transfer_params": [5, []],
    "engine_xargs": [5, [], {"a": {}}, {"a": None}],
    "vllm_xargs": [5, {"a": [{}]}],
    "repetition_detection": [5, [], {"min_count": "x"}, {"max_pattern_size": 1.5}],
    "guided_json": [5, []],
    "guided_regex": [5],
    "guided_choice": ["x", [5]],
    "guided_grammar": [5],
    "guided_whitespace_pattern": [5],
    "guided_decoding_backend": [5],
    "structural_tag": [5],
    "functions": [{}, "x", [5]],
    "function_call": [5, []],
    "enable_thinking": ["x"],
    "reasoning": ["high", {"effort": 5}],
    "thinking": ["x", {"type": "maybe"}],
}


def test_every_field_is_tried() -> None:
    """The tables here and the request model know the same fields."""
    from heddle.inference.chat.request import ChatRequest

    fields = set(ChatRequest.model_fields)
    assert set(WRONG) == fields
    assert {*NULLABLE, *MORE_NULLS, "messages"} == fields


@pytest.mark.parametrize("name", [*NULLABLE, *MORE_NULLS])
def test_null_is_as_good_as_nothing(chat: Chat, name: str) -> None:
    """No field is refused at null."""
    body = {**chat.body(max_tokens=3, max_completion_tokens=3), name: None}
    answer = chat.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert 1 <= answer.json()["usage"]["completion_tokens"] <= 3


def test_all_nulls_at_once(chat: Chat) -> None:
    nulls = dict.fromkeys([*NULLABLE, *MORE_NULLS])
    answer = chat.ask(**{**nulls, "max_tokens": 3, "temperature": 0})
    assert answer.status_code == 200, answer.text
    assert "x-heddle-ignored-fields" not in answer.headers


def test_defaults_are_never_refused(chat: Chat) -> None:
    plain = chat.token_ids()
    for name, value in DEFAULTS.items():
        assert chat.token_ids(**{name: value}) == plain, name
    assert chat.token_ids(**DEFAULTS) == plain


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_are_422_and_named(chat: Chat, name: str) -> None:
    for value in WRONG[name]:
        error = chat.refused(422, **{name: value})
        assert error["type"] == "Bad Request", error
        assert name in error["param"], (value, error)
        assert name in error["message"], "many clients show the message alone"
        answer = chat.ask(**{name: value})
        assert name in answer.json()["detail"][0]["loc"], answer.text


def test_a_missing_field_is_422(chat: Chat) -> None:
    answer = chat.client.post("/v1/chat/completions", json={})
    assert answer.status_code == 422
    error = error_of(answer)
    assert (error["param"], error["message"]) == ("body.messages", "messages: Field required")
    assert answer.json()["detail"] == [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]


@pytest.mark.parametrize("raw", [b'{"a":', b"", b"[]", b'"x"', b"5", b"null", b"\xff\xfe", b'{"messages": NaN}'])
def test_bodies_that_are_no_objects(chat: Chat, raw: bytes) -> None:
    answer = chat.client.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    error_of(answer)


@pytest.mark.parametrize("name", ["zzz", "heddle-tiny@3", "wandb-artifact:///a/b/c:step1", "../x", "", "a" * 10_000])
def test_an_unknown_model_is_404(chat: Chat, name: str) -> None:
    error = chat.refused(404, model=name)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")


def test_unknown_paths_and_methods(chat: Chat) -> None:
    assert chat.client.get("/v1/nothing").status_code == 404
    assert chat.client.get("/v1/nothing").json()["detail"] == "Not Found"
    wrong = chat.client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["detail"]) == (405, "Method Not Allowed")


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Basic YXBpOng=", "bearer-token x"], ids=repr)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_without_a_bearer_it_is_401(chat: Chat, authorization: str | None, path: str) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    with Chat(chat.url, bearer=None) as nobody:
        answer = nobody.client.post(path, json=chat.body(), headers=headers)
    assert answer.status_code == 401
    assert error_of(answer)["type"] == "AuthenticationError"


@pytest.mark.parametrize("authorization", [f"Bearer {API_KEY}", f"bearer {API_KEY}", "Bearer anything"])
def test_without_auth_any_bearer_will_do(chat: Chat, authorization: str) -> None:
    with Chat(chat.url, bearer=None) as somebody:
        headers = {"authorization": authorization}
        assert somebody.client.post("/v1/chat/completions", json=chat.body(), headers=headers).status_code == 200


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, dict[str, str]]]:
    """A server that asks for keys and takes small bodies, and a key for each kind of caller."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    keys = {"writer": make_key(data, "anna"), "reader": make_key(data, "ben", "--scope", "read")}
    with HeddleProcess(data, auth="on", max_chat_body="1KiB") as process:
        yield process, keys


def test_with_auth_only_keys_will_do(guarded: tuple[HeddleProcess, dict[str, str]]) -> None:
    process, keys = guarded
    with Chat(process.url, bearer="wrong") as stranger:
        assert stranger.ask().status_code == 401
        assert stranger.client.get("/v1/models").status_code == 401
    with Chat(process.url, bearer=keys["writer"]) as anna:
        assert anna.client.get("/v1/models").status_code == 200
        assert anna.refused(400, top_p=2)["param"] == "top_p"
    with Chat(process.url, bearer=keys["reader"]) as ben:
        assert ben.client.get("/v1/models").status_code == 200
        body = {"lora_name": "x", "lora_path": "/nowhere"}
        refused = ben.client.post("/v1/load_lora_adapter", json=body)
        assert refused.status_code == 403 and error_of(refused)["type"] == "PermissionDeniedError"
        assert ben.ask().status_code == 403


def test_the_body_limit_holds(guarded: tuple[HeddleProcess, dict[str, str]]) -> None:
    process, keys = guarded
    with Chat(process.url, bearer=keys["writer"]) as caller:
        answer = caller.ask(messages=[{"role": "user", "content": "x" * 2000}])
        assert answer.status_code == 413
        error_of(answer)
        assert caller.refused(400, top_p=2)["param"] == "top_p"


def wild(chance: random.Random, depth: int = 0) -> Any:
    """A random JSON value."""
    plain = [None, True, False, 0, 1, -1, 2**63, -(2**70), 1e308, 0.5, "", "x", "\0", "😀", "\ud800", "a" * 300]
    kind = chance.random()
    if depth > 2 or kind < 0.7:
        return chance.choice(plain)
    if kind < 0.85:
        return [wild(chance, depth + 1) for _ in range(chance.randrange(4))]
    keys = ["a", "type", "json", "role", "content", "name", "function", "", "5"]
    return {chance.choice(keys): wild(chance, depth + 1) for _ in range(chance.randrange(4))}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_wild_values_are_never_a_fault(chat: Chat, name: str) -> None:
    """Twelve random values in each field, and one in its nested objects: an answer or a 4xx, never a 5xx."""
    chance = random.Random(name)
    nested = {"structured_outputs": "regex", "response_format": "json_schema", "tools": "function"}
    for turn in range(12):
        value = wild(chance)
        if name in nested and turn % 2:
            value = {nested[name]: value, "type": chance.choice(["function", "json_schema", "text"])}
            value = [value] if name == "tools" else value
        raw = json.dumps({**chat.body(max_tokens=2, max_completion_tokens=2), name: value}).encode()
        answer = chat.client.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (name, value, answer.text)
        if answer.status_code != 200:
            error_of(answer)


def test_two_wild_fields_at_once(chat: Chat) -> None:
    chance = random.Random(17)
    names = sorted(set(WRONG) - {"messages", "max_completion_tokens"})
    for _ in range(60):
        fields = {name: wild(chance) for name in chance.sample(names, 2)}
        raw = json.dumps({**chat.body(max_completion_tokens=2), **fields}).encode()
        answer = chat.client.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (fields, answer.text)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_numbers_without_an_end_are_422(chat: Chat, name: str, number: str) -> None:
    """They are no JSON numbers that could act, and must not pass for an absent field."""
    body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "%s": %s}' % (
        name.encode(),
        number.encode(),
    )
    answer = chat.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == f"body.{name}"


def test_a_penalty_beyond_float32_is_refused(chat: Chat) -> None:
    assert chat.refused(400, repetition_penalty=1e-38)["param"] == "repetition_penalty"


@pytest.mark.parametrize("name", ["--5", "-", "5-5", "٣", " 5", "9" * 5000])
def test_a_bias_of_what_is_no_token_is_refused(chat: Chat, name: str) -> None:
    error = chat.refused(400, logit_bias={name: 1})
    assert error["param"] == "logit_bias" and "cannot be converted" in error["message"]


def test_a_bias_names_a_token_once(chat: Chat) -> None:
    error = chat.refused(400, logit_bias={"5": 1, "6": 1, "05": -1})
    assert (error["param"], error["message"]) == ("logit_bias", "logit_bias contains the token 5 twice")
