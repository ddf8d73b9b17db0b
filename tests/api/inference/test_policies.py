"""Trainable models on the served route: steps come, are pointed at, answered by, rolled back and taken away."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import Grant
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.served_model import TINY
from heddle.wire.training import PolicyName
from tests.support.patience import strain
from tests.support.policies import ADDRESS, POLICY, Served, drop, served


def run(work: Any) -> None:
    """The body of a test."""
    asyncio.run(asyncio.wait_for(work, 110 * strain()))


def test_each_step_answers_for_itself_and_the_name_means_the_pointed_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.offer(0)
            await server.policies.point(POLICY, 0)
            assert (await server.said())[1] == "anna/lab/writer@0"
            await server.offer(1)
            assert (await server.said())[1] == "anna/lab/writer@0", "offered is not promoted"
            assert await server.listed() == {TINY: TINY, ADDRESS: "anna/lab/writer@0"}
            await server.policies.point(POLICY, 1)
            first, second = await server.said(f"{ADDRESS}:step0"), await server.said()
            assert (first[1], second[1]) == ("anna/lab/writer@0", "anna/lab/writer@1")
            assert first[0] != second[0] != (await server.said(TINY, return_token_ids=True))[0]
            await server.policies.point(POLICY, 0)
            assert await server.said() == first and await server.policies.latest(POLICY) == 0
            assert (await server.listed())[ADDRESS] == "anna/lab/writer@0"

    run(work())


ADDRESSES = (
    *(f"{scheme}anna/lab/writer" for scheme in ("wandb-artifact:///", "wandb-artifact://", "heddle:///", "")),
    "writer",
)


@pytest.mark.thorough
def test_every_spelling_of_an_address(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.make(3)
            for address in ADDRESSES:
                for suffix in ("", ":latest"):
                    assert (await server.said(address + suffix))[1] == "anna/lab/writer@2", address + suffix
                for suffix in (":step1", "@1"):
                    assert (await server.said(address + suffix))[1] == "anna/lab/writer@1", address + suffix
                entry = await server.client.get(f"/v1/models/{address}:step1")
                assert entry.json()["root"] == "anna/lab/writer@1" and entry.json()["id"] == f"{address}:step1"
            assert (await server.said(f"{ADDRESS}:1"))[1] == "anna/lab/writer@1"
            for wrong in (":step9", ":best", "@x", ":step-1", "/more"):
                answer = await server.ask(ADDRESS + wrong)
                assert answer.status_code == 404 and answer.json()["error"]["param"] == "model", wrong

    run(work())


@pytest.mark.thorough
def test_all_is_there_again_after_a_restart_and_after_the_engines_death(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.make(3)
            await server.policies.point(POLICY, 1)
            before = [await server.said(f"{ADDRESS}:step{step}") for step in range(3)] + [await server.said()]
        async with served(tmp_path) as server:
            assert await server.policies.latest(POLICY) == 1
            again = [await server.said(f"{ADDRESS}:step{step}") for step in range(3)] + [await server.said()]
            assert again == before
            (engine,) = server.services.inference.engines().values()
            assert isinstance(engine, LocalEngine) and engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await server.offer(3)
            await server.policies.point(POLICY, 3)
            assert (await server.said())[1] == "anna/lab/writer@3"
            assert await server.said(f"{ADDRESS}:step1") == before[1]

    run(work())


def test_an_offer_is_made_once_and_starts_no_engine(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            folder = await server.offer(0)
            await server.policies.offer(POLICY, 0, TINY, folder, "me")
            (engine,) = server.services.inference.engines().values()
            assert isinstance(engine, LocalEngine) and engine.pid is None
            await server.policies.point(POLICY, 0)
            await server.answer()
            await server.offer(1)
            assert any(ref.startswith("anna/lab/writer@1#") for ref in (await engine.stats()).adapters), "is loaded"
            with pytest.raises(Conflict):
                await server.policies.offer(POLICY, 0, TINY, "training/elsewhere/writer/checkpoints/0001", "me")

    run(work())


def test_offers_that_cannot_be(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.make(1)
            await server.answer()
            with pytest.raises(InvalidRequest, match="adapter_model"):
                await server.policies.offer(POLICY, 1, TINY, "training/elsewhere/nothing", "me")
            with pytest.raises(InvalidRequest, match="other-model"):
                await server.policies.offer(
                    POLICY, 1, "other-model", "training/elsewhere/writer/checkpoints/0000", "me"
                )
            with pytest.raises(InvalidRequest, match="rank 8"):
                await server.offer(1, r=4)
            with pytest.raises(InvalidRequest, match="Invalid model name"):
                await server.policies.offer(
                    PolicyName("anna", "lab", "a:b"), 0, TINY, "training/elsewhere/writer/checkpoints/0000", "me"
                )
            with pytest.raises(NotFound):
                await server.policies.point(POLICY, 1)
            assert await server.policies.latest(PolicyName("anna", "lab", "unknown")) is None
            assert (await server.said())[1] == "anna/lab/writer@0"

    run(work())


@pytest.mark.thorough
def test_withdrawn_steps_are_gone_and_a_name_can_begin_again(tmp_path: Path) -> None:
    """A step number that is used again is another policy to the engine and to its cache."""

    async def work() -> None:
        async with served(tmp_path) as server:
            messages = [{"role": "user", "content": "the lamp and the rain " * 20}]
            await server.make(3)
            old = await server.said(f"{ADDRESS}:step1", messages=messages)
            await server.policies.withdraw(POLICY, [1, 7], "me")
            drop(server, "training/elsewhere/writer/checkpoints/0001")
            assert (await server.ask(f"{ADDRESS}:step1")).status_code == 404
            await server.offer(1, lora_alpha=400)
            new = await server.answer(f"{ADDRESS}:step1", messages=messages)
            assert new["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert new["choices"][0]["token_ids"] != old[0]
            await server.policies.forget(POLICY, "me")
            assert await server.policies.latest(POLICY) is None and ADDRESS not in await server.listed()
            assert (await server.ask()).status_code == 404
            (engine,) = server.services.inference.engines().values()
            assert (await engine.stats()).adapters == ()
        async with served(tmp_path) as server:
            assert (await server.ask()).status_code == 404
            await server.make(1)
            assert (await server.said())[1] == "anna/lab/writer@0"

    run(work())


def test_names_that_only_training_may_change(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.make(1)
            folder = str(tmp_path / "training/elsewhere/writer/checkpoints/0000")
            for name in (ADDRESS, f"{ADDRESS}:step5", "heddle:///anna/lab/writer"):
                body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
                for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
                    answer = await server.client.post(path, json=body)
                    assert answer.status_code == 409 and "trainable" in answer.json()["error"]["message"], name
            assert (await server.said())[1] == "anna/lab/writer@0"
            body = {"lora_name": "wandb-artifact:///anna/lab/by-hand", "lora_path": folder}
            assert (await server.client.post("/v1/load_lora_adapter", json=body)).status_code == 200
            with pytest.raises(Conflict):
                await server.offer(1, PolicyName("anna", "lab", "by-hand"))

    run(work())


@pytest.mark.thorough
def test_old_steps_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path, max_adapters=2) as server:
            await server.make(6)
            said = [await server.said(f"{ADDRESS}:step{step}") for step in range(6)]
            (engine,) = server.services.inference.engines().values()
            assert len((await engine.stats()).adapters) == 2
            assert len({tuple(tokens) for tokens, _ in said}) == 6
            assert [await server.said(f"{ADDRESS}:step{step}") for step in range(6)] == said

    run(work())


async def _talk(server: Served, stop: asyncio.Event, failures: list[str], seen: set[str]) -> int:
    count = 0
    while not stop.is_set():
        answer = await server.ask(temperature=1.0, max_tokens=6)
        if answer.status_code != 200:
            failures.append(answer.text)
        seen.add(answer.headers.get("x-heddle-policy", ""))
        count += 1
    return count


@pytest.mark.thorough
def test_steps_come_under_load_without_a_failure(tmp_path: Path) -> None:
    """Eight connections never stop while steps are made, pointed at, and the old ones taken away."""

    async def work() -> None:
        async with served(tmp_path, max_adapters=3) as server:
            await server.make(1)
            first = await server.said()
            stop, failures, seen = asyncio.Event(), [], set[str]()
            talking = [asyncio.create_task(_talk(server, stop, failures, seen)) for _ in range(8)]
            for step in range(1, 13):
                await server.offer(step)
                await server.policies.point(POLICY, step)
                assert (await server.said())[1] == f"anna/lab/writer@{step}"
                if step > 6:
                    await server.policies.withdraw(POLICY, [step - 4], "me")
                    drop(server, f"training/elsewhere/writer/checkpoints/{step - 4:04d}")
            stop.set()
            counts = await asyncio.gather(*talking)
            assert failures == [] and sum(counts) > 24
            assert seen >= {f"anna/lab/writer@{step}" for step in range(2, 12)}
            assert await server.said(f"{ADDRESS}:step0") == first, "what was not withdrawn stays addressable"

    run(work())


def test_a_key_of_another_team_does_not_reach_the_model(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as server:
            await server.make(1)
            keys = server.services.store.keys
            own, _ = await keys.create("anna", [Grant.parse("admin:anna")], "test")
            other, _ = await keys.create("bert", [Grant.parse("admin:bert")], "test")
        async with served(tmp_path, auth="on") as server:
            server.client.headers["authorization"] = f"Bearer {other}"
            assert (await server.ask()).status_code == 404 and ADDRESS not in await server.listed()
            assert (await server.client.get(f"/v1/models/{ADDRESS}")).status_code == 404
            server.client.headers["authorization"] = f"Bearer {own}"
            assert (await server.said())[1] == "anna/lab/writer@0" and ADDRESS in await server.listed()

    run(work())
