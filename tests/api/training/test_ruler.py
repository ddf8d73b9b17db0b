"""Rewards of a judge: a provider's model ranks the trajectories of a job before it is trained."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.wire.training import call_id_of
from tests.conftest import Wire
from tests.support.chat import until
from tests.support.judges import rank_words
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess
from tests.support.training import NOBODY, TrainingWire
from tests.support.trajectories import group, said, trajectory, user

Json = dict[str, Any]
ASKED = user("Say yes, no or maybe.")
JUDGED: Json = {"reward_from": "ruler", "ruler": {"judge_model": "fake/judge", "rubric": "Maybe is best."}}


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """A provider whose model is the judge."""
    with FakeProvider() as fake:
        fake.reply = rank_words
        yield fake


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server that may ask it."""
    entries = f"fake={provider.url}; dead=http://127.0.0.1:9/v1"
    with HeddleProcess(tmp_path_factory.mktemp("judging") / "data", providers=entries) as process:
        yield process
        assert "Traceback" not in process.log()


@pytest.fixture
def training(judging: HeddleProcess) -> Iterator[TrainingWire]:
    """A caller of that server with an entity of its own."""
    with TrainingWire(judging.url) as caller:
        yield caller


def unscored() -> list[Json]:
    """Two groups without rewards."""
    words = (("yes", "maybe", "no"), ("no", "yes"))
    groups = [group(*(trajectory(ASKED, said(word)) for word in some)) for some in words]
    for one in groups:
        for member in one["trajectories"]:
            del member["reward"]
    return groups


def test_a_judge_gives_the_rewards(training: TrainingWire, judging: HeddleProcess, provider: FakeProvider) -> None:
    model, before = training.model(), len(provider.requests)
    job = training.train(model, unscored(), **JUDGED)
    assert (job["state"], job["step"], job["gradient_steps"]) == ("succeeded", 1, 1)
    assert job["metrics"]["reward"] == pytest.approx((0.1 + 0.9 + 0.5 + 0.5 + 0.1) / 5)
    stored = training.get(f"/training-jobs/{job['id']}/trajectories")["trajectory_groups"]
    rewards = [[member["reward"] for member in one["trajectories"]] for one in stored]
    assert rewards == [[0.1, 0.9, 0.5], [0.5, 0.1]]
    assert stored[0]["trajectories"][1]["logs"] == ["RULER explanation: it says maybe"]
    assert stored[0]["trajectories"][1]["metrics"] == {"ruler_score": 0.9}
    kept = job["config"]["ruler"]
    assert (kept["judge_model"], kept["rubric"]) == ("fake/judge", "Maybe is best.")
    assert kept["usage"] == {
        "judge": {
            "requests": 2,
            "prompt_tokens": 14,
            "completion_tokens": 6,
            "total_tokens": 20,
            "cache_read_input_tokens": 8,
        }
    }
    asked = [request["body"] for request in provider.requests[before:]]
    assert [body["model"] for body in asked] == ["judge"] * 2
    assert all("Maybe is best." in body["messages"][0]["content"] for body in asked)
    wire = Wire(judging.url, f"{model['entity']}/lab")
    with wire.client:
        parent = call_id_of(job["id"])
        calls = [call for call in wire.calls() if call["parent_id"] == parent]
        assert sorted(call["inputs"]["group"] for call in calls) == [0, 1]
        assert {call["trace_id"] for call in calls} == {parent} and all(call["exception"] is None for call in calls)
        usage = [call["summary"]["usage"]["judge"]["total_tokens"] for call in calls]
        assert usage == [10, 10]


def test_rewards_that_came_along_are_kept_as_a_metric(training: TrainingWire) -> None:
    groups = [group(trajectory(ASKED, said("yes"), reward=1.0), trajectory(ASKED, said("no"), reward=0.0))]
    job = training.train(training.model(), groups, **JUDGED)
    stored = training.get(f"/training-jobs/{job['id']}/trajectories")["trajectory_groups"][0]["trajectories"]
    metrics = [member["metrics"] for member in stored]
    assert metrics == [
        {"independent_reward": 1.0, "ruler_score": 0.1},
        {"independent_reward": 0.0, "ruler_score": 0.5},
    ]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"reward_from": "oracle"}, ["body", "reward_from"]),
        ({"ruler": {}}, ["body"]),
        ({"reward_from": "ruler", "ruler": {"judge": "x"}}, ["body", "ruler", "judge"]),
        ({"reward_from": "ruler", "ruler": {"temperature": 3}}, ["body", "ruler", "temperature"]),
    ],
)
def test_what_is_refused(fields: Json, place: list[str], training: TrainingWire) -> None:
    model = training.model()
    body = {"model_id": model["id"], "trajectory_groups": unscored(), **fields}
    refused = training.refused(422, "POST", "/training-jobs", body)
    assert refused["detail"][0]["loc"] == place
    assert training.get("/training-jobs", model_id=model["id"])["data"] == []


def test_a_judge_that_is_not_there(training: TrainingWire) -> None:
    model = training.model()
    body = {"model_id": model["id"], "trajectory_groups": unscored(), "reward_from": "ruler"}
    for judge, status, word in (("nobody", 404, "nobody"), ("custom::x::y", 400, "ProviderModel")):
        refused = training.refused(status, "POST", "/training-jobs", {**body, "ruler": {"judge_model": judge}})
        assert word in refused["detail"]
    body["model_id"] = NOBODY
    training.refused(404, "POST", "/training-jobs", body)


def test_a_source_needs_rewards_or_a_judge(training: TrainingWire) -> None:
    body: Json = {"model_id": training.model()["id"], "source": {"project_id": f"{training.entity}/lab"}}
    refused = training.refused(422, "POST", "/training-jobs", body)
    assert refused["detail"][0]["loc"] == ["body", "source", "reward"] and refused["detail"][0]["type"] == "missing"
    assert "no call of" in training.refused(400, "POST", "/training-jobs", {**body, **JUDGED})["detail"]


def test_a_judge_that_refuses_fails_the_job(training: TrainingWire) -> None:
    model = training.model()
    job_id = training.job(model, unscored(), reward_from="ruler", ruler={"judge_model": "fake/model-missing"})
    (event,) = training.until_ended(job_id)
    assert event["type"] == "training_failed"
    reason = event["data"]["error_message"]
    assert reason.startswith("the judge fake/model-missing of group ") and "no such model" in reason
    assert training.steps(model) == [0]


def test_cancelled_while_the_judge_thinks(training: TrainingWire, provider: FakeProvider) -> None:
    """Until then the other model's step that the job compares with must stay."""
    model, other, asked = training.model(), training.model(), len(provider.requests)
    for _ in range(2):
        training.train(other, [])
    address = f"wandb-artifact:///{other['entity']}/lab/{other['name']}:step1"
    fields = {"kl_penalty_coef": 0.1, "kl_ref_adapter_path": address}
    judge = {"reward_from": "ruler", "ruler": {"judge_model": "fake/model-hangs"}}
    job_id = training.job(model, unscored(), experimental_config=fields, **judge)
    until(lambda: len(provider.requests) > asked, "the judge is asked")
    refused = training.refused(409, "DELETE", f"/models/{other['id']}/checkpoints", {"steps": [1]})
    assert f"step 1 cannot be deleted: the job {job_id} needs it" in refused["detail"]
    training.post(f"/training-jobs/{job_id}/cancel")
    assert training.until_ended(job_id)[-1]["data"] == {"error_message": "cancelled"}
    provider.let_go.set()
    assert training.train(model)["step"] == 1


def test_a_killed_server_asks_for_no_score_twice(tmp_path: Path) -> None:
    """The first group is scored, the second one hangs: kill -9, and the next server asks for the second one alone."""
    stuck = threading.Event()

    with FakeProvider() as provider:

        def reply(body: Json) -> str:
            if len(provider.requests) == 2:
                stuck.wait(60)
            return rank_words(body)

        provider.reply = reply
        process = HeddleProcess(tmp_path / "data", providers=f"fake={provider.url}", evaluation_parallel=1)
        with process, TrainingWire(process.url) as training:
            model = training.model()
            job_id = training.job(model, unscored(), **JUDGED)
            until(lambda: len(provider.requests) == 2, "the judge is asked for the second group")
            process.kill()
            stuck.set()
            process.start()
            assert training.until_ended(job_id)[-1]["type"] == "training_ended"
            stored = training.get(f"/training-jobs/{job_id}/trajectories")["trajectory_groups"]
            assert [len({member["reward"] for member in one["trajectories"]}) for one in stored] == [3, 2]
            shown = [request["body"]["messages"][1] for request in provider.requests]
            assert len(shown) == 3 and shown[1] == shown[2] != shown[0]
