"""Fields of the service around the model: names, priority, caching, attribution, what other engines take."""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import Chat, error_of, until
from tests.support.server import HeddleProcess

LONG = [{"role": "user", "content": "Repeat: " + "the lamp and the rain over the river " * 12}]
"""Some hundred tokens: several blocks of the prefix cache."""


def test_request_id_names_the_answer(chat: Chat) -> None:
    name = f"run-{uuid.uuid4().hex}"
    assert chat.answer(request_id=name)["id"] == f"chatcmpl-{name}"
    assert {chunk["id"] for chunk in chat.chunks(request_id=name)} == {f"chatcmpl-{name}"}


def test_the_header_goes_before_request_id(chat: Chat) -> None:
    answer = chat.ask({"X-Request-Id": "from-header"}, request_id="from-body")
    assert answer.json()["id"] == "chatcmpl-from-header"


def test_without_request_id_names_are_random(chat: Chat) -> None:
    names = {chat.answer(request_id=None)["id"] for _ in range(3)}
    assert len(names) == 3 and all(re.fullmatch("chatcmpl-[0-9a-f]{16,}", name) for name in names)


def test_one_request_id_may_come_twice_at_once(chat: Chat) -> None:
    """A name given twice does not mix the two requests."""
    fields = {"request_id": "twice", "max_tokens": 20, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda seed: chat.token_ids(**fields, temperature=1, seed=seed), (1, 2)))
    assert texts == [chat.token_ids(**fields, temperature=1, seed=seed) for seed in (1, 2)]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 10_000])
def test_request_ids_that_cannot_be(chat: Chat, name: str) -> None:
    assert chat.refused(400, request_id=name)["param"] == "request_id"


@pytest.mark.parametrize("priority", [1, -1, 3])
def test_priority_needs_priority_scheduling(chat: Chat, priority: int) -> None:
    assert chat.refused(400, priority=priority)["param"] == "priority"
    assert chat.refused(400, priority=priority, stream=True)["param"] == "priority"


def test_priority_0_is_always_fine(chat: Chat) -> None:
    assert chat.token_ids(priority=0) == chat.token_ids(priority=None) == chat.token_ids()


@pytest.fixture(scope="module")
def by_priority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server that schedules by priority, runs two sequences while twelve wait, and has a short context."""
    settings = {"scheduling": "priority", "max_running": 2, "max_waiting": 12, "max_model_len": 2048}
    folder = tmp_path_factory.mktemp("priority")
    with HeddleProcess(folder / "data", **settings) as process, Chat(process.url) as caller:
        yield caller


def test_the_context_bounds_the_output(by_priority: Chat) -> None:
    """A prompt cut to one token less than the context leaves room for one, whatever was asked for."""
    prompt = [{"role": "user", "content": "a " * 5000}]
    for most in (None, 5):
        answer = by_priority.answer(messages=prompt, truncate_prompt_tokens=-1, max_tokens=most, ignore_eos=True)
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2047, 1)
        assert answer["choices"][0]["finish_reason"] == "length"


def test_more_than_may_wait_is_429(by_priority: Chat) -> None:
    answer = by_priority.ask(n=40, temperature=1)
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert error_of(answer)["type"] == "RateLimitError"
    assert len(by_priority.answer(n=8, temperature=1)["choices"]) == 8
    assert by_priority.until_idle()["kv_blocks_used"] == 0


@pytest.mark.thorough
def test_priority_decides_who_goes_first(by_priority: Chat) -> None:
    """Late requests of a better priority end before most of the worse ones that waited already."""
    ended: list[int] = []

    def ask(priority: int) -> None:
        by_priority.answer(priority=priority, max_tokens=200, ignore_eos=True)
        ended.append(priority)

    by_priority.answer()
    with ThreadPoolExecutor(16) as pool:
        for _ in range(10):
            pool.submit(ask, 5)
        until(lambda: by_priority.engine()["waiting"] >= 5, "five requests wait")
        for _ in range(2):
            pool.submit(ask, -5)
    assert len(ended) == 12
    last = max(place for place, priority in enumerate(ended) if priority == -5)
    assert last <= 8, ended


def test_the_header_goes_before_priority(by_priority: Chat) -> None:
    assert by_priority.ask({"X-Vllm-Priority": "3"}, priority=0).status_code == 200
    for wrong in ("soon", "--5", "9" * 5000, ""):
        assert by_priority.ask({"X-Vllm-Priority": wrong}, priority=0).status_code == 400


def test_cached_tokens_show_what_was_reused(chat: Chat) -> None:
    salt = uuid.uuid4().hex
    first, second = (chat.answer(messages=LONG, cache_salt=salt)["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] % 16 == 0


def test_cache_salt_separates(chat: Chat) -> None:
    salts = uuid.uuid4().hex, uuid.uuid4().hex
    chat.answer(messages=LONG, cache_salt=salts[0])
    other = chat.answer(messages=LONG, cache_salt=salts[1])["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] == 0
    same = chat.answer(messages=LONG, cache_salt=salts[0])["usage"]
    assert same["prompt_tokens_details"]["cached_tokens"] > 0


def test_cached_and_uncached_answers_are_equal(chat: Chat) -> None:
    salt = uuid.uuid4().hex
    fields = {"messages": LONG, "max_tokens": 12, "ignore_eos": True}
    assert chat.token_ids(**fields, cache_salt=salt) == chat.token_ids(**fields, cache_salt=salt)


@pytest.mark.parametrize("salt", ["", "a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_cache_salts_that_cannot_be(chat: Chat, salt: str) -> None:
    assert chat.refused(400, cache_salt=salt)["param"] == "cache_salt"


def test_kv_transfer_params_are_for_other_engines(chat: Chat) -> None:
    assert chat.answer(kv_transfer_params=None)["kv_transfer_params"] is None
    assert chat.token_ids(kv_transfer_params={}) == chat.token_ids()
    assert chat.refused(400, kv_transfer_params={"remote": 1})["param"] == "kv_transfer_params"


@pytest.mark.parametrize("name", ["engine_xargs", "vllm_xargs"])
def test_extra_arguments_have_both_spellings(chat: Chat, name: str) -> None:
    assert chat.token_ids(**{name: None}) == chat.token_ids(**{name: {}}) == chat.token_ids()
    for value in (1, 0.5, "text", [1, 2], ["a"]):
        error = chat.refused(400, **{name: {"unknown_argument": value}})
        assert error["param"] == name and "unknown_argument" in error["message"]
    assert name in chat.refused(422, **{name: {"a": {"b": 1}}})["param"]
    assert name in chat.refused(422, **{name: ["a"]})["param"]


def test_unknown_fields_are_ignored_and_named(chat: Chat) -> None:
    answer = chat.ask(colour="blue", store=True, stream_options=None)
    assert answer.status_code == 200
    assert set(answer.headers["x-heddle-ignored-fields"].replace(" ", "").split(",")) == {"colour", "store"}
    assert "x-heddle-ignored-fields" not in chat.ask().headers


def test_unknown_nested_fields_are_named_too(chat: Chat) -> None:
    answer = chat.ask(repetition_detection={"window": 3})
    assert answer.headers["x-heddle-ignored-fields"] == "repetition_detection.window"


def test_ignored_fields_of_a_stream_are_named(chat: Chat) -> None:
    with chat.streaming(colour="blue") as answer:
        answer.read()
        assert answer.headers["x-heddle-ignored-fields"] == "colour"


def test_user_is_kept_with_the_usage(chat: Chat) -> None:
    project, user = f"team-{uuid.uuid4().hex[:8]}/chat", f"user-{uuid.uuid4().hex[:8]}"
    body: dict[str, Any] = chat.body(user=user)
    answer = chat.client.post("/v1/chat/completions", json=body, headers={"Compat-Project": project})
    assert answer.status_code == 200, answer.text
    usage = chat.client.get("/v1/usage", params={"project": project, "group_by": "user"})
    assert usage.status_code == 200 and user in usage.text, usage.text


def test_the_data_folder_is_not_named(chat: Chat, server: HeddleProcess) -> None:
    """Model lists and answers leak no path."""
    texts = [chat.client.get("/v1/models").text, chat.client.get("/v1/engine").text, chat.ask().text]
    for folder in (Path(server.data).resolve(), Path.cwd()):
        assert not any(str(folder) in text for text in texts)
