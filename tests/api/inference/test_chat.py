"""The whole answer of a chat: every field of the response, usage, headers."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.chat import Chat, decoded, end_token
from tests.support.vllm_server import ENGINE_NAME

MESSAGE = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}


def test_the_fields_of_an_answer(chat: Chat) -> None:
    before = int(time.time())
    answer = chat.answer()
    assert answer["object"] == "chat.completion"
    assert re.fullmatch("chatcmpl-[0-9a-f]{16,}", answer["id"])
    assert before <= answer["created"] <= int(time.time())
    assert answer["model"] == chat.model
    for name in ("service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"):
        assert name in answer and answer[name] is None


def test_the_answer_names_the_weights(chat: Chat) -> None:
    answer = chat.ask()
    assert re.fullmatch(f"{ENGINE_NAME}-[0-9a-f]{{8}}", answer.json()["system_fingerprint"])
    assert answer.headers["x-heddle-policy"] == chat.model
    assert chat.answer()["system_fingerprint"] == answer.json()["system_fingerprint"]


def test_the_fields_of_a_choice(chat: Chat) -> None:
    choice = chat.choice(ignore_eos=True)
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    assert choice["index"] == 0
    assert (choice["logprobs"], choice["stop_reason"], choice["token_ids"]) == (None, None, None)
    assert choice["finish_reason"] == "length"


def test_the_fields_of_a_message(chat: Chat) -> None:
    message = chat.choice(ignore_eos=True)["message"]
    assert set(message) == MESSAGE and message["role"] == "assistant"
    assert isinstance(message["content"], str) or isinstance(message["reasoning"], str)
    assert all(message[name] is None for name in ("refusal", "annotations", "audio", "function_call"))


def test_usage(chat: Chat) -> None:
    answer = chat.answer(return_token_ids=True, max_tokens=5, ignore_eos=True)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert usage["completion_tokens"] == len(answer["choices"][0]["token_ids"]) == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert set(usage["prompt_tokens_details"]) == {"cached_tokens"}
    assert usage["completion_tokens_details"]["reasoning_tokens"] >= 0


def test_the_text_is_the_tokens(chat: Chat) -> None:
    for seed in range(5):
        choice = chat.choice(temperature=1.3, seed=seed, max_tokens=24, return_token_ids=True)
        words = [token for token in choice["token_ids"] if token != end_token()]
        if decoded(words) == decoded(words, skip_special_tokens=False):
            assert choice["message"]["content"] == decoded(words)


def test_many_at_once_are_the_same_as_one_by_one(chat: Chat) -> None:
    """Forty requests in one batch: each gets its own greedy tokens."""

    def ask(number: int) -> list[int]:
        messages = [{"role": "user", "content": f"Number {number}: " + "word " * (number % 7)}]
        return chat.token_ids(messages=messages, max_tokens=6 + number % 5, ignore_eos=True)

    one_by_one = [ask(number) for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(20))) == one_by_one


def test_a_body_may_say_what_it_is_in_other_words(chat: Chat) -> None:
    """Content types with a charset, and numbers that are whole as 3.0."""
    body = b'{"messages":[{"role":"user","content":"\xc3\xbc"}],"max_tokens":3.0,"temperature":0,"ignore_eos":true}'
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = chat.client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3


def test_metrics_name_the_model(chat: Chat) -> None:
    chat.answer()
    text = chat.client.get("/metrics").text
    assert f'heddle_inference_requests_total{{model="{chat.model}",status="200"}}' in text


def test_the_engine_shows_figures(chat: Chat) -> None:
    before = chat.engine() if chat.client.get("/v1/engine").json()["data"] else {"generated_tokens": 0, "requests": 0}
    chat.answer(max_tokens=7, ignore_eos=True)
    figures = chat.until_idle()
    assert figures["state"] == "ready" and figures["kv_blocks_total"] > 0
    assert figures["generated_tokens"] >= before["generated_tokens"] + 7
    assert figures["requests"] > before["requests"]
