"""Checkpoints on the wire: pages in both orders, deletion that returns the space, what must stay, retention."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import until
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire, two_rollouts

STEPS = 4


@pytest.fixture(scope="module")
def trained(server: HeddleProcess) -> Iterator[tuple[TrainingWire, dict[str, Any]]]:
    """A model with the steps 0 to 4 (with nothing to train in between)."""
    with TrainingWire(server.url) as training:
        model = training.model()
        for _ in range(STEPS):
            training.train(model, two_rollouts(equal=True))
        yield training, model


def test_what_a_checkpoint_shows(trained: tuple[TrainingWire, dict[str, Any]], server: HeddleProcess) -> None:
    training, model = trained
    rows = training.get(f"/models/{model['id']}/checkpoints")["data"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["parent_step"] for row in rows] == [None, 0, 1, 2, 3]
    assert len({row["digest"] for row in rows}) == 1, "nothing was trained"
    for row in rows:
        folder = server.data / "training" / model["id"] / "checkpoints" / f"{row['step']:04d}"
        assert row["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
        assert all(isinstance(value, float) for value in row["metrics"].values())


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages(order: str, limit: int, trained: tuple[TrainingWire, dict[str, Any]]) -> None:
    training, model = trained
    path, seen, cursor = f"/models/{model['id']}/checkpoints", [], {}
    while True:
        page = training.get(path, order=order, limit=limit, **cursor)
        assert page["object"] == "list" and len(page["data"]) <= limit
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [row["step"] for row in page["data"]]
        if not page["has_more"]:
            break
        cursor = {"after": page["last_id"]}
    assert seen == (list(range(STEPS + 1)) if order == "asc" else list(range(STEPS, -1, -1)))


@pytest.mark.parametrize(
    ("query", "status", "loc"),
    [
        ({"limit": 0}, 422, ["query", "limit"]),
        ({"limit": 101}, 422, ["query", "limit"]),
        ({"limit": "x"}, 422, ["query", "limit"]),
        ({"order": "up"}, 422, ["query", "order"]),
        ({"after": "unknown"}, 400, "after"),
    ],
)
def test_wrong_queries(
    query: dict[str, Any], status: int, loc: Any, trained: tuple[TrainingWire, dict[str, Any]]
) -> None:
    training, model = trained
    refused = training.refused(status, "GET", f"/models/{model['id']}/checkpoints", **query)
    assert (refused["detail"][0]["loc"] if status == 422 else refused["error"]["param"]) == loc


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "steps"]),
        ({"steps": None}, ["body", "steps"]),
        ({"steps": [0, "1"]}, ["body", "steps", 1]),
        ({"steps": [1.5]}, ["body", "steps", 0]),
        ({"steps": [-1]}, ["body", "steps", 0]),
        ({"steps": [10**30]}, ["body", "steps", 0]),
        ({"steps": [True]}, ["body", "steps", 0]),
    ],
)
def test_wrong_deletions(body: Any, loc: list[Any], trained: tuple[TrainingWire, dict[str, Any]]) -> None:
    training, model = trained
    refused = training.refused(422, "DELETE", f"/models/{model['id']}/checkpoints", body)
    assert refused["detail"][0]["loc"] == loc
    assert training.steps(model) == list(range(STEPS + 1))


def test_deletion_returns_the_space(training: TrainingWire, server: HeddleProcess) -> None:
    model = training.model()
    for _ in range(3):
        training.train(model, two_rollouts(equal=True))
    path = f"/models/{model['id']}/checkpoints"
    answer = training.delete(path, {"steps": [0, 2, 2, 17]})
    assert answer == {"deleted_count": 2, "not_found_steps": [17]}
    assert training.steps(model) == [1, 3]
    folder = server.data / "training" / model["id"] / "checkpoints"
    assert sorted(item.name for item in folder.iterdir()) == ["0001", "0003"]
    assert [training.chat(model, step).status_code for step in (0, 1, 2, 3)] == [404, 200, 404, 200]
    assert training.delete(path, {"steps": [0]}) == {"deleted_count": 0, "not_found_steps": [0]}
    assert training.delete(path, {"steps": []}) == {"deleted_count": 0, "not_found_steps": []}


def test_what_is_needed_stays(training: TrainingWire) -> None:
    model = training.model()
    for _ in range(2):
        training.train(model, two_rollouts(equal=True))
    path = f"/models/{model['id']}"
    refused = training.refused(409, "DELETE", f"{path}/checkpoints", {"steps": [0, 2]})
    assert "Nothing was deleted" in refused["detail"] and "step 2" in refused["detail"]
    training.post(f"{path}/rollback", step=1)
    assert "newest" in training.refused(409, "DELETE", f"{path}/checkpoints", {"steps": [2]})["detail"]
    assert "roll back" in training.refused(409, "DELETE", f"{path}/checkpoints", {"steps": [1]})["detail"]
    assert training.steps(model) == [0, 1, 2]


def test_a_step_that_a_waiting_job_compares_with_stays(training: TrainingWire) -> None:
    model = training.model()
    training.train(model, two_rollouts(equal=True))
    config = {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 0}
    waiting = training.job(model, experimental_config=config)
    path = f"/models/{model['id']}/checkpoints"
    answer = training.ask("DELETE", path, {"steps": [0]})
    if training.get(f"/training-jobs/{waiting}")["ended_at"] is None:
        assert answer.status_code == 409 and waiting in answer.json()["detail"]
    assert training.until_ended(waiting)[-1]["type"] == "training_ended"
    assert training.delete(path, {"steps": [0]})["deleted_count"] == 1
    refused = training.refused(
        400,
        "POST",
        "/training-jobs",
        {"model_id": model["id"], "trajectory_groups": [], "experimental_config": config},
    )
    assert refused["error"]["param"] == "kl_penalty_reference_step"


@pytest.mark.thorough
def test_retention(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", training_keep=2) as process, TrainingWire(process.url) as training:
        model = training.model()
        for _ in range(3):
            training.train(model, two_rollouts(equal=True))
        until(lambda: training.steps(model) == [2, 3], "the newest two are kept")
        training.post(f"/models/{model['id']}/rollback", step=2)
        job = training.train(model, two_rollouts(equal=True))
        assert (job["parent_step"], job["step"]) == (2, 4)
        folder = process.data / "training" / model["id"] / "checkpoints"
        until(lambda: sorted(item.name for item in folder.iterdir()) == ["0003", "0004"], "the old ones are gone")
        assert training.steps(model) == [3, 4]
