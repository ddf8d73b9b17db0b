"""Trainable models on the served route: steps come, are pointed at, answered by, rolled back and taken away."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import Scope
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.models.source import TINY
from heddle.wire.policies import PolicyName
from tests.support.policies import ADDRESS, POLICY, Served, drop, served


def run(work: Any) -> None:
    """The body of a test."""
    asyncio.run(asyncio.wait_for(work, 110))


def test_each_step_answers_for_itself_and_the_name_means_the_pointed_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.offer(0)
            await house.policies.point(POLICY, 0)
            assert (await house.said())[1] == "anna/lab/writer@0"
            await house.offer(1)
            assert (await house.said())[1] == "anna/lab/writer@0", "offered is not promoted"
            assert await house.listed() == {TINY: TINY, ADDRESS: "anna/lab/writer@0"}
            await house.policies.point(POLICY, 1)
            first, second = await house.said(f"{ADDRESS}:step0"), await house.said()
            assert (first[1], second[1]) == ("anna/lab/writer@0", "anna/lab/writer@1")
            assert first[0] != second[0] != (await house.said(TINY, return_token_ids=True))[0]
            await house.policies.point(POLICY, 0)
            assert await house.said() == first and await house.policies.latest(POLICY) == 0
            assert (await house.listed())[ADDRESS] == "anna/lab/writer@0"

    run(work())


ADDRESSES = (
    *(f"{scheme}anna/lab/writer" for scheme in ("wandb-artifact:///", "wandb-artifact://", "heddle:///", "")),
    "writer",
)


def test_every_spelling_of_an_address(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.make(3)
            for address in ADDRESSES:
                for suffix in ("", ":latest"):
                    assert (await house.said(address + suffix))[1] == "anna/lab/writer@2", address + suffix
                for suffix in (":step1", "@1"):
                    assert (await house.said(address + suffix))[1] == "anna/lab/writer@1", address + suffix
                entry = await house.client.get(f"/v1/models/{address}:step1")
                assert entry.json()["root"] == "anna/lab/writer@1" and entry.json()["id"] == f"{address}:step1"
            assert (await house.said(f"{ADDRESS}:1"))[1] == "anna/lab/writer@1"
            for wrong in (":step9", ":best", "@x", ":step-1", "/more"):
                answer = await house.ask(ADDRESS + wrong)
                assert answer.status_code == 404 and answer.json()["error"]["param"] == "model", wrong

    run(work())


def test_all_is_there_again_after_a_restart_and_after_the_engines_death(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.make(3)
            await house.policies.point(POLICY, 1)
            before = [await house.said(f"{ADDRESS}:step{step}") for step in range(3)] + [await house.said()]
        async with served(tmp_path) as house:
            assert await house.policies.latest(POLICY) == 1
            again = [await house.said(f"{ADDRESS}:step{step}") for step in range(3)] + [await house.said()]
            assert again == before
            (engine,) = house.house.inference.engines().values()
            assert isinstance(engine, LocalEngine) and engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await house.offer(3)
            await house.policies.point(POLICY, 3)
            assert (await house.said())[1] == "anna/lab/writer@3"
            assert await house.said(f"{ADDRESS}:step1") == before[1]

    run(work())


def test_an_offer_is_made_once_and_starts_no_engine(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            folder = await house.offer(0)
            await house.policies.offer(POLICY, 0, TINY, folder, "me")
            (engine,) = house.house.inference.engines().values()
            assert isinstance(engine, LocalEngine) and engine.pid is None
            await house.policies.point(POLICY, 0)
            await house.answer()
            await house.offer(1)
            assert any(ref.startswith("anna/lab/writer@1#") for ref in (await engine.stats()).adapters), "is loaded"
            with pytest.raises(Conflict):
                await house.policies.offer(POLICY, 0, TINY, "training/elsewhere/writer/checkpoints/0001", "me")

    run(work())


def test_offers_that_cannot_be(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.make(1)
            await house.answer()
            with pytest.raises(InvalidRequest, match="adapter_model"):
                await house.policies.offer(POLICY, 1, TINY, "training/elsewhere/nothing", "me")
            with pytest.raises(InvalidRequest, match="other-model"):
                await house.policies.offer(POLICY, 1, "other-model", "training/elsewhere/writer/checkpoints/0000", "me")
            with pytest.raises(InvalidRequest, match="rank 8"):
                await house.offer(1, r=4)
            with pytest.raises(InvalidRequest, match="addressed"):
                await house.policies.offer(
                    PolicyName("anna", "lab", "a:b"), 0, TINY, "training/elsewhere/writer/checkpoints/0000", "me"
                )
            with pytest.raises(NotFound):
                await house.policies.point(POLICY, 1)
            assert await house.policies.latest(PolicyName("anna", "lab", "unknown")) is None
            assert (await house.said())[1] == "anna/lab/writer@0"

    run(work())


def test_withdrawn_steps_are_gone_and_a_name_can_begin_again(tmp_path: Path) -> None:
    """A step number that is used again is another policy to the engine and to its cache."""

    async def work() -> None:
        async with served(tmp_path) as house:
            messages = [{"role": "user", "content": "the lamp and the rain " * 20}]
            await house.make(3)
            old = await house.said(f"{ADDRESS}:step1", messages=messages)
            await house.policies.withdraw(POLICY, [1, 7], "me")
            drop(house, "training/elsewhere/writer/checkpoints/0001")
            assert (await house.ask(f"{ADDRESS}:step1")).status_code == 404
            await house.offer(1, lora_alpha=400)
            new = await house.answer(f"{ADDRESS}:step1", messages=messages)
            assert new["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert new["choices"][0]["token_ids"] != old[0]
            await house.policies.forget(POLICY, "me")
            assert await house.policies.latest(POLICY) is None and ADDRESS not in await house.listed()
            assert (await house.ask()).status_code == 404
            (engine,) = house.house.inference.engines().values()
            assert (await engine.stats()).adapters == ()
        async with served(tmp_path) as house:
            assert (await house.ask()).status_code == 404
            await house.make(1)
            assert (await house.said())[1] == "anna/lab/writer@0"

    run(work())


def test_names_that_only_training_may_change(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.make(1)
            folder = str(tmp_path / "training/elsewhere/writer/checkpoints/0000")
            for name in (ADDRESS, f"{ADDRESS}:step5", "heddle:///anna/lab/writer"):
                body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
                for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
                    answer = await house.client.post(path, json=body)
                    assert answer.status_code == 409 and "trainable" in answer.json()["error"]["message"], name
            assert (await house.said())[1] == "anna/lab/writer@0"
            body = {"lora_name": "wandb-artifact:///anna/lab/by-hand", "lora_path": folder}
            assert (await house.client.post("/v1/load_lora_adapter", json=body)).status_code == 200
            with pytest.raises(Conflict):
                await house.offer(1, PolicyName("anna", "lab", "by-hand"))

    run(work())


def test_old_steps_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path, max_adapters=2) as house:
            await house.make(6)
            said = [await house.said(f"{ADDRESS}:step{step}") for step in range(6)]
            (engine,) = house.house.inference.engines().values()
            assert len((await engine.stats()).adapters) == 2
            assert len({tuple(tokens) for tokens, _ in said}) == 6
            assert [await house.said(f"{ADDRESS}:step{step}") for step in range(6)] == said

    run(work())


async def _talk(house: Served, stop: asyncio.Event, failures: list[str], seen: set[str]) -> int:
    count = 0
    while not stop.is_set():
        answer = await house.ask(temperature=1.0, max_tokens=6)
        if answer.status_code != 200:
            failures.append(answer.text)
        seen.add(answer.headers.get("x-heddle-policy", ""))
        count += 1
    return count


def test_steps_come_under_load_without_a_failure(tmp_path: Path) -> None:
    """Eight connections never stop while steps are made, pointed at, and the old ones taken away."""

    async def work() -> None:
        async with served(tmp_path, max_adapters=3) as house:
            await house.make(1)
            first = await house.said()
            stop, failures, seen = asyncio.Event(), [], set[str]()
            talking = [asyncio.create_task(_talk(house, stop, failures, seen)) for _ in range(8)]
            for step in range(1, 13):
                await house.offer(step)
                await house.policies.point(POLICY, step)
                assert (await house.said())[1] == f"anna/lab/writer@{step}"
                if step > 6:
                    await house.policies.withdraw(POLICY, [step - 4], "me")
                    drop(house, f"training/elsewhere/writer/checkpoints/{step - 4:04d}")
            stop.set()
            counts = await asyncio.gather(*talking)
            assert failures == [] and sum(counts) > 24
            assert seen >= {f"anna/lab/writer@{step}" for step in range(2, 12)}
            assert await house.said(f"{ADDRESS}:step0") == first, "what was not withdrawn stays addressable"

    run(work())


def test_a_key_of_another_team_does_not_reach_the_model(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as house:
            await house.make(1)
            keys = house.house.store.keys
            own, _ = await keys.create("anna", frozenset(Scope), "anna", None, "test")
            other, _ = await keys.create("bert", frozenset(Scope), "bert", None, "test")
        async with served(tmp_path, auth="on") as house:
            house.client.headers["authorization"] = f"Bearer {other}"
            assert (await house.ask()).status_code == 404 and ADDRESS not in await house.listed()
            assert (await house.client.get(f"/v1/models/{ADDRESS}")).status_code == 404
            house.client.headers["authorization"] = f"Bearer {own}"
            assert (await house.said())[1] == "anna/lab/writer@0" and ADDRESS in await house.listed()

    run(work())
