"""Calls as the source of a training job, read from a real store."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import Forbidden, HeddleError, InvalidField, InvalidRequest, TooLarge, ValidationFailed
from heddle.http.routing import validate
from heddle.services import Services
from heddle.trace.calls.models import CallsFilter
from heddle.trace.records import TraceRecords
from heddle.training.calls import Found
from heddle.training.schemas.requests import SourceFilter, SourceRequest
from heddle.training.schemas.trajectories import TrajectoryGroup
from heddle.training.source import resolve_source
from tests.support.inprocess import Trace, running_services

PROJECT = "team/traced"
MANY = 1 << 24
Test = Callable[[Services, Trace], Awaitable[None]]


def with_services(folder: Path, test: Test) -> None:
    """Run a test with an open services."""

    async def run() -> None:
        async with running_services(folder / "data") as (services, client):
            await test(services, Trace(client, PROJECT))

    asyncio.run(run())


def request(**fields: Any) -> SourceRequest:
    """A source; validation errors are those of a body."""
    body = {"project_id": PROJECT, "reward": {"path": "output.score"}, **fields}
    holder: TypeAdapter[dict[str, SourceRequest]] = TypeAdapter(dict[str, SourceRequest])
    return validate(holder, {"source": body})["source"]


async def resolved(services: Services, caller: Caller = LOCAL, max_bytes: int = MANY, **fields: Any) -> Found:
    """What a source comes to."""
    return await resolve_source(
        request(**fields), TraceRecords(services.settings, services.store), caller, max_bytes=max_bytes, policy="agent"
    )


def whole(call_id: str, parent: str | None, trace: str, at: int, **fields: Any) -> dict[str, Any]:
    """A complete call."""
    moment = f"2026-01-01T00:00:{at:02}Z"
    head = {"project_id": PROJECT, "id": call_id, "trace_id": trace, "parent_id": parent}
    times = {"started_at": moment, "ended_at": moment}
    return {**head, **times, "op_name": "rollout", "attributes": {}, "inputs": {}, "summary": {}, **fields}


def answer(text: str, ids: list[int], step: int = 0) -> dict[str, Any]:
    """A chat completion of the policy `agent`."""
    content = [{"token": f"token_id:{token}", "logprob": -0.25, "bytes": [97], "top_logprobs": []} for token in ids]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content},
    }
    return {"id": f"chatcmpl-{text}", "choices": [choice], "system_fingerprint": f"torch-1a2b3c4d-agent@{step}"}


async def rollouts(trace: Trace, **question: Any) -> None:
    """Two questions, two rollouts of each, with a completion below each root."""
    batch = []
    for number in range(4):
        inputs = {"question": f"q{number % 2}", **question}
        root, messages = f"root{number}", [{"role": "user", "content": f"q{number % 2}"}]
        batch.append(whole(root, None, f"t{number}", number, inputs=inputs, output={"score": number / 4}))
        chat = {"inputs": {"model": "m", "messages": messages}, "output": answer(f"a{number}", [number], number)}
        batch.append(whole(f"chat{number}", root, f"t{number}", number, op_name="heddle.chat.completions", **chat))
    entity, project = PROJECT.split("/")
    await trace.post(f"/v2/{entity}/{project}/calls/complete", batch=batch)


def rewards(groups: list[dict[str, Any]]) -> list[list[float]]:
    """The rewards of each group."""
    return [[trajectory["reward"] for trajectory in group["trajectories"]] for group in groups]


def test_root_calls_become_groups(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace)
        found = await resolved(services)
        assert rewards(found.groups) == [[0.0, 0.5], [0.25, 0.75]]
        first = found.groups[0]["trajectories"][0]
        assert [item.get("role") or item["message"]["content"] for item in first["messages_and_choices"]] == [
            "user",
            "a0",
        ]
        assert [item["final_policy_version"] for item in found.groups[1]["trajectories"]] == [1, 3]
        for group in found.groups:
            TrajectoryGroup.model_validate(group)
        assert found.counts["trajectories"] == 4 and found.counts["choices_without_logprobs"] == 0

    with_services(tmp_path, test)


def test_a_selection_is_that_of_the_calls_query(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace)
        query = {"$expr": {"$eq": [{"$getField": "inputs.question"}, {"$literal": "q1"}]}}
        assert rewards((await resolved(services, query=query)).groups) == [[0.25, 0.75]]
        newest = {"sort_by": [{"field": "started_at", "direction": "desc"}], "limit": 3}
        assert rewards((await resolved(services, **newest)).groups) == [[0.75, 0.25], [0.5]]
        assert rewards((await resolved(services, filter={"call_ids": ["root2"]})).groups) == [[0.5]]
        by_op = await resolved(services, group_by="op_name")
        assert rewards(by_op.groups) == [[0.0, 0.25, 0.5, 0.75]]

    with_services(tmp_path, test)


def test_completions_stand_for_themselves_when_the_filter_names_them(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace)
        chosen = {"op_names": ["heddle.chat.completions"], "trace_roots_only": False}
        ref = f"weave:///{PROJECT}/call/chat1"
        kind = {"feedback_type": "wandb.runnable.judge", "payload": {"output": {"good": True}}}
        kind["runnable_ref"] = f"weave:///{PROJECT}/object/judge:v0"
        await trace.post("/feedback/create", project_id=PROJECT, weave_ref=ref, **kind)
        reward = {"feedback_type": "wandb.runnable.judge", "path": "output.good"}
        found = await resolved(services, filter=chosen, reward=reward)
        assert rewards(found.groups) == [[1.0]] and found.counts["without_reward"] == 3
        found = await resolved(services, filter=chosen, reward={**reward, "default": 0.0})
        assert rewards(found.groups) == [[0.0, 0.0], [1.0, 0.0]]

    with_services(tmp_path, test)


def test_messages_behind_a_ref_are_read(tmp_path: Path) -> None:
    """SDKs send a part of a published object as its ref."""

    async def test(services: Services, trace: Trace) -> None:
        messages = [{"role": "user", "content": "from a ref"}]
        ref = await trace.publish("asked", {"messages": messages}) + "/attr/messages"
        call = whole("c", None, "t", 0, inputs={"messages": ref}, output={**answer("x", [1]), "score": 1})
        await trace.post(f"/v2/{PROJECT}/calls/complete", batch=[call])
        (group,) = (await resolved(services)).groups
        assert group["trajectories"][0]["messages_and_choices"][0] == messages[0]

    with_services(tmp_path, test)


def test_nothing_to_train_on_says_why(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        with pytest.raises(InvalidRequest, match="no call of team/traced matches"):
            await resolved(services)
        await rollouts(trace)
        with pytest.raises(InvalidRequest, match="of 4 calls, 4 without a reward"):
            await resolved(services, reward={"path": "output.other"})
        with pytest.raises(InvalidRequest, match="4 without a value to group by"):
            await resolved(services, group_by="inputs.other")
        batch = [
            whole("odd", None, "t", 0, inputs={"messages": [{"role": ""}]}, output={**answer("x", [1]), "score": 1})
        ]
        await trace.post(f"/v2/{PROJECT}/calls/complete", batch=batch)
        with pytest.raises(InvalidRequest, match="1 with messages or choices that training does not support"):
            await resolved(services, filter={"call_ids": ["odd"]})

    with_services(tmp_path, test)


def test_the_rights_of_the_caller_hold(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace)
        for caller in (
            Caller("eve", (Grant.parse("editor:team/other"),)),
            Caller("bob", (Grant.parse("write"),)),
        ):
            with pytest.raises(Forbidden):
                await resolved(services, caller)

    with_services(tmp_path, test)


def test_too_many_bytes_are_refused(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace, filler="x" * 5000)
        with pytest.raises(TooLarge, match="max_training_body"):
            await resolved(services, max_bytes=10_000)

    with_services(tmp_path, test)


@pytest.mark.parametrize(
    ("fields", "place", "kind"),
    [
        ({"filter": {"op_name": ["x"]}}, ["filter", "op_name"], "extra_forbidden"),
        ({"filter": {"op_names": "x"}}, ["filter", "op_names"], "list_type"),
        ({"limits": 3}, ["limits"], "extra_forbidden"),
        ({"limit": 0}, ["limit"], "greater_than_equal"),
        ({"limit": 10_001}, ["limit"], "less_than_equal"),
        ({"sort_by": [{"field": "started_at", "direction": "up"}]}, ["sort_by", 0, "direction"], "literal_error"),
        ({"reward": {}}, ["reward"], "value_error"),
        ({"reward": {"path": "score"}}, ["reward"], "value_error"),
        ({"reward": {"path": "output", "values": {"a": float("inf")}}}, ["reward", "values", "a"], "finite_number"),
        ({"group_by": "question"}, [], "value_error"),
        ({"query": {"$expr": {"$like": []}}}, ["query", "$expr", "$like"], "value_error"),
    ],
)
def test_a_bad_source_names_the_place(fields: dict[str, Any], place: list[Any], kind: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        request(**fields)
    (item,) = caught.value.detail
    assert (item["loc"], item["type"]) == (["body", "source", *place], kind)


def test_a_field_that_calls_do_not_have_is_refused(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        await rollouts(trace)
        with pytest.raises(InvalidField, match="not allowed"):
            await resolved(services, query={"$expr": {"$eq": [{"$getField": "nothing"}, {"$literal": 1}]}})

    with_services(tmp_path, test)


def test_the_filter_has_the_fields_of_the_calls_query() -> None:
    assert SourceFilter.model_fields.keys() == CallsFilter.model_fields.keys()


def test_a_source_never_fails_otherwise(tmp_path: Path) -> None:
    """Odd calls are left out, whatever they hold."""

    async def test(services: Services, trace: Trace) -> None:
        odd: list[Any] = [None, 1, "x", [], {}, {"choices": 1}, {"choices": []}, {"choices": [1]}]
        odd += [{"choices": [{"message": 1}]}, {"choices": [{"message": {}}]}, {"choices": [{"message": {}}], "id": 3}]
        odd += [{**answer("a", [1]), "prompt_token_ids": "no"}, {**answer("b", [1]), "id": {"a": 1}}]
        inputs = [{"messages": [{"role": "user", "content": "q"}]}, {"messages": "no"}, {"messages": []}, {}]
        batch = [
            whole(
                f"c{row}.{column}", None, f"t{row}.{column}", 0, inputs=given, output=output, attributes={"policy": 7}
            )
            for row, given in enumerate(inputs)
            for column, output in enumerate(odd)
        ]
        await trace.post(f"/v2/{PROJECT}/calls/complete", batch=batch)
        for reward in ({"path": "output"}, {"path": "output", "default": 1.0}, {"path": "summary.weave.latency_ms"}):
            with contextlib.suppress(HeddleError):
                for group in (await resolved(services, reward=reward)).groups:
                    TrajectoryGroup.model_validate(group)

    with_services(tmp_path, test)
