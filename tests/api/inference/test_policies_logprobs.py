"""What an answer of a trainable model carries, asked or not: log-probabilities, token ids, and how they were made."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.inference.served_model import TINY, TINY_FOLDER
from heddle.models.load import load_model
from tests.support.chat import USER, data_lines, encoded
from tests.support.forward import Runner
from tests.support.patience import strain
from tests.support.policies import ADDRESS, Served, served

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def run(work: Any) -> None:
    """The body of a test."""
    asyncio.run(asyncio.wait_for(work, 110 * strain()))


async def opened(data: Path) -> AsyncIterator[Served]:
    """A server with two steps of a trainable model."""
    async with served(data) as server:
        await server.make(2)
        yield server


def named_ids(choice: dict[str, Any]) -> list[int]:
    """The ids that the log-probabilities name."""
    return [int(item["token"].removeprefix("token_id:")) for item in choice["logprobs"]["content"]]


NOT_ASKED: list[dict[str, Any]] = [{}, {"logprobs": False}, {"logprobs": None, "return_token_ids": False}]


def test_every_answer_has_them(tmp_path: Path) -> None:
    async def one(server: Served, fields: dict[str, Any]) -> None:
        body = await server.answer(**fields)
        (choice,) = body["choices"]
        assert named_ids(choice) == choice["token_ids"] and len(choice["token_ids"]) == 8
        assert all(item["logprob"] <= 0 and item["top_logprobs"] == [] for item in choice["logprobs"]["content"])
        assert body["prompt_token_ids"] is None and not {"prompt_token_ids", "logprobs_temperature"} & set(choice)
        assert re.fullmatch("policy-step-1-heddle-local-[0-9a-f]{8}-writer@1", body["system_fingerprint"])
        several = (await server.answer(**fields, n=3, temperature=1.0))["choices"]
        assert [named_ids(each) == each["token_ids"] != [] for each in several] == [True] * 3
        (of_base,) = (await server.answer(TINY, **fields))["choices"]
        assert of_base["logprobs"] is None and of_base["token_ids"] is None

    async def work() -> None:
        async for server in opened(tmp_path):
            for fields in NOT_ASKED:
                await one(server, fields)

    run(work())


def test_streams_have_them(tmp_path: Path) -> None:
    async def work() -> None:
        async for server in opened(tmp_path):
            whole = (await server.answer())["choices"][0]
            lines = data_lines((await server.ask(stream=True)).text)
            parts = [json.loads(line)["choices"][0] for line in lines[:-1]]
            content = [item for part in parts for item in (part["logprobs"] or {"content": []})["content"]]
            assert content == whole["logprobs"]["content"]
            assert [token for part in parts for token in part.get("token_ids") or ()] == whole["token_ids"]

    run(work())


def test_what_a_request_asks_for_itself_is_done(tmp_path: Path) -> None:
    async def work() -> None:
        async for server in opened(tmp_path):
            plain = (await server.answer())["choices"][0]
            best = (await server.answer(logprobs=True, top_logprobs=3))["choices"][0]
            assert all(len(item["top_logprobs"]) == 3 for item in best["logprobs"]["content"])
            assert best["token_ids"] == plain["token_ids"]
            texts = (await server.answer(return_tokens_as_token_ids=False))["choices"][0]
            assert texts["token_ids"] == plain["token_ids"]
            assert not any(item["token"].startswith("token_id:") for item in texts["logprobs"]["content"])
            asked = await server.answer(return_token_ids=True)
            assert asked["prompt_token_ids"] == asked["choices"][0]["prompt_token_ids"] != []

    run(work())


SHAPED: list[dict[str, Any]] = [
    {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
    {"chat_template_kwargs": {"enable_thinking": True}},
    {"reasoning_effort": "high"},
    {"documents": [{"title": "a", "text": "b"}]},
    {"truncate_prompt_tokens": 4},
    {"add_special_tokens": True},
    {"add_generation_prompt": False, "continue_final_message": True},
    {"tools": TOOLS, "tool_choice": "none"},
]


@pytest.mark.thorough
def test_a_prompt_that_is_more_than_its_messages_is_in_the_choice(tmp_path: Path) -> None:
    async def one(server: Served, fields: dict[str, Any]) -> None:
        body = await server.answer(**fields, max_tokens=2)
        (choice,) = body["choices"]
        prompt = (await server.answer(TINY, **fields, max_tokens=2, return_token_ids=True))["prompt_token_ids"]
        assert choice["prompt_token_ids"] == prompt and body["prompt_token_ids"] is None
        lines = data_lines((await server.ask(**fields, max_tokens=2, stream=True)).text)
        assert json.loads(lines[0])["choices"][0]["prompt_token_ids"] == prompt

    async def work() -> None:
        async for server in opened(tmp_path):
            for fields in SHAPED:
                await one(server, fields)
            with_tools = (await server.answer(tools=TOOLS, max_tokens=2))["choices"][0]
            assert "prompt_token_ids" not in with_tools

    run(work())


@pytest.mark.thorough
def test_hidden_reasoning_can_be_trained(tmp_path: Path) -> None:
    """The text of a thought is hidden, and its tokens are there: without them the answer would be another one."""

    async def work() -> None:
        async for server in opened(tmp_path):
            grammar = {"grammar": 'start: <think> "so 17" </think> "Blue."'}
            fields = {"structured_outputs": grammar, "include_reasoning": False, "max_tokens": 40, "ignore_eos": False}
            (choice,) = (await server.answer(**fields))["choices"]
            assert choice["message"]["content"] == "Blue." and choice["message"]["reasoning"] is None
            ids = choice["token_ids"]
            assert encoded("<think>")[0] in ids and encoded("</think>")[0] in ids and named_ids(choice) == ids

    run(work())


@pytest.mark.thorough
def test_the_path_may_end_with_a_slash(tmp_path: Path) -> None:
    async def work() -> None:
        async for server in opened(tmp_path):
            body = {"model": ADDRESS, "messages": USER, "max_tokens": 2}
            answer = await server.client.post("/v1/chat/completions/", json=body)
            assert answer.status_code == 200 and answer.json()["choices"][0]["logprobs"]["content"]

    run(work())


REQUESTS: list[dict[str, Any]] = [
    {"model": f"{ADDRESS}:step{step}", "temperature": temperature, "seed": seed, "messages": messages, **more}
    for step in (0, 1)
    for seed, (temperature, more) in enumerate(
        [(1.0, {}), (0.0, {}), (0.7, {}), (1.6, {}), (1.0, {"top_p": 0.8}), (1.0, {"presence_penalty": 1.5})]
    )
    for messages in (
        USER,
        [{"role": "user", "content": "The lamp and the rain, the rain and the lamp. " * 6 + f"Say {seed}."}],
    )
]


def test_log_probabilities_are_those_of_the_models_own_forward_pass(tmp_path: Path) -> None:
    """Mixed steps, temperatures and prompts in one batch with the prefix cache: every ratio is 1 within 1e-4."""

    async def work() -> None:
        async for server in opened(tmp_path):
            requests = [{**fields, "max_tokens": 24, "return_token_ids": True} for fields in REQUESTS]
            bodies = await asyncio.gather(*(server.answer(**fields) for fields in [*requests, *requests]))
            assert any(body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies)
            model = load_model(TINY_FOLDER, dtype="float32")
            for step in (0, 1):
                model.load_adapter(str(step), tmp_path / f"training/elsewhere/writer/checkpoints/{step:04d}")
            for fields, body in zip([*requests, *requests], bodies, strict=True):
                (choice,) = body["choices"]
                told = choice.get("logprobs_temperature", 1.0)
                assert told == (fields["temperature"] or 1.0)
                prompt, made = body["prompt_token_ids"], choice["token_ids"]
                runner = Runner(model)
                rows = runner.prefill(runner.open(), torch.tensor(prompt + made), adapter=fields["model"][-1])
                rows = (rows[len(prompt) - 1 : -1] / told).log_softmax(-1)
                expected = rows.gather(1, torch.tensor(made)[:, None])[:, 0]
                found = torch.tensor([item["logprob"] for item in choice["logprobs"]["content"]])
                assert float(((expected - found).exp() - 1).abs().max()) < 1e-4

    run(work())
