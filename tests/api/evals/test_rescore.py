"""POST /evaluations/rescore: the answers of a run, of whichever SDK, scored once more without asking its model."""

from typing import Any

import pytest

from tests.support.evaluations import Lab
from tests.support.provider import FakeProvider

Json = dict[str, Any]
ROWS = [{"word": word, "target": word.upper(), "other": word} for word in ("loom", "weft")]


def rescored(lab: Lab, source: str, scorers: list[str]) -> tuple[str, Json]:
    """The id of the new run and its status at the end."""
    made = lab.wire.post("/evaluations/rescore", source_evaluation_run_id=source, scorer_refs=scorers)
    assert made["call_id"] == made["evaluation_run_id"]
    return made["call_id"], lab.ended(made["call_id"])


def test_a_run_is_scored_again(lab: Lab, provider: FakeProvider) -> None:
    model = lab.model("fake/model-a", messages_template=[{"role": "user", "content": "{word}"}])
    evaluation = lab.evaluation(lab.dataset(ROWS), [lab.scorer("ExactMatchScorer")], trials=2)
    source = lab.evaluate(evaluation, model)
    lab.ended(source)
    asked = len(provider.requests)
    judging = lab.model("fake/judge-model", name="judging", response_format="json_object")
    scorers = [
        lab.scorer("ExactMatchScorer", "by-other", column_map={"target": "other"}, ignore_case=True),
        lab.judge(judging, '{{"N": {inputs[n]}}}', name="broken"),
        lab.judge(judging, '{{"N": 2}}'),
    ]
    run_id, status = rescored(lab, source, scorers)
    assert status["code"] == "complete"
    assert status["output"]["by-other"] == {"exact_match": {"true_count": 4, "true_fraction": 1.0}}
    assert status["output"]["judge"] == {"N": {"mean": 2.0}} and "broken" not in status["output"]
    assert [request["body"]["model"] for request in provider.requests[asked:]] == ["judge-model"] * 4
    root, before = lab.wire.call(run_id), lab.wire.call(source)
    assert root["inputs"] == before["inputs"]
    assert root["attributes"]["weave"]["source_evaluation_run_id"] == source
    rows, old = (lab.children(call_id, "Evaluation.predict_and_score") for call_id in (run_id, source))
    assert sorted(row["inputs"]["example"] for row in rows) == sorted(row["inputs"]["example"] for row in old)
    latencies = [sorted(row["output"]["model_latency"] for row in some) for some in (rows, old)]
    assert latencies[0] == pytest.approx(latencies[1], abs=1e-5)
    for row in rows:
        assert "uses [n]" in row["exception"] and set(row["output"]["scores"]) == {"by-other", "judge"}
        (predicted,) = lab.children(row["id"], "LLMStructuredCompletionModel.predict")
        assert predicted["inputs"]["self"] == model and "usage" not in predicted["summary"]
    listed = lab.wire.client.get(f"/v2/{lab.wire.project}/evaluation_runs/{run_id}").json()
    assert (listed["source_evaluation_run_id"], listed["status"]) == (source, "completed")


def test_runs_of_other_sdks(lab: Lab) -> None:
    """Inline rows, `model_output`, another spelling of the op: the shapes of EvaluationLogger and of TypeScript."""
    day = "2026-01-01T00:00:0"
    common = {"trace_id": "t", "attributes": {}, "summary": {}, "started_at": f"{day}0Z", "ended_at": f"{day}1Z"}
    answers = [
        {"output": "A", "scores": {}, "model_latency": {"mean": 0.5}},
        {"model_success": True, "model_output": "b", "scores": {}, "model_latency": 0.25},
        {"output": None, "scores": {}},
    ]
    rows = [
        {
            **common,
            "id": f"{lab.wire.project}-{place}",
            "parent_id": f"{lab.wire.project}-root",
            "op_name": "Evaluation.predictAndScore" if place == 1 else "Evaluation.predict_and_score",
            "inputs": {"example": {"target": "A"}, "model": "m", "self": "e"},
            "output": output,
        }
        for place, output in enumerate(answers)
    ]
    root = {**common, "id": f"{lab.wire.project}-root", "op_name": "Evaluation.evaluate", "inputs": {"model": "m"}}
    batch = [{"project_id": lab.wire.project, "output": None, **call} for call in (root, *rows)]
    answer = lab.wire.client.post(f"/v2/{lab.wire.project}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text
    run_id, status = rescored(lab, str(root["id"]), [lab.scorer("ExactMatchScorer")])
    assert status["output"]["ExactMatchScorer"] == {"exact_match": {"true_count": 1, "true_fraction": 1 / 3}}
    assert status["output"]["model_latency"]["mean"] == pytest.approx(0.25)
    made = lab.children(run_id, "Evaluation.predict_and_score")
    assert sorted(row["output"]["output"] or "" for row in made) == ["", "A", "b"]
    assert sum(row["exception"] is not None for row in made) == 1


def test_what_cannot_be_scored_again(lab: Lab) -> None:
    scorer = lab.scorer("ExactMatchScorer")
    _, status = rescored(lab, "nothing", [scorer])
    assert status["code"] == "failed" and "'nothing' was not found" in status["error"]
    for refs, code in (([], 422), ([scorer, f"weave:///{lab.wire.project}/object/none:latest"], 400)):
        body = {"project_id": lab.wire.project, "source_evaluation_run_id": "x", "scorer_refs": refs}
        answer = lab.wire.client.post("/evaluations/rescore", json=body)
        assert answer.status_code == code, answer.text
    assert "none:latest" in answer.json()["reason"] and scorer not in answer.json()["reason"]
