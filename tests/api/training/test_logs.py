"""Logged trajectories: the answer null, figures on the newest checkpoint, and everything readable again."""

import json
from typing import Any

import pytest

from heddle.training.intake import LARGE
from tests.support.server import HeddleProcess
from tests.support.training import NOBODY, TrainingWire, two_rollouts


def checkpoint(training: TrainingWire, model: dict[str, Any], step: int) -> dict[str, float]:
    """The metrics of a step."""
    rows = training.get(f"/models/{model['id']}/checkpoints", limit=100)["data"]
    return {row["step"]: row["metrics"] for row in rows}[step]


def test_figures_join_those_of_the_newest_checkpoint(training: TrainingWire) -> None:
    model = training.model()
    path = f"/models/{model['id']}/log"
    groups = two_rollouts()
    groups[0]["trajectories"][0]["metrics"] = {"correct": True}
    groups[0]["exceptions"] = [{"type": "E", "message": "m", "traceback": "t"}]
    answer = training.ask("POST", path, {"split": "val", "trajectory_groups": groups, "model_id": model["id"]})
    assert (answer.status_code, answer.content) == (200, b"null")
    first = {"val/reward": 0.5, "val/correct": 1.0, "val/exception_rate": 1 / 3, "val/reward_std_dev": 0.5}
    assert checkpoint(training, model, 0) == pytest.approx(first)
    training.post(path, split="train", trajectory_groups=[])
    training.train(model, two_rollouts(equal=True))
    training.post(path, split="val", trajectory_groups=two_rollouts(equal=True))
    assert checkpoint(training, model, 0) == pytest.approx({**first, "train/reward_std_dev": 0.0})
    newest = checkpoint(training, model, 1)
    assert newest["val/reward"] == 1.0 and newest["val/reward_std_dev"] == 0.0


def test_logs_are_browsable(training: TrainingWire) -> None:
    model = training.model()
    path = f"/models/{model['id']}"
    for number in range(3):
        training.post(f"{path}/log", split=f"s{number}", trajectory_groups=two_rollouts() * number)
    rows = training.get(f"{path}/logs")["data"]
    assert [(row["split"], row["step"], row["num_groups"], row["num_trajectories"]) for row in rows] == [
        ("s0", 0, 0, 0),
        ("s1", 0, 1, 2),
        ("s2", 0, 2, 4),
    ]
    page = training.get(f"{path}/logs", limit=2, order="desc")
    assert (page["data"], page["has_more"]) == ([rows[2], rows[1]], True)
    assert training.get(f"{path}/logs", limit=2, order="desc", after=rows[1]["id"])["data"] == [rows[0]]
    for number, row in enumerate(rows):
        whole = training.get(f"{path}/logs/{row['id']}")
        assert whole == {**row, "trajectory_groups": two_rollouts() * number}
    other = training.model()
    for log_id in (NOBODY, "none"):
        assert training.refused(404, "GET", f"{path}/logs/{log_id}")["detail"] == "Log not found"
    training.refused(404, "GET", f"/models/{other['id']}/logs/{rows[0]['id']}")


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"trajectory_groups": []}, ["body", "split"]),
        ({"split": "val"}, ["body", "trajectory_groups"]),
        ({"split": 5, "trajectory_groups": []}, ["body", "split"]),
        ({"split": " ", "trajectory_groups": []}, ["body", "split"]),
        ({"split": "s" * 201, "trajectory_groups": []}, ["body", "split"]),
        (
            {"split": "val", "trajectory_groups": [{"trajectories": [{"metrics": {"m" * 201: 1}}]}]},
            ["body", "trajectory_groups", 0, "trajectories", 0, "metrics"],
        ),
        (
            {"split": "val", "trajectory_groups": [{"trajectories": [{"metrics": {str(n): n for n in range(1001)}}]}]},
            ["body", "trajectory_groups"],
        ),
        ({"split": "val", "trajectory_groups": [{}]}, ["body", "trajectory_groups", 0, "trajectories"]),
        ([], ["body"]),
    ],
)
def test_wrong_bodies(body: Any, loc: list[Any], training: TrainingWire) -> None:
    model = training.model()
    refused = training.refused(422, "POST", f"/models/{model['id']}/log", body)
    assert [item["loc"] for item in refused["detail"]] == [loc]
    assert training.get(f"/models/{model['id']}/logs")["data"] == []


def test_a_large_log_is_checked_by_a_process_of_its_own(training: TrainingWire, server: HeddleProcess) -> None:
    model = training.model()
    path = f"/models/{model['id']}"
    groups = two_rollouts() * (LARGE // len(json.dumps(two_rollouts())) + 1)
    training.post(f"{path}/log", split="val", trajectory_groups=groups)
    (row,) = training.get(f"{path}/logs")["data"]
    assert training.get(f"{path}/logs/{row['id']}")["trajectory_groups"] == groups
    (last,) = two_rollouts()
    last["trajectories"][1]["reward"] = "low"
    groups[-1] = last
    refused = training.refused(422, "POST", f"{path}/log", {"split": "val", "trajectory_groups": groups})
    place = ["body", "trajectory_groups", len(groups) - 1, "trajectories", 1, "reward"]
    assert [item["loc"] for item in refused["detail"]] == [place]
    assert not list((server.data / "training").glob(".body-*"))
