"""What programs trace and publish with the SDK, used for training: rollouts as groups, an evaluation as the judge."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from heddle.training import fetch_trajectory_groups
from heddle.training.schemas.trajectories import TrajectoryGroup
from tests.conftest import API_KEY, SCENARIOS, Client, Wire
from tests.support.chat import decoded
from tests.support.rl import Trainer
from tests.support.server import HeddleProcess

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("weave", "openai")),
        reason="the weave and openai SDKs are not installed beside heddle",
    ),
]
Json = dict[str, Any]


@pytest.fixture
def traced(server: HeddleProcess, project: str, tmp_path: Path) -> Json:
    """What a program with six traced rollouts reports."""
    program = Client([sys.executable], SCENARIOS, server.url, project, tmp_path)
    return program.run("traced_rollouts.py", SCENARIO_CHAT=f"{server.url}/v1")


@pytest.fixture
def rollouts(traced: Json) -> list[Json]:
    """Question, texts and score of each."""
    return list(traced["runs"])


def fetched(server: HeddleProcess, project: str, reward: Any, **options: Any) -> list[Json]:
    """The groups, as any program fetches them."""
    return asyncio.run(fetch_trajectory_groups(server.url, project, reward, api_key=API_KEY, **options))


def sampled(trajectory: Json) -> list[str]:
    """The texts of the sampled choices, from their token ids."""
    choices = [item for item in trajectory["messages_and_choices"] if "finish_reason" in item]
    ids = [[int(entry["token"].removeprefix("token_id:")) for entry in item["logprobs"]["content"]] for item in choices]
    return [decoded(tokens) for tokens in ids]


@pytest.mark.thorough
def test_traced_rollouts_are_trajectories(
    server: HeddleProcess, project: str, wire: Wire, rollouts: list[Json], traced: Json
) -> None:
    groups = fetched(server, project, {"feedback_type": "wandb.runnable.brevity", "path": "output.score"})
    assert [len(group["trajectories"]) for group in groups] == [3, 3]
    for group in groups:
        TrajectoryGroup.model_validate(group)
    found = [trajectory for group in groups for trajectory in group["trajectories"]]
    for trajectory, rollout in zip(found, rollouts, strict=True):
        kinds = ["choice" if "finish_reason" in item else item["role"] for item in trajectory["messages_and_choices"]]
        assert kinds == ["user", "choice", "user", "choice"], "two turns are one conversation"
        assert trajectory["additional_histories"] == []
        assert sampled(trajectory) == rollout["texts"], "every sampled token is there"
        assert trajectory["reward"] == pytest.approx(rollout["score"])
        assert trajectory["messages_and_choices"][0]["content"] == rollout["question"]
    assert json.loads(traced["groups"]) == groups, "the SDK's own call objects give the same"
    assert wire.calls(filter={"call_ids": [found[0]["metadata"]["call_id"]]})[0]["inputs"]["question"]


@pytest.mark.thorough
def test_a_filter_chooses_the_rollouts(server: HeddleProcess, project: str, rollouts: list[Json]) -> None:
    query = {"$expr": {"$eq": [{"$getField": "inputs.question"}, {"$literal": "Say a word."}]}}
    (group,) = fetched(server, project, "output.share", query=query, limit=2)
    first = [rollout for rollout in rollouts if rollout["question"] == "Say a word."][:2]
    shares = [len(item["texts"][0]) / (1 + len("".join(item["texts"]))) for item in first]
    assert [trajectory["reward"] for trajectory in group["trajectories"]] == pytest.approx(shares)


@pytest.mark.thorough
def test_a_published_evaluation_decides_about_promotion(
    server: HeddleProcess, project: str, wire: Wire, tmp_path: Path
) -> None:
    """Scorers that are classes of the SDK are run, with a model as the judge; a function is refused by its ref."""
    program = Client([sys.executable], SCENARIOS, server.url, project, tmp_path)
    refs = program.run("promotion_evaluation.py")["refs"]
    with Trainer(server.url, project) as trainer:
        items = [{"role": "user", "content": "say yes or no"}]
        members = [
            {"messages_and_choices": [*items, trainer.chat(items, seed=seed)], "reward": float(seed)}
            for seed in range(2)
        ]
        body: Json = {"model_id": trainer.model["id"], "trajectory_groups": [{"trajectories": members}]}
        rule = {"evaluation": refs["known"], "minimum_gain": -9.0, "max_tokens": 8}
        job_id = trainer.post("/v1/preview/training-jobs", **body, promotion=rule)["id"]
        last = trainer.until_ended(job_id)[-1]
        assert last["type"] == "training_ended" and last["data"]["promotion/promoted"] == 1.0, last
        refused = {**body, "promotion": {"evaluation": refs["other"]}}
        answer = trainer.client.post("/v1/preview/training-jobs", json=refused)
    assert answer.status_code == 400 and f"weave:///{project}/op/mine:" in answer.json()["error"]["message"]
    calls = wire.calls()
    roots = [call for call in calls if "/op/Evaluation.evaluate:" in call["op_name"]]
    assert [root["inputs"]["self"] for root in roots] == [refs["known"]] * 2
    rows = [call for call in calls if "/op/Evaluation.predict_and_score:" in call["op_name"]]
    assert len(rows) == 4 and all(row["exception"] is None for row in rows)
    for row in rows:
        scores = row["output"]["scores"]
        assert set(scores) == {"StringMatchScorer", "ValidJSONScorer", "judge"}
        assert isinstance(scores["ValidJSONScorer"]["json_valid"], bool) and isinstance(scores["judge"], dict)
