"""Improvements: from weak calls to a promotion, what is refused, and what a stop leaves."""

from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.improve import Clinic, step_of

Json = dict[str, Any]


def test_weak_chats_train_a_step_that_is_promoted(wire: Wire) -> None:
    clinic = Clinic(wire)
    calls = clinic.write(12)
    clinic.write(12)
    found = clinic.ended(clinic.improve(name="more maybe"))
    assert (found["state"], found["outcome"], found["error"]) == ("succeeded", "promoted", None), found
    names = [(step["name"], step["number"], step["state"]) for step in found["steps"]]
    assert names == [
        ("select", None, "succeeded"),
        ("baseline", None, "succeeded"),
        ("rollouts", 1, "succeeded"),
        ("training", 1, "succeeded"),
        ("gate", None, "succeeded"),
        ("promotion", None, "succeeded"),
    ]
    chosen = step_of(found, "select")["result"]
    assert chosen["calls"] == 24 and (chosen["train"]["rows"], chosen["held_out"]["rows"]) == (8, 4)
    assert clinic.latest() == 1 and list(clinic.digests()) == [0, 1]
    check_provenance(wire, chosen, calls)
    check_rollouts(clinic, found)


def check_provenance(wire: Wire, chosen: Json, calls: list[str]) -> None:
    """Rows of both parts differ, and each is linked to the two calls that it came from."""
    sources: dict[str, list[str]] = {}
    for part in ("train", "held_out"):
        name, _, digest = chosen[part]["ref"].rpartition("/")[2].partition(":")
        value = wire.post("/obj/read", object_id=name, digest=digest)["obj"]["val"]
        rows = wire.post("/table/query", digest=value["rows"].rpartition("/")[2])["rows"]
        sources[part] = [row["val"]["source"].rpartition("/")[2] for row in rows]
        links = wire.post("/dataset_sources/query", dataset_object_id=name)["links"]
        by_row: dict[str, set[str]] = {}
        for link in links:
            by_row.setdefault(link["row_digest"], set()).add(link["source_id"])
        assert {row["digest"] for row in rows} == by_row.keys()
        assert all(len(found) == 2 and len(found & set(calls)) == 1 for found in by_row.values())
        assert all(row["val"]["source"].rpartition("/")[2] in by_row[row["digest"]] for row in rows)
        assert all(row["val"]["target"] == "maybe" for row in rows)
    assert not set(sources["train"]) & set(sources["held_out"])


def check_rollouts(clinic: Clinic, found: Json) -> None:
    """Every answer is a call with its reward; the job trained on them from the step that gave them."""
    result = step_of(found, "rollouts", 1)["result"]
    answers = clinic.wire.calls(filter={"parent_ids": [result["call_id"]]})
    assert len(answers) == result["answers"] == result["scored"] == 16
    rewards = [call["summary"]["reward"] for call in answers]
    said = [call["output"]["choices"][0]["message"]["content"].strip() for call in answers]
    assert rewards == [float(text == "maybe") for text in said]
    assert result["reward"] == sum(rewards) / 16
    (job,) = clinic.jobs()
    assert job["id"] == step_of(found, "training", 1)["result"]["job_id"]
    assert (job["state"], job["parent_step"], job["step"]) == ("succeeded", 0, 1)
    assert job["config"]["source"]["counts"]["trajectories"] == 16


def test_a_refused_candidate_stays_a_candidate(wire: Wire) -> None:
    clinic = Clinic(wire)
    clinic.write(8)
    exam = Lab(wire).evaluation(Lab(wire).dataset([{"question": "2 + 2 = ?", "target": "4"}]), [clinic.scorer])
    gate = {"held_out": ["mean(score) < 2"], "general": ["score < -0.02"]}
    found = clinic.ended(clinic.improve(gate=gate, general=exam))
    assert (found["state"], found["outcome"]) == ("succeeded", "refused")
    assert "mean(score) < 2 on held_out" in found["reason"] and "step 0 stays" in found["reason"]
    verdicts = step_of(found, "gate")["result"]["conditions"]
    assert [(one["set"], one["refuses"]) for one in verdicts] == [("held_out", True), ("general", False)]
    assert clinic.latest() == 0 and list(clinic.digests()) == [0, 1], "the step can still be asked by its number"


def test_scores_of_a_monitor_choose_and_take_back(wire: Wire) -> None:
    clinic = Clinic(wire)
    parts = {"op_names": ["ask"], "sampling_rate": 1.0, "scorers": [clinic.scorer], "active": True}
    Lab(wire).publish("monitor", "Monitor", ["Object", "BaseModel"], **parts)
    clinic.write(8)
    clinic.write(16, answer="maybe")
    clinic.scored(24)
    watch = {"monitor": "monitor", "below": 0.5, "calls": 6}
    improvement = clinic.improve(weak={"monitor": "monitor", "below": 0.5}, watch=watch)
    found = clinic.until(improvement, state="watching")
    assert (found["error"], found["outcome"], clinic.latest()) == (None, "promoted", 1)
    assert step_of(found, "select")["result"]["calls"] == 8
    clinic.write(5)
    clinic.write(1, answer="maybe")
    found = clinic.ended(improvement)
    assert (found["state"], found["outcome"]) == ("succeeded", "rolled_back"), found
    assert clinic.latest() == 0 and "the name points to step 0 again" in found["reason"]
    seen = step_of(found, "watch")["result"]
    assert seen["scores"] == 6 and seen["mean"] == pytest.approx(1 / 6)


def test_a_stop_leaves_the_name_where_it_is(wire: Wire) -> None:
    clinic = Clinic(wire)
    clinic.write(8)
    many = {"steps": 500, "chats": 4, "answers": 4, "max_tokens": 4, "target_reward": 2.0}
    improvement = clinic.improve(rollouts=many)
    while not [step for step in clinic.read(improvement)["steps"] if step["name"] == "training"]:
        pass
    refused = wire.client.post("/improvements/create", json={**clinic.body(), "project_id": wire.project})
    assert refused.status_code == 409 and improvement in refused.json()["reason"]
    wire.post("/improvements/cancel", id=improvement)
    found = clinic.ended(improvement)
    assert (found["state"], found["outcome"]) == ("cancelled", None) and clinic.latest() == 0
    assert all(job["ended_at"] or job["cancel_asked"] for job in clinic.jobs())


@pytest.mark.parametrize(
    ("calls", "changes", "reason"),
    [
        (0, {}, "No call is weak by these conditions"),
        (3, {}, "3 weak calls hold 3 different chats; 4 are needed"),
        (6, {"columns": {"target": "attributes.target"}}, "6 calls: it has no attributes.target"),
        (6, {"rollouts": {"target_reward": 0}}, "nothing to improve"),
        (6, {"gate": {"held_out": ["nothing < 0"]}}, "uses an unknown measure 'nothing'; the runs have: score"),
        (6, {"budget_seconds": 0.001}, "was spent before a step was trained"),
        (6, {"columns": {"target": "inputs.messages.0.role"}}, "reinforcement has nothing to learn from"),
    ],
)
def test_what_cannot_be_improved_says_what_to_do(wire: Wire, calls: int, changes: Json, reason: str) -> None:
    clinic = Clinic(wire)
    if calls:
        clinic.write(calls)
    rollouts = {"steps": 4, "chats": 2, "answers": 2, "max_tokens": 4, **changes.pop("rollouts", {})}
    found = clinic.ended(clinic.improve(rollouts=rollouts, **changes))
    assert found["state"] == "failed" and reason in found["error"], found
    assert clinic.latest() == 0 and clinic.jobs() == []


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"model": "nobody"}, 404, "Trainable model 'nobody' not found"),
        ({"columns": {}}, 400, "needs the column 'target'"),
        ({"columns": {"source": "inputs.target"}}, 422, "the column source is reserved"),
        ({"columns": {"target": "target"}}, 422, "a path must start with one of"),
        ({"scorers": []}, 422, "scorers"),
        ({"scorers": ["weave:///nobody/nothing/object/none:v0"]}, 400, "cannot be run here"),
        ({"weak": {}}, 422, "to select the weak calls"),
        ({"weak": {"below": 0.5}}, 422, "must be given together"),
        ({"weak": {"monitor": "m"}}, 422, "must be given together"),
        ({"weak": {"monitor": "m", "below": 0.5}}, 404, "The monitor"),
        ({"weak": {"filter": {}, "querry": {}}}, 422, "querry"),
        ({"weak": {"filter": {}, "error_group": "g", "query": {"$expr": {"$eq": [1]}}}}, 422, "$eq"),
        ({"general": "weave:///nobody/nothing/object/none:v0"}, 404, "evaluation"),
        ({"gate": {"held_out": ["score is low"]}}, 422, "is not valid; expected a condition"),
        ({"rollouts": {"answers": 1}}, 422, "greater than or equal to 2"),
        ({"watch": {"monitor": "m"}}, 422, "below"),
        ({"budget_seconds": 0}, 422, "greater than 0"),
    ],
)
def test_bad_requests_are_refused(wire: Wire, changes: Json, status: int, reason: str) -> None:
    clinic = Clinic(wire)
    answer = wire.client.post("/improvements/create", json={"project_id": wire.project, **clinic.body(**changes)})
    assert answer.status_code == status and reason in answer.text, answer.text
    assert wire.post("/improvements/query")["improvements"] == []


def test_a_judge_gives_the_rewards(wire: Wire) -> None:
    """By RULER: the training job takes its rewards from the judge, and none from the scorers."""
    clinic = Clinic(wire)
    clinic.write(6)
    improvement = clinic.improve(ruler={"rubric": "Say maybe."})
    while not (jobs := clinic.jobs()):
        assert clinic.read(improvement)["ended_at"] is None
    wire.post("/improvements/cancel", id=improvement)
    assert jobs[0]["config"]["ruler"]["rubric"] == "Say maybe." and "reward" not in jobs[0]["config"]["source"]
    assert clinic.ended(improvement)["state"] == "cancelled" and clinic.latest() == 0
