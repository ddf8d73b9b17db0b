"""Trainable models: made and served at once, found, refused, rolled back and deleted with all they have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.served_model import TINY, TINY_FOLDER
from tests.support import scale
from tests.support.models import make_adapter
from tests.support.server import HeddleProcess
from tests.support.training import NOBODY, TrainingWire, two_rollouts

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def checkpoint_folders(server: HeddleProcess, model: dict[str, Any]) -> list[str]:
    """What lies on the disk for a model."""
    return sorted(path.name for path in (server.data / "training" / model["id"] / "checkpoints").glob("*"))


def test_a_new_model_answers_at_once_as_its_base_does(training: TrainingWire, server: HeddleProcess) -> None:
    wanted = training.wanted()
    model = training.post("/models", **wanted)
    assert UUID.fullmatch(model["id"]) and model["run_id"]
    assert {name: model[name] for name in wanted} == wanted
    assert (model["latest_step"], training.steps(model)) == (0, [0])
    assert checkpoint_folders(server, model) == ["0000"]
    latest, fixed = training.chat(model), training.chat(model, 0)
    assert latest.status_code == fixed.status_code == 200, latest.text
    body = {**json.loads(latest.request.content), "model": TINY}
    base = training.client.post("/v1/chat/completions", json=body)
    said = [answer.json()["choices"][0]["message"]["content"] for answer in (latest, fixed, base)]
    assert said[0] == said[1] == said[2]
    assert latest.headers["x-heddle-policy"].endswith(f"{model['name']}@0")


def test_without_an_entity_it_is_the_callers(training: TrainingWire) -> None:
    assert training.model(entity=None)["entity"] == "local"


@pytest.mark.parametrize("spelling", ["tiny/chat", "heddle/heddle-tiny", TINY])
def test_spellings_of_the_shipped_model(spelling: str, training: TrainingWire) -> None:
    assert training.model(base_model=spelling)["base_model"] == TINY


def test_the_name_is_taken(training: TrainingWire) -> None:
    wanted = training.wanted()
    first = training.post("/models", **wanted)
    again = training.post("/models", **wanted, return_existing=True)
    assert again == first
    for existing in (False, None):
        body = wanted if existing is None else {**wanted, "return_existing": existing}
        refused = training.refused(409, "POST", "/models", body)
        assert wanted["name"] in refused["detail"] and "already exists" in refused["detail"]
        assert refused["error"]["type"] == "ConflictError"
    assert training.post("/models", **{**wanted, "project": "other"})["id"] != first["id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"base_model": "no/such"}, "base_model"),
        ({"base_model": "no/such", "return_existing": True}, "base_model"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a:b"}, "name"),
        ({"name": "a@3"}, "name"),
        ({"name": "ü" * 3}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"entity": "a@b"}, "entity"),
        ({"project": "p@q"}, "project"),
        ({"project": "x" * 200}, "project"),
    ],
)
def test_what_cannot_be_made(fields: dict[str, Any], param: str, training: TrainingWire) -> None:
    refused = training.refused(400, "POST", "/models", training.wanted(**fields))
    assert refused["error"]["param"] == param
    if param == "base_model":
        assert f"available: {TINY}" in refused["detail"]
    assert training.get("/models", entity=training.entity)["data"] == []


@pytest.mark.parametrize("fields", [{"entity": ""}, {"project": ""}, {"project": "a/b"}, {"entity": "a:b"}])
def test_projects_that_are_none(fields: dict[str, Any], training: TrainingWire) -> None:
    training.refused(400, "POST", "/models", training.wanted(**fields))


@pytest.mark.parametrize(
    ("body", "locs"),
    [
        ({"name": "x"}, [["body", "project"], ["body", "base_model"]]),
        ({"entity": 5, "project": "p", "name": "n", "base_model": "b"}, [["body", "entity"]]),
        ({"project": "p", "name": "n", "base_model": None}, [["body", "base_model"]]),
        ({"project": "p", "name": "n", "base_model": "b", "return_existing": "yes"}, [["body", "return_existing"]]),
        ([], [["body"]]),
        ("text", [["body"]]),
        (None, [["body", 0]]),
    ],
)
def test_wrong_bodies(body: Any, locs: list[list[Any]], training: TrainingWire) -> None:
    refused = training.refused(422, "POST", "/models", body)
    assert [item["loc"] for item in refused["detail"]] == locs


def test_listing(training: TrainingWire) -> None:
    made = [training.model(project=project) for project in ("a", "b", "b")]
    every = training.get("/models", entity=training.entity)
    assert every["data"] == made and every["has_more"] is False
    assert (every["first_id"], every["last_id"]) == (made[0]["id"], made[2]["id"])
    assert training.get("/models", entity=training.entity, project="b")["data"] == made[1:]
    assert training.get("/models", entity=training.entity, name=made[1]["name"])["data"] == [made[1]]
    page = training.get("/models", entity=training.entity, order="desc", limit=2)
    assert page["data"] == [made[2], made[1]] and page["has_more"] is True
    rest = training.get("/models", entity=training.entity, order="desc", limit=2, after=page["last_id"])
    assert rest["data"] == [made[0]] and rest["has_more"] is False
    assert training.get(f"/models/{made[1]['id']}") == made[1]
    assert training.get(f"/models/{made[1]['id'].upper()}") == made[1]


@pytest.mark.parametrize("model_id", ["none", NOBODY, "%00", "1" * 5000])
def test_an_unknown_model_is_404(model_id: str, training: TrainingWire) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/checkpoints", None),
        ("DELETE", "/checkpoints", {"steps": [0]}),
        ("POST", "/rollback", {"step": 0}),
        ("POST", "/log", {"split": "val", "trajectory_groups": []}),
        ("GET", "/logs", None),
        ("GET", f"/logs/{NOBODY}", None),
    ):
        assert training.refused(404, method, f"/models/{model_id}{path}", body)["detail"] == "Model not found"


def test_rolling_back_and_training_on_from_there(training: TrainingWire) -> None:
    model = training.model()
    path = f"/models/{model['id']}"
    for _ in range(2):
        training.train(model, two_rollouts(equal=True))
    assert training.get(path)["latest_step"] == 2
    assert training.post(f"{path}/rollback", step=1)["latest_step"] == 1
    assert training.chat(model).headers["x-heddle-policy"].endswith("@1")
    assert training.chat(model, 2).headers["x-heddle-policy"].endswith("@2")
    job = training.train(model, two_rollouts(equal=True))
    assert (job["parent_step"], job["step"]) == (1, 3)
    assert training.get(path)["latest_step"] == 3
    assert training.refused(404, "POST", f"{path}/rollback", {"step": 9})["error"]["param"] == "step"
    for step in (-1, "1", 1.5, None, 2**60):
        assert training.refused(422, "POST", f"{path}/rollback", {"step": step})["detail"][0]["loc"] == ["body", "step"]


def test_deleting_a_model_takes_everything_with_it(training: TrainingWire, server: HeddleProcess) -> None:
    model, other = training.model(), training.model()
    done = training.train(model, two_rollouts(equal=True))
    training.post(f"/models/{model['id']}/log", split="val", trajectory_groups=two_rollouts())
    answer = training.delete(f"/models/{model['id']}")
    assert answer == {"model_id": model["id"], "deleted_checkpoints": 2, "deleted_run": True}
    assert not (server.data / "training" / model["id"]).exists()
    assert training.chat(model).status_code == training.chat(model, 1).status_code == 404
    training.refused(404, "GET", f"/models/{model['id']}")
    training.refused(404, "POST", "/training-jobs", {"model_id": model["id"], "trajectory_groups": []})
    assert training.until_ended(done["id"])[-1]["type"] == "training_ended"
    training.refused(404, "GET", f"/training-jobs/{done['id']}/trajectories")
    assert training.chat(other).status_code == 200
    again = training.model(name=model["name"])
    assert again["id"] != model["id"] and training.steps(again) == [0]


def test_deleting_a_model_cancels_its_jobs(training: TrainingWire) -> None:
    model = training.model()
    jobs = [training.job(model) for _ in range(3)]
    training.delete(f"/models/{model['id']}")
    for job_id in jobs:
        last = training.until_ended(job_id)[-1]
        assert last["type"] == "training_ended" or last["data"] == {"error_message": "cancelled"}, last
    assert training.get(f"/training-jobs/{jobs[2]}")["state"] == "cancelled"


@pytest.mark.thorough
def test_models_survive_a_restart(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as process, TrainingWire(process.url) as training:
        model = training.model()
        training.train(model, two_rollouts(equal=True))
        leftover = process.data / "training" / NOBODY / "checkpoints" / "0000"
        process.terminate()
        leftover.mkdir(parents=True)
        process.start()
        assert training.get(f"/models/{model['id']}") == {**model, "latest_step": 1}
        assert training.chat(model).headers["x-heddle-policy"].endswith("@1")
        # Where servers share the folder, what is young may be another one's.
        assert leftover.exists() == (scale.EVERYWHERE != "sqlite")


def test_the_name_of_an_adapter_that_was_loaded_by_hand(training: TrainingWire, tmp_path: Path) -> None:
    """It is refused, and that adapter goes on serving."""
    wanted = training.wanted()
    address = f"wandb-artifact:///{wanted['entity']}/{wanted['project']}/{wanted['name']}"
    folder = make_adapter(tmp_path / "adapter", TINY_FOLDER)
    loaded = training.client.post("/v1/load_lora_adapter", json={"lora_name": address, "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    for existing in (False, True):
        refused = training.refused(409, "POST", "/models", {**wanted, "return_existing": existing})
        assert wanted["name"] in refused["detail"]
    assert training.chat(wanted).status_code == 200
    assert training.get("/models", entity=training.entity)["data"] == []
    assert training.client.post("/v1/unload_lora_adapter", json={"lora_name": address}).status_code == 200
    assert training.post("/models", **wanted)["latest_step"] == 0


def test_a_model_has_a_rank_of_its_own(training: TrainingWire) -> None:
    """Alpha is 32 then; the card of each checkpoint says so."""
    wanted = training.wanted()
    made = training.post("/models", **wanted, lora_rank=2)
    (card,) = training.get(f"/models/{made['id']}/checkpoints")["data"]
    lora = card["recipe"]["lora"]
    assert (lora["rank"], lora["alpha"], len(lora["target_modules"])) == (2, 32.0, 7)
    again = {**wanted, "return_existing": True}
    assert training.post("/models", **again)["id"] == made["id"]
    assert "rank 2" in training.refused(409, "POST", "/models", {**again, "lora_rank": 4})["detail"]
    training.refused(422, "POST", "/models", {**again, "lora_rank": 0})
