"""POST /evaluations/evaluate_model and /evaluations/status: runs in the background, seen through their calls."""

from typing import Any

import pytest

from tests.support.chat import until
from tests.support.evaluations import Lab
from tests.support.provider import USAGE, FakeProvider

Json = dict[str, Any]
ROWS = [{"word": word, "target": word.upper()} for word in ("loom", "weft", "warp")]
TEMPLATE = [{"role": "system", "content": "Be loud."}, {"role": "user", "content": "{word}"}]
JSON_SCORE = '{{"SCORE": 1, "SAID": "{output}", "OF": "{inputs[word]}"}}'
"""The provider answers in capitals, so this is what it says."""


def exam(lab: Lab, **fields: Any) -> tuple[str, str]:
    """An evaluation by two scorers, and a model that passes it."""
    model = lab.model("fake/model-a", messages_template=TEMPLATE)
    judging = lab.model("fake/judge-model", name="judging", response_format="json_object")
    scorers = [lab.scorer("ExactMatchScorer"), lab.judge(judging, JSON_SCORE)]
    return lab.evaluation(lab.dataset(ROWS), scorers, **fields), model


def test_a_model_is_evaluated(lab: Lab, provider: FakeProvider) -> None:
    evaluation, model = exam(lab, evaluation_name="loud")
    before = len(provider.requests)
    call_id = lab.evaluate(evaluation, model)
    status = lab.ended(call_id)
    assert status["code"] == "complete"
    assert status["output"]["ExactMatchScorer"] == {"exact_match": {"true_count": 3, "true_fraction": 1.0}}
    assert status["output"]["judge"] == {"SCORE": {"mean": 1.0}}
    assert status["output"]["model_latency"]["mean"] > 0
    assert len(provider.requests) - before == 6
    asked = [request["body"] for request in provider.requests[before:] if request["body"]["model"] == "model-a"]
    assert {body["messages"][1]["content"] for body in asked} == {"loom", "weft", "warp"}
    root = lab.wire.call(call_id)
    assert root["inputs"] == {"self": evaluation, "model": model} and root["display_name"] == "loud"
    assert root["attributes"] == {"_weave_eval_meta": {"evaluate_model_worker": True}}
    assert root["trace_id"] == call_id and root["output"] == status["output"]


def test_its_calls_are_those_of_the_sdk(lab: Lab) -> None:
    evaluation, model = exam(lab)
    call_id = lab.evaluate(evaluation, model)
    lab.ended(call_id)
    rows = lab.children(call_id, "Evaluation.predict_and_score")
    assert len(rows) == 3
    for row in rows:
        assert row["attributes"]["_weave_eval_meta"] == {"evaluate_model_worker": True, "declarative": True}
        word = row["output"]["output"]
        assert row["output"]["scores"]["ExactMatchScorer"] == {"exact_match": True}
        assert row["output"]["scores"]["judge"] == {"SCORE": 1, "SAID": word, "OF": word}
        (predicted,) = lab.children(row["id"], "LLMStructuredCompletionModel.predict")
        assert predicted["inputs"]["self"] == model and predicted["output"] == word
        assert predicted["inputs"]["word"] == f"{row['inputs']['example']}/key/word"
        assert predicted["summary"]["usage"]["model-a"]["prompt_tokens"] == USAGE["prompt_tokens"]
        (judged,) = lab.children(row["id"], "LLMAsAJudgeScorer.score")
        assert judged["inputs"]["output"] == word and judged["inputs"]["self"].split(":")[-2].endswith("/judge")
        assert judged["attributes"]["weave"]["kind"] == "scorer"
        assert judged["summary"]["usage"]["judge-model"]["requests"] == 1
        found = lab.wire.post(
            "/feedback/query",
            query={"$expr": {"$eq": [{"$getField": "weave_ref"}, {"$literal": _ref(lab, predicted["id"])}]}},
        )["result"]
        assert {item["feedback_type"] for item in found} == {"wandb.runnable.ExactMatchScorer", "wandb.runnable.judge"}
        (by_judge,) = [item for item in found if item["feedback_type"] == "wandb.runnable.judge"]
        assert by_judge["call_ref"] == _ref(lab, judged["id"]) and by_judge["runnable_ref"] == judged["inputs"]["self"]
    (summed,) = lab.children(call_id, "Evaluation.summarize")
    assert "/object/EvaluationResults:" in summed["inputs"]["eval_table"]
    stored = lab.wire.calls(filter={"op_names": [f"weave:///{lab.wire.project}/op/Evaluation.evaluate:*"]})
    assert [call["id"] for call in stored] == [call_id]


def _ref(lab: Lab, call_id: str) -> str:
    return f"weave:///{lab.wire.project}/call/{call_id}"


def test_trials_and_column_maps(lab: Lab) -> None:
    model = lab.model("fake/model-a", messages_template=TEMPLATE)
    rows = [{"word": "a", "answer": "A"}, {"word": "b", "answer": "x"}]
    scorer = lab.scorer("ExactMatchScorer", column_map={"target": "answer"})
    call_id = lab.evaluate(lab.evaluation(lab.dataset(rows), [scorer], trials=3), model)
    status = lab.ended(call_id)
    assert status["output"]["ExactMatchScorer"]["exact_match"] == {"true_count": 3, "true_fraction": 0.5}
    assert len(lab.children(call_id, "Evaluation.predict_and_score")) == 6


def test_a_stored_prompt_and_further_input(lab: Lab, provider: FakeProvider) -> None:
    """The prompt wins over the template; `user_input` follows, `config` overrides."""
    prompt = lab.publish(
        "asking", "MessagesPrompt", ["Prompt", "Object"], messages=[{"role": "system", "content": "{{{t}}}"}]
    )
    model = lab.model("fake/model-a", prompt=prompt, messages_template=TEMPLATE, temperature=0.5, n_times=1)
    rows = [{"t": [1], "user_input": "say {t}", "config": {"temperature": 0.25}, "target": "SAY {T}"}]
    scorer = lab.scorer("ExactMatchScorer")
    call_id = lab.evaluate(lab.evaluation(lab.dataset(rows), [scorer]), model)
    assert lab.ended(call_id)["output"]["ExactMatchScorer"]["exact_match"]["true_count"] == 1
    body = provider.requests[-1]["body"]
    assert body["messages"] == [{"role": "system", "content": "{[1]}"}, {"role": "user", "content": "say {t}"}]
    assert (body["temperature"], body["n"], body["response_format"]) == (0.25, 1, {"type": "text"})


def test_a_row_whose_answer_fails_is_a_failed_row(lab: Lab) -> None:
    evaluation, _ = exam(lab)
    model = lab.model("fake/model-a", name="json", messages_template=TEMPLATE, response_format="json_object")
    rows = [*ROWS, {"word": "7", "target": 7}]
    evaluation = lab.evaluation(lab.dataset(rows, "mixed"), [lab.scorer("ExactMatchScorer")])
    call_id = lab.evaluate(evaluation, model)
    status = lab.ended(call_id)
    assert status["code"] == "complete"
    assert status["output"]["ExactMatchScorer"]["exact_match"] == {"true_count": 1, "true_fraction": 0.25}
    rows = lab.children(call_id, "Evaluation.predict_and_score")
    failed = [row for row in rows if row["exception"]]
    assert len(failed) == 3
    for row in failed:
        assert "did not return valid JSON" in row["exception"]
        assert row["output"]["output"] is None and row["output"]["scores"] == {}
    (good,) = [row for row in rows if not row["exception"]]
    assert good["output"]["output"] == 7


def test_models_of_providers_are_found_as_completions_find_them(lab: Lab, provider: FakeProvider) -> None:
    """By `custom::provider::model`, and by the ref of a ProviderModel."""
    body = {"name": "Own", "base_url": provider.url, "api_key_name": "HOME", "extra_headers": {"x-own": "1"}}
    digest = lab.store("own", body, "Provider")
    lab.store("own-best", {"name": "model-b", "provider": digest, "max_tokens": 100}, "ProviderModel")
    evaluation = lab.evaluation(lab.dataset(ROWS), [lab.scorer("ExactMatchScorer")])
    for name in ("custom::own::best", f"weave:///{lab.wire.project}/object/own-best:latest"):
        before = len(provider.requests)
        status = lab.ended(lab.evaluate(evaluation, lab.model(name, messages_template=TEMPLATE)))
        assert status["output"]["ExactMatchScorer"]["exact_match"]["true_count"] == 3, status
        assert {request["body"]["model"] for request in provider.requests[before:]} == {"model-b"}
        assert {request["headers"]["x-own"] for request in provider.requests[before:]} == {"1"}


def test_busy_providers_are_asked_again(lab: Lab, provider: FakeProvider) -> None:
    evaluation, model = exam(lab)
    provider.next_failures = [429, 500, 503]
    status = lab.ended(lab.evaluate(evaluation, model))
    assert status["output"]["ExactMatchScorer"]["exact_match"]["true_count"] == 3


def test_a_model_that_nobody_has_fails_the_run(lab: Lab) -> None:
    evaluation, _ = exam(lab)
    call_id = lab.evaluate(evaluation, lab.model("fake/model-missing", name="missing", messages_template=TEMPLATE))
    status = lab.ended(call_id)
    assert status["code"] == "failed" and "All 3 rows failed" in status["error"] and "404" in status["error"]
    assert len(lab.children(call_id, "Evaluation.predict_and_score")) == 3, "each failed row is there to be seen"


def test_what_is_of_the_wrong_kind_fails_the_call(lab: Lab) -> None:
    evaluation, model = exam(lab)
    plain = lab.publish("thing", "Thing", ["Object"])
    coded = lab.evaluation(
        lab.dataset(ROWS), [lab.scorer("ExactMatchScorer")], preprocess_model_input="weave:///a/b/op/f:1"
    )
    for wrong, right, reason in (
        (plain, model, "is not an Evaluation"),
        (evaluation, plain, "is not an LLMStructuredCompletionModel but Thing"),
        (evaluation.rpartition(":")[0] + ":nothing", model, "was not found"),
        (coded, model, "preprocess_model_input"),
        (lab.publish("mine", "MyEvaluation", ["Evaluation", "Object"]), model, "is not an Evaluation but MyEvaluation"),
    ):
        status = lab.ended(lab.evaluate(wrong, right))
        assert status["code"] == "failed" and reason in status["error"], status


def test_scorers_that_do_not_run_here_are_named(lab: Lab) -> None:
    _, model = exam(lab)
    scorers = [
        lab.scorer("MyScorer", score=f"weave:///{lab.wire.project}/op/MyScorer.score:abc"),
        lab.scorer("ExactMatchScorer"),
    ]
    evaluation = lab.evaluation(lab.dataset(ROWS), scorers)
    body = {"project_id": lab.wire.project, "evaluation_ref": evaluation, "model_ref": model}
    answer = lab.wire.client.post("/evaluations/evaluate_model", json=body)
    assert answer.status_code == 400
    assert scorers[0] in answer.json()["reason"] and scorers[1] not in answer.json()["reason"]
    assert lab.jobs() == [], "nothing was queued"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"evaluation_ref": 3, "model_ref": "m"}, 422),
        ({"evaluation_ref": "weave:///a/b", "model_ref": "m"}, 400),
        ({"evaluation_ref": "x", "model_ref": ""}, 422),
    ],
)
def test_bad_requests(lab: Lab, body: Json, status: int) -> None:
    answer = lab.wire.client.post("/evaluations/evaluate_model", json={"project_id": lab.wire.project, **body})
    assert answer.status_code == status, answer.text


def test_status_of_other_calls(lab: Lab) -> None:
    assert lab.status("nothing") == {"code": "not_found"}
    start = {
        "project_id": lab.wire.project,
        "id": "c1",
        "trace_id": "c1",
        "op_name": "mine",
        "started_at": "2026-01-01T00:00:00Z",
    }
    lab.wire.post("/call/start", start={**start, "attributes": {}, "inputs": {}})
    answer = lab.wire.client.post("/evaluations/status", json={"project_id": lab.wire.project, "call_id": "c1"})
    assert (answer.status_code, answer.json()) == (400, {"reason": "Call is not an evaluation"})
    evaluation, _ = exam(lab)
    start |= {"id": "c2", "op_name": "Evaluation.evaluate", "inputs": {"self": evaluation, "model": "m"}}
    lab.wire.post("/call/start", start={**start, "attributes": {}})
    assert lab.status("c2") == {"code": "running", "completed_rows": 0, "total_rows": 3}
    told = '{"type": "ValueError", "message": "too bad", "traceback": []}'
    end = {"project_id": lab.wire.project, "id": "c2", "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
    lab.wire.post("/call/end", end={**end, "exception": told})
    assert lab.status("c2") == {"code": "failed", "error": "too bad"}
    assert lab.status("nobody") == {"code": "not_found"}
    lab.wire.post("/calls/delete", call_ids=["c2"])
    assert lab.status("c2") == {"code": "not_found"}


def test_a_run_is_cancelled(lab: Lab, provider: FakeProvider) -> None:
    evaluation, _ = exam(lab)
    model = lab.model("fake/model-hangs", name="hanging", messages_template=TEMPLATE)
    provider.let_go.clear()
    call_id = lab.evaluate(evaluation, model)
    assert lab.status(call_id) == {"code": "running", "completed_rows": 0, "total_rows": 3}
    lab.wire.post("/evaluations/cancel", call_id=call_id)
    assert lab.ended(call_id) == {"code": "failed", "error": "cancelled"}
    (job,) = lab.jobs_done()
    assert (job["id"], job["kind"], job["state"], job["cancel_asked"]) == (call_id, "evaluate_model", "cancelled", True)
    provider.let_go.set()
    assert lab.children(call_id, "Evaluation.predict_and_score") == []
    answer = lab.wire.client.post("/evaluations/cancel", json={"project_id": lab.wire.project, "call_id": "none"})
    assert answer.status_code == 404


def test_jobs_are_listed(lab: Lab) -> None:
    evaluation, model = exam(lab)
    ids = [lab.evaluate(evaluation, model) for _ in range(3)]
    jobs = lab.jobs_done()
    assert [job["id"] for job in jobs] == ids[::-1]
    assert {job["state"] for job in jobs} == {"succeeded"} and jobs[0]["error"] is None
    assert jobs[0]["progress"] == {"completed_rows": 3, "total_rows": 3}
    assert jobs[0]["result"]["score"] == 1.0 and jobs[0]["result"]["failed"] == 0
    assert [job["id"] for job in lab.jobs(limit=1, offset=1)] == [ids[1]]
    assert lab.jobs(states=["failed"]) == [] and len(lab.jobs(kinds=["evaluate_model"])) == 3
    answer = lab.wire.client.post("/evaluations/jobs/query", json={"project_id": lab.wire.project, "states": ["lost"]})
    assert answer.status_code == 400


def limit(lab: Lab, quotas: str) -> None:
    """Give the project of the test quotas of its own."""
    body = {"kind": "project", "name": lab.wire.project, "quotas": quotas}
    assert lab.wire.client.put("/v1/limits", json=body).status_code == 200


def used(lab: Lab) -> list[int]:
    """How much of each of its quotas the project has used."""
    rows = lab.wire.client.get("/v1/limits").json()["data"]
    return [use["used"] for row in rows if row["name"] == lab.wire.project for use in row["uses"]]


@pytest.mark.usefixtures("within_a_day")
def test_its_answers_count_for_the_quota_of_the_project(lab: Lab, provider: FakeProvider) -> None:
    evaluation, model = exam(lab)
    limit(lab, "completions requests 100/day")
    assert lab.ended(lab.evaluate(evaluation, model))["code"] == "complete"
    assert used(lab) == [6], "an answer of the model and one of the judge for each of three rows"
    limit(lab, "completions requests 8/day")
    before = len(provider.requests)
    call_id = lab.evaluate(lab.evaluation(lab.dataset(ROWS), [lab.scorer("ExactMatchScorer")], name="short"), model)
    until(lambda: lab.jobs()[0]["error"] is not None, "it has met the quota")
    job = lab.jobs()[0]
    assert job["state"] == "queued" and lab.status(call_id)["code"] == "running"
    assert f"project '{lab.wire.project}' may send completions requests 8/day" in job["error"]
    assert len(provider.requests) - before == 2 and used(lab) == [8]
    assert len(lab.children(call_id, "Evaluation.predict_and_score")) == 2, "what was begun is stored"
    lab.wire.post("/evaluations/cancel", call_id=call_id)
    assert lab.ended(call_id)["code"] == "failed"


def test_it_waits_for_the_next_second_of_its_quota(lab: Lab) -> None:
    evaluation, model = exam(lab)
    limit(lab, "completions requests 3/second")
    status = lab.ended(lab.evaluate(evaluation, model))
    assert status["code"] == "complete" and status["output"]["judge"] == {"SCORE": {"mean": 1.0}}
