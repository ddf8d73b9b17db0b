"""Safe promotion: a new step is the latest policy only if a stored evaluation does not fall."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.wire.training import call_id_of
from tests.conftest import Wire
from tests.support.chat import until
from tests.support.rl import Trainer
from tests.support.server import HeddleProcess

Json = dict[str, Any]
ROWS = [{"question": "say yes or no", "target": "yes"}, {"question": "What is 2 + 2?", "target": "4"}]


@pytest.fixture
def trainer(server: HeddleProcess, project: str) -> Iterator[Trainer]:
    """A trainable model."""
    with Trainer(server.url, project) as made:
        yield made


def publish(wire: Wire, name: str, value: Json, *bases: str) -> str:
    """The ref of a new object version."""
    head = {"_type": value["_class_name"], "_bases": [*bases, "Object", "BaseModel"]}
    body = {"project_id": wire.project, "object_id": name, "val": {**head, **value}}
    answer = wire.client.post("/obj/create", json={"obj": body})
    assert answer.status_code == 200, answer.text
    return f"weave:///{wire.project}/object/{name}:{answer.json()['digest']}"


def evaluation(wire: Wire, scorer: str = "ContainsScorer", **fields: Any) -> str:
    """The ref of a published evaluation with a dataset of two rows."""
    table = wire.client.post("/table/create", json={"table": {"project_id": wire.project, "rows": ROWS}}).json()
    rows = f"weave:///{wire.project}/table/{table['digest']}"
    dataset = publish(wire, "rows", {"_class_name": "Dataset", "name": "rows", "rows": rows})
    scorers = [publish(wire, scorer, {"_class_name": scorer}, "Scorer")]
    parts = {"dataset": dataset, "scorers": scorers, "name": "check", **fields}
    return publish(wire, "check", {"_class_name": "Evaluation", **parts})


def groups(trainer: Trainer) -> list[Json]:
    """Two rollouts of one question with different rewards."""
    items = [{"role": "user", "content": "say yes or no"}]
    members = [
        {"messages_and_choices": [*items, trainer.chat(items, seed=seed)], "reward": float(seed)} for seed in range(2)
    ]
    return [{"trajectories": members}]


def run(trainer: Trainer, promotion: Json) -> tuple[str, Json]:
    """The id of a job with a promotion rule, and the data of its last event."""
    body = {"model_id": trainer.model["id"], "trajectory_groups": groups(trainer), "promotion": promotion}
    job_id = trainer.post("/v1/preview/training-jobs", **body)["id"]
    last = trainer.until_ended(job_id)[-1]
    assert last["type"] == "training_ended", last
    assert all(isinstance(float(value), float) for value in last["data"].values())
    return str(job_id), last["data"]


def policy(trainer: Trainer, step: int | None = None) -> str:
    """The policy that answers a name."""
    model = trainer.name if step is None else f"{trainer.name}:step{step}"
    messages = [{"role": "user", "content": "hi"}]
    answer = trainer.post("/v1/chat/completions", model=model, messages=messages, max_tokens=1)
    return str(answer["system_fingerprint"]).rpartition("@")[2]


def test_a_step_that_does_not_fall_is_promoted(trainer: Trainer, wire: Wire) -> None:
    job_id, data = run(trainer, {"evaluation": evaluation(wire), "minimum_gain": -1.0, "max_tokens": 8})
    assert data["promotion/promoted"] == 1.0 and data["promotion/rows"] == 2.0
    assert 0.0 <= data["promotion/score_old"] <= 1.0 and 0.0 <= data["promotion/score_new"] <= 1.0
    assert policy(trainer) == "1"
    shown = wire.call(call_id_of(job_id))
    assert shown["inputs"]["promotion"]["minimum_gain"] == -1.0


def test_answers_have_a_bound_of_their_own(trainer: Trainer, wire: Wire) -> None:
    """A policy that went wrong may never end its turn."""
    job_id, _ = run(trainer, {"evaluation": evaluation(wire)})
    assert trainer.get(f"/v1/preview/training-jobs/{job_id}")["config"]["promotion"]["max_tokens"] == 1024


def test_a_step_that_falls_stays_addressable_beside_the_latest(trainer: Trainer, wire: Wire) -> None:
    _, data = run(trainer, {"evaluation": evaluation(wire), "minimum_gain": 2.0, "max_tokens": 8})
    assert data["promotion/promoted"] == 0.0
    assert (policy(trainer), policy(trainer, 1)) == ("0", "1")
    steps = [item["step"] for item in trainer.get(f"/v1/preview/models/{trainer.model['id']}/checkpoints")["data"]]
    assert steps == [0, 1]
    _, data = run(trainer, {"evaluation": evaluation(wire), "minimum_gain": -1.0, "max_tokens": 8})
    assert data["step"] == 2 and policy(trainer) == "2"


def operation(call: Json) -> str:
    """The name of a call's op."""
    return str(call["op_name"]).rpartition("/op/")[2].partition(":")[0]


def test_both_evaluations_are_visible_as_calls(trainer: Trainer, wire: Wire) -> None:
    ref = evaluation(wire, trials=2)
    _, data = run(trainer, {"evaluation": ref.rpartition(":")[0] + ":latest", "max_tokens": 8})
    calls = wire.calls()
    roots = {call["inputs"]["model"]: call for call in calls if operation(call) == "Evaluation.evaluate"}
    assert set(roots) == {f"{trainer.name}:step0", f"{trainer.name}:step1"}
    for step, score in ((0, data["promotion/score_old"]), (1, data["promotion/score_new"])):
        root = roots[f"{trainer.name}:step{step}"]
        assert root["inputs"]["self"] == ref, "the version was pinned when the job came in"
        assert root["output"]["ContainsScorer"]["contains"]["true_fraction"] == pytest.approx(score)
        children = [call for call in calls if call["parent_id"] == root["id"]]
        children = [call for call in children if operation(call) == "Evaluation.predict_and_score"]
        assert len(children) == 4 and all(call["output"]["output"] is not None for call in children)


def test_an_evaluation_that_cannot_be_run_is_refused_at_once(trainer: Trainer, wire: Wire) -> None:
    def refusal(promotion: Json) -> tuple[int, str]:
        body = {"model_id": trainer.model["id"], "trajectory_groups": [], "promotion": promotion}
        answer = trainer.client.post("/v1/preview/training-jobs", json=body)
        return answer.status_code, answer.text

    status, text = refusal({"evaluation": evaluation(wire, scorer="MyScorer")})
    assert status == 400 and f"{wire.project}/object/MyScorer:" in text and "not a built-in scorer" in text
    assert refusal({"evaluation": f"weave:///{wire.project}/object/none:latest"})[0] == 404
    assert refusal({"evaluation": "check"})[0] == 400
    assert refusal({"evaluation": evaluation(wire), "gain": 1})[0] == 422
    assert refusal({})[0] == 422
    assert trainer.get("/v1/preview/training-jobs", model_id=trainer.model["id"])["data"] == []


@pytest.mark.thorough
def test_a_server_that_dies_while_it_judges_judges_again(tmp_path: Path, project: str) -> None:
    """The job ends once, and the calls of the evaluation are those of one evaluation."""
    process = HeddleProcess(tmp_path / "data").start()
    try:
        wire = Wire(process.url, project)
        with Trainer(process.url, project) as trainer:
            rule = {"evaluation": evaluation(wire, trials=60), "minimum_gain": -1.0, "max_tokens": 24}
            body = {"model_id": trainer.model["id"], "trajectory_groups": groups(trainer), "promotion": rule}
            job_id = trainer.post("/v1/preview/training-jobs", **body)["id"]
            until(lambda: bool(wire.calls(limit=1)), "the evaluation has begun", 120)
            before = [operation(call) for call in wire.calls()]
            process.kill()
            assert before.count("Evaluation.evaluate") < 2 and "heddle.training_job" not in before
            process.start()
            events = trainer.until_ended(job_id)
            assert [event["type"] for event in events] == ["training_started", "gradient_step", "training_ended"]
            assert policy(trainer) == "1" and events[-1]["data"]["promotion/promoted"] == 1.0
        calls = [operation(call) for call in wire.calls()]
        assert calls.count("Evaluation.evaluate") == 2 and calls.count("heddle.training_job") == 1
        assert calls.count("Evaluation.predict_and_score") == 2 * 2 * 60
    finally:
        process.kill()


def test_one_call_rolls_the_latest_policy_back(trainer: Trainer, wire: Wire) -> None:
    run(trainer, {"evaluation": evaluation(wire), "minimum_gain": -1.0, "max_tokens": 8})
    assert policy(trainer) == "1"
    trainer.post(f"/v1/preview/models/{trainer.model['id']}/rollback", step=0)
    assert (policy(trainer), policy(trainer, 1)) == ("0", "1")
