"""Evaluation runs, predictions and scores under /v2, over HTTP."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.v2 import Json, V2Api

JSONL = "application/jsonl"
NOBODY = "01a1fa80-3329-7c4a-9433-c8654ae0c6b3"


@pytest.fixture
def v2(wire: Wire) -> V2Api:
    """The /v2 routes of the test's project."""
    return V2Api(wire)


class Run:
    """One evaluation run with the refs that it is made of."""

    def __init__(self, v2: V2Api, **more: Any) -> None:
        self.v2 = v2
        dataset = v2.post("datasets", name="data", rows=[{"a": 1}])
        self.scorer = v2.post("scorers", name="judge", op_source_code="x = 1\n")["scorer"]
        self.model = v2.post("models", name="answerer", source_code="x = 1\n")["model_ref"]
        data = v2.ref("object", "data", dataset["digest"])
        self.evaluation = v2.post("evaluations", name="exam", dataset=data, scorers=[self.scorer])["evaluation_ref"]
        made = v2.post("evaluation_runs", evaluation=self.evaluation, model=self.model, **more)
        self.id = str(made["evaluation_run_id"])

    def predict(self, inputs: Json, output: Any) -> str:
        """A new prediction of the run."""
        body = {"model": self.model, "inputs": inputs, "output": output, "evaluation_run_id": self.id}
        return str(self.v2.post("predictions", **body)["prediction_id"])

    def score(self, prediction: str, value: Any, scorer: str | None = None) -> str:
        """A new score of a prediction."""
        body = {"prediction_id": prediction, "scorer": scorer or self.scorer, "value": value}
        return str(self.v2.post("scores", **body, evaluation_run_id=self.id)["score_id"])

    def finish(self, prediction: str | None = None, **body: Any) -> None:
        """Finish a prediction, or the run."""
        path = f"evaluation_runs/{self.id}" if prediction is None else f"predictions/{prediction}"
        assert self.v2.post(f"{path}/finish", **body) == {"success": True}

    @property
    def record(self) -> Json:
        """The run as its route shows it."""
        return self.v2.get(f"evaluation_runs/{self.id}")

    @property
    def output(self) -> Any:
        """The output of the run's call."""
        return self.v2.wire.call(self.id)["output"]

    def row(self, prediction: str) -> Json:
        """The call of a prediction's row."""
        return self.v2.wire.call(self.v2.wire.call(prediction)["parent_id"])


def test_a_run_from_start_to_finish(v2: V2Api) -> None:
    """The figures of the recording: scores .25 and .5, outputs 1.5 and 3."""
    run = Run(v2)
    started = run.record
    assert (started["evaluation"], started["model"], started["status"]) == (run.evaluation, run.model, "running")
    assert started["finished_at"] is None and started["source_evaluation_run_id"] is None
    assert started["summary"] == {"weave": {"status": "running", "trace_name": "Evaluation.evaluate"}}
    for number, (value, output) in enumerate(((0.25, 1.5), (0.5, 3.0))):
        prediction = run.predict({"a": number}, output)
        score = run.score(prediction, value)
        read = v2.get(f"scores/{score}")
        user = read.pop("wb_user_id")
        assert read == {"score_id": score, "scorer": run.scorer, "value": value, "evaluation_run_id": run.id}
        assert user == v2.get(f"predictions/{prediction}")["wb_user_id"] == v2.wire.call(run.id)["wb_user_id"]
        run.finish(prediction)
    run.finish(summary={"mine": 1})
    ended = run.record
    assert (ended["status"], ended["summary"]["mine"]) == ("completed", 1)
    assert ended["finished_at"] > ended["started_at"]
    assert run.output == {"judge": {"mean": 0.375}, "output": {"mean": 2.25}}


def test_the_calls_behind_a_run(v2: V2Api) -> None:
    run = Run(v2, source_evaluation_run_id=NOBODY)
    prediction = run.predict({"a": 1}, "x")
    score = run.score(prediction, True)
    run.finish(prediction)
    run.finish()
    calls = {call["id"]: call for call in v2.wire.calls()}
    root, predicted, scored = calls[run.id], calls[prediction], calls[score]
    row = calls[predicted["parent_id"]]
    [summarize] = [call for call in calls.values() if call["op_name"] == "Evaluation.summarize"]
    assert len(calls) == 5 and {call["trace_id"] for call in calls.values()} == {run.id}
    names = [
        call["op_name"].removeprefix(v2.ref("op", "", "")[:-1]).partition(":")[0]
        for call in (root, row, predicted, scored)
    ]
    assert names == [
        "Evaluation.evaluate",
        "Evaluation.predict_and_score",
        "answerer.predict",
        "judge.score",
    ]
    assert [root["parent_id"], row["parent_id"], scored["parent_id"], summarize["parent_id"]] == [
        None,
        run.id,
        row["id"],
        run.id,
    ]
    marks = {"evaluation_run": "true", "evaluation": run.evaluation, "model": run.model}
    assert root["attributes"]["weave"] == {**marks, "source_evaluation_run_id": NOBODY}
    assert run.record["source_evaluation_run_id"] == NOBODY
    assert root["inputs"] == {"self": run.evaluation, "model": run.model}
    assert row["attributes"]["weave"] == {"predict_call_id": prediction}
    assert row["inputs"] == {"self": run.evaluation, "model": run.model, "example": {"a": 1}}
    own = {"prediction": "true", "model": run.model, "evaluation_run_id": run.id}
    assert predicted["attributes"]["weave"] == own and predicted["inputs"] == {"self": run.model, "inputs": {"a": 1}}
    own = {"score": "true", "prediction_id": prediction, "scorer": run.scorer, "evaluation_run_id": run.id}
    assert scored["attributes"]["weave"] == own
    assert scored["inputs"] == {"self": run.scorer, "inputs": {"a": 1}, "output": "x"} and scored["output"] is True
    latency = row["output"].pop("model_latency")["mean"]
    assert row["output"] == {"output": "x", "scores": {"judge": True}} and 0 <= latency < 60
    assert summarize["inputs"] == {"self": run.evaluation} and summarize["output"] == root["output"]
    assert root["output"] == {"judge": {"true_count": 1, "true_fraction": 1.0}}


def test_a_score_is_feedback_on_its_prediction(v2: V2Api) -> None:
    run = Run(v2)
    prediction = run.predict({}, 1)
    score = run.score(prediction, {"ok": True})
    [row] = v2.wire.post("/feedback/query")["result"]
    assert row["weave_ref"] == f"weave:///{v2.wire.project}/call/{prediction}"
    assert row["call_ref"] == f"weave:///{v2.wire.project}/call/{score}"
    assert (row["feedback_type"], row["payload"]) == ("wandb.runnable.judge", {"output": {"ok": True}})
    assert row["runnable_ref"] == run.scorer
    [call] = v2.wire.calls(filter={"call_ids": [prediction]}, include_feedback=True)
    assert call["summary"]["weave"]["feedback"][0]["id"] == row["id"]


def test_what_counts_in_the_summary(v2: V2Api) -> None:
    """Integers count as numbers, truths as fractions; texts and objects are passed over."""
    run = Run(v2)
    scorers = {
        name: v2.post("scorers", name=name, op_source_code="x")["scorer"] for name in ("whole", "true", "both", "text")
    }
    for number in range(4):
        prediction = run.predict({"n": number}, number)
        run.score(prediction, number, scorers["whole"])
        run.score(prediction, number > 0, scorers["true"])
        run.score(prediction, number > 1 if number < 3 else 2, scorers["both"])
        run.score(prediction, "good" if number else {"n": 1}, scorers["text"])
        run.finish(prediction)
    run.finish()
    assert run.output == {
        "whole": {"mean": 1.5},
        "true": {"true_count": 3, "true_fraction": 0.75},
        "both": {"mean": 0.75},
        "output": {"mean": 1.5},
    }


def test_finishing_a_prediction_keeps_its_output(v2: V2Api) -> None:
    run = Run(v2)
    prediction = run.predict({"a": 1}, {"deep": [1]})
    before = v2.wire.call(prediction)
    for _ in range(3):
        run.finish(prediction)
    assert v2.wire.call(prediction) == before
    read = v2.get(f"predictions/{prediction}")
    assert (read["output"], read["inputs"], read["evaluation_run_id"]) == ({"deep": [1]}, {"a": 1}, run.id)
    assert run.row(prediction)["output"]["output"] == {"deep": [1]}


def test_a_late_score_reaches_its_row(v2: V2Api) -> None:
    """Scores after the finish are taken in, the later one of a scorer counts, a deleted one goes; the time stays."""
    run = Run(v2)
    prediction = run.predict({}, 1)
    run.finish(prediction)
    row = run.row(prediction)
    assert row["output"]["scores"] == {}
    first = run.score(prediction, 0.5)
    assert run.row(prediction)["output"]["scores"] == {"judge": 0.5}
    second = run.score(prediction, {"beyond 64 bits": 2**70})
    assert run.row(prediction)["output"]["scores"] == {"judge": {"beyond 64 bits": 2**70}}
    assert v2.delete("scores", score_ids=second) == 1
    assert run.row(prediction)["output"]["scores"] == {"judge": 0.5}
    assert v2.delete("scores", score_ids=[first, first]) == 1
    after = run.row(prediction)
    assert after["output"] == row["output"] and after["ended_at"] == row["ended_at"]


def test_finishing_a_run_again_takes_in_what_came_later(v2: V2Api) -> None:
    run = Run(v2)
    prediction = run.predict({}, 1)
    run.score(prediction, 1)
    run.finish(prediction)
    run.finish(summary={"note": "n"})
    calls = v2.wire.calls()
    first = run.record
    run.finish()
    assert (run.record, v2.wire.calls()) == (first, calls)
    run.score(prediction, 3)
    run.finish()
    assert run.output["judge"] == {"mean": 3.0}
    assert (run.record["finished_at"], run.record["summary"]["note"]) == (first["finished_at"], "n")
    run.finish(summary={"note": "other"})
    assert run.record["summary"]["note"] == "other"


def test_a_null_score_counts_nothing_and_reads_as_zero(v2: V2Api) -> None:
    run = Run(v2)
    prediction = run.predict({}, None)
    score = run.score(prediction, None)
    run.finish(prediction)
    run.finish()
    assert v2.get(f"scores/{score}")["value"] == 0.0
    assert run.row(prediction)["output"]["scores"] == {} and run.output == {}


def test_predictions_and_scores_that_stand_alone(v2: V2Api) -> None:
    model = v2.ref("object", "m", "d")
    spans = [{"trace_id": "a" * 32, "span_id": "b" * 16}]
    made = v2.post("predictions", model=model, inputs={"z": 1}, output="o", genai_span_ref=spans)["prediction_id"]
    call = v2.wire.call(made)
    assert (call["trace_id"], call["parent_id"], call["output"]) == (made, None, "o")
    assert call["attributes"]["weave"]["genai_span_ref"] == spans
    scorer = v2.ref("op", "judge", "d")
    score = v2.post("scores", prediction_id=made, scorer=scorer, value=0.5)["score_id"]
    call = v2.wire.call(score)
    assert (call["trace_id"], call["parent_id"]) == (score, None)
    assert v2.post(f"predictions/{made}/finish") == {"success": True}
    assert v2.get(f"predictions/{made}")["evaluation_run_id"] is None
    named = v2.post("predictions", model="just a name", inputs={}, output=None)["prediction_id"]
    assert "/op/Model.predict:" in v2.wire.call(named)["op_name"]
    assert v2.get(f"predictions/{named}")["model"] == "just a name"
    long = v2.post("predictions", model=v2.ref("object", "m" * 128, "d"), inputs={}, output=None)["prediction_id"]
    assert f"/op/{'m' * 120}.predict:" in v2.wire.call(long)["op_name"]


def test_spans_of_a_prediction_within_a_run(v2: V2Api) -> None:
    run = Run(v2)
    spans = [{"trace_id": "a" * 32, "span_id": "b" * 16}]
    body = {"model": run.model, "inputs": {}, "output": 1, "evaluation_run_id": run.id}
    prediction = v2.post("predictions", **body, genai_span_ref=spans)["prediction_id"]
    assert run.row(prediction)["attributes"]["weave"]["genai_span_ref"] == spans
    bad = v2.ask("POST", "predictions", json={**body, "genai_span_ref": [{"trace_id": "a"}]})
    assert bad.status_code == 422 and bad.json()["detail"][0]["loc"] == ["body", "genai_span_ref", 0, "span_id"]


def test_lists_are_filtered_and_paged(v2: V2Api) -> None:
    runs = [Run(v2) for _ in range(3)]
    other = v2.post("models", name="other", source_code="x")["model_ref"]
    fourth = v2.post("evaluation_runs", evaluation=runs[0].evaluation, model=other)["evaluation_run_id"]
    every = [run.id for run in runs] + [fourth]

    def listed(**query: Any) -> list[str]:
        return [run["evaluation_run_id"] for run in v2.list("evaluation_runs", JSONL, **query)]

    assert listed() == every
    assert listed(limit=2, offset=1) == every[1:3] and listed(limit=0) == []
    assert listed(models=other) == [fourth]
    assert listed(models=[other, runs[0].model], evaluations=[runs[0].evaluation], limit=9) == every
    assert listed(evaluations="weave:///a/b/object/x:y") == []
    assert listed(evaluation_run_ids=[every[3], every[0]]) == [every[0], every[3]]
    assert listed(evaluation_run_ids=every, models=other) == [fourth]

    predictions = [[run.predict({"n": n}, n) for n in range(3)] for run in runs[:2]]
    scores = [[run.score(one, 1.0) for one in own] for run, own in zip(runs, predictions, strict=False)]
    for path, key, mine in (("predictions", "prediction_id", predictions), ("scores", "score_id", scores)):
        every = [one for own in mine for one in own]
        assert [item[key] for item in v2.list(path, JSONL)] == every
        of_second = v2.list(path, JSONL, evaluation_run_id=runs[1].id)
        assert [item[key] for item in of_second] == mine[1]
        assert {item["evaluation_run_id"] for item in of_second} == {runs[1].id}
        page = v2.list(path, JSONL, evaluation_run_id=runs[0].id, limit=1, offset=1)
        assert page == [v2.get(f"{path}/{mine[0][1]}")]
        assert v2.list(path, JSONL, evaluation_run_id=NOBODY) == []
        assert v2.ask("GET", path, params={"limit": -1}).status_code == 400


def test_deleting(v2: V2Api) -> None:
    run, other = Run(v2), Run(v2)
    kept = other.predict({}, 1)
    first, second = run.predict({"a": 1}, 1), run.predict({"a": 2}, 2)
    score = run.score(first, 1)
    # The call of the row and the score go with their prediction.
    assert v2.delete("predictions", prediction_ids=[first, NOBODY]) == 1
    for path in (f"predictions/{first}", f"scores/{score}"):
        assert v2.ask("GET", path).status_code == 404
    assert v2.delete("predictions", prediction_ids=first) == 0
    # Only what is of a kind is deleted by its route.
    assert v2.delete("predictions", prediction_ids=run.id) == v2.delete("scores", score_ids=second) == 0
    assert v2.delete("evaluation_runs", evaluation_run_ids=second) == 0
    assert v2.delete("evaluation_runs", evaluation_run_ids=[run.id]) == 1
    assert v2.ask("GET", f"evaluation_runs/{run.id}").status_code == 404
    assert [item["prediction_id"] for item in v2.list("predictions", JSONL)] == [kept]
    assert len(v2.wire.post("/feedback/query")["result"]) == 1
    for path in ("predictions", "scores", "evaluation_runs"):
        assert v2.ask("DELETE", path).status_code == 422


@pytest.mark.parametrize(
    ("path", "what"),
    [("predictions", "Prediction"), ("scores", "Score"), ("evaluation_runs", "Evaluation run")],
)
def test_what_is_not_there_is_404(v2: V2Api, path: str, what: str) -> None:
    answer = v2.ask("GET", f"{path}/nope")
    assert (answer.status_code, answer.json()) == (404, {"reason": f"{what} nope not found"})


def test_bad_requests_store_nothing(v2: V2Api) -> None:
    run = Run(v2)
    prediction = run.predict({}, 1)
    other = Run(v2)
    calls, feedback = v2.wire.calls(), v2.wire.post("/feedback/query")["result"]
    lone = {"model": run.model, "inputs": {}, "output": 1}
    scored = {"prediction_id": prediction, "scorer": run.scorer, "value": 1}
    huge = "x" * (2 * 1024 * 1024)
    for path, body, status in (
        ("predictions", {**lone, "evaluation_run_id": NOBODY}, 404),
        ("predictions", {**lone, "evaluation_run_id": prediction}, 404),
        ("predictions", {"model": run.model, "inputs": {}}, 422),
        ("predictions", {**lone, "inputs": []}, 422),
        ("scores", {**scored, "scorer": "bad"}, 400),
        ("scores", {**scored, "scorer": "weave:///a/b"}, 400),
        ("scores", {**scored, "scorer": f"weave:///{v2.wire.project}/call/{prediction}"}, 400),
        ("scores", {**scored, "prediction_id": NOBODY}, 404),
        ("scores", {**scored, "prediction_id": run.id}, 404),
        ("scores", {**scored, "evaluation_run_id": NOBODY}, 404),
        ("scores", {**scored, "evaluation_run_id": other.id}, 400),
        ("scores", {**scored, "value": huge}, 400),
        ("scores", {"prediction_id": prediction, "scorer": run.scorer}, 422),
        ("evaluation_runs", {"evaluation": "weave:///e", "model": run.model}, 400),
        ("evaluation_runs", {"evaluation": run.evaluation, "model": "weave:///m"}, 400),
        ("evaluation_runs", {"evaluation": run.evaluation}, 422),
        (f"evaluation_runs/{NOBODY}/finish", {}, 404),
        (f"evaluation_runs/{prediction}/finish", {}, 404),
        (f"evaluation_runs/{run.id}/finish", {"summary": 1}, 422),
    ):
        answer = v2.ask("POST", path, json=body)
        assert answer.status_code == status, (path, str(body)[:200], answer.text)
    assert v2.wire.calls() == calls and v2.wire.post("/feedback/query")["result"] == feedback
    assert v2.post(f"predictions/{NOBODY}/finish") == {"success": True}


def test_a_run_of_any_texts(v2: V2Api) -> None:
    """Evaluation and model need no refs: what stands outside has a text of its own."""
    made = v2.post("evaluation_runs", evaluation="eval://a", model="gpt")["evaluation_run_id"]
    v2.post(f"evaluation_runs/{made}/finish", summary={"n": 1})
    record = v2.get(f"evaluation_runs/{made}")
    assert [record[key] for key in ("evaluation", "model", "status")] == ["eval://a", "gpt", "completed"]


@pytest.mark.parametrize("body", [b"no JSON", b"{", b"[1]", b'"text"'])
def test_finishing_with_a_body_that_is_no_object(v2: V2Api, body: bytes) -> None:
    run = Run(v2)
    prediction = run.predict({}, 2)
    before = v2.wire.calls()
    for ended in (f"predictions/{prediction}", f"predictions/{NOBODY}", f"evaluation_runs/{run.id}"):
        assert v2.ask("POST", f"{ended}/finish", content=body).status_code == 422, ended
    assert v2.wire.calls() == before


def test_finishing_without_a_body(v2: V2Api) -> None:
    run = Run(v2)
    assert v2.ask("POST", f"evaluation_runs/{run.id}/finish").json() == {"success": True}
    assert (run.record["status"], run.output) == ("completed", {})


def test_two_finishes_at_once(v2: V2Api) -> None:
    """However many finish a prediction or a run together: one end, one summary, one call for it."""
    run = Run(v2)
    prediction = run.predict({}, 2)
    run.score(prediction, True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: run.finish(prediction), range(8)))
        list(pool.map(lambda _: run.finish(), range(8)))
    assert len(v2.wire.calls()) == 5
    assert run.output == {"judge": {"true_count": 1, "true_fraction": 1.0}, "output": {"mean": 2.0}}


def test_a_finish_while_predictions_are_written(v2: V2Api) -> None:
    """Nothing is lost: finishing once more has all of them."""
    run = Run(v2)

    def one(number: int) -> str:
        prediction = run.predict({"n": number}, number)
        run.score(prediction, number % 2 == 0)
        run.finish(prediction)
        if number % 5 == 0:
            run.finish()
        return prediction

    with ThreadPoolExecutor(6) as pool:
        predictions = list(pool.map(one, range(30)))
    listed = v2.list("predictions", JSONL, evaluation_run_id=run.id)
    assert sorted(item["prediction_id"] for item in listed) == sorted(predictions)
    run.finish()
    assert run.output == {"judge": {"true_count": 15, "true_fraction": 0.5}, "output": {"mean": 14.5}}


def test_scores_of_one_prediction_at_once(v2: V2Api) -> None:
    """Every score that was answered is in the row's output, although the row has ended already."""
    run = Run(v2)
    prediction = run.predict({}, 1)
    run.finish(prediction)
    names = [f"judge{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: run.score(prediction, 1, v2.ref("object", name, "d")), names))
    assert run.row(prediction)["output"]["scores"] == dict.fromkeys(names, 1)


def test_runs_of_sdks_are_read_by_their_id(v2: V2Api) -> None:
    """A run that calls made without any mark; the lists show only what was made here."""
    wire = v2.wire
    root, row, predict, score = (str(uuid.uuid4()) for _ in range(4))
    model, evaluation = v2.ref("object", "m", "d"), v2.ref("object", "e", "d")
    at = "2026-01-01T00:00:00Z"
    head = {"project_id": wire.project, "trace_id": str(uuid.uuid4()), "attributes": {}, "summary": {}}
    head |= {"started_at": at, "ended_at": at}
    batch = [
        {"id": root, "op_name": "Evaluation.evaluate", "inputs": {"self": evaluation, "model": model}, "output": {}},
        {"id": row, "parent_id": root, "op_name": "Evaluation.predict_and_score", "inputs": {}, "output": {}},
        {"id": predict, "parent_id": row, "op_name": "M.predict", "inputs": {"self": model, "q": 1}, "output": "x"},
        {"id": score, "parent_id": row, "op_name": "judge", "inputs": {"self": model, "output": "x"}, "output": 0.5},
    ]
    answer = v2.ask("POST", "calls/complete", json={"batch": [{**head, **call} for call in batch]})
    assert answer.status_code == 200, answer.text
    read = v2.get(f"evaluation_runs/{root}")
    assert (read["evaluation"], read["model"], read["status"]) == (evaluation, model, "completed")
    read = v2.get(f"predictions/{predict}")
    assert [read[key] for key in ("model", "inputs", "output", "evaluation_run_id")] == [model, {"q": 1}, "x", root]
    assert v2.get(f"scores/{score}")["value"] == 0.5
    for path in ("evaluation_runs", "predictions", "scores"):
        assert v2.list(path, JSONL) == []
    # What has ended elsewhere keeps its summary.
    assert v2.post(f"evaluation_runs/{root}/finish", summary={"a": 1}) == {"success": True}
    assert wire.call(root)["output"] == {} and len(wire.calls()) == 4


def test_a_run_with_many_rows_is_listed_whole(v2: V2Api) -> None:
    run = Run(v2)
    with ThreadPoolExecutor(4) as pool:
        made = sorted(pool.map(lambda number: run.predict({"n": number}, number), range(250)))
    listed = v2.list("predictions", JSONL, evaluation_run_id=run.id)
    assert sorted(item["prediction_id"] for item in listed) == made
    assert sorted(item["inputs"]["n"] for item in listed) == list(range(250))


def sdk_row(wire: Wire, scores: Json) -> tuple[str, str, str]:
    """An evaluation of one row as an SDK writes it; the ids of its root, its row and its prediction."""
    root, row, predict = (str(uuid.uuid4()) for _ in range(3))
    calculator = f"weave:///{wire.project}/op/calculator:" + "M" * 43
    own = {"self": f"weave:///{wire.project}/object/exam:" + "E" * 43, "model": calculator}
    output = {"output": "A", "scores": scores, "model_latency": 0.5}
    calls = [
        (root, None, "Evaluation.evaluate", own, {}),
        (row, root, "Evaluation.predict_and_score", {**own, "example": {"q": 1}}, output),
        (predict, row, calculator, {"q": 1}, "A"),
        (str(uuid.uuid4()), row, f"weave:///{wire.project}/op/judge:" + "S" * 43, {"output": "A"}, True),
    ]
    batch = [
        {
            "project_id": wire.project, "id": call_id, "trace_id": root, "parent_id": parent, "op_name": op,
            "started_at": "2026-03-04T05:06:07Z", "ended_at": "2026-03-04T05:06:08Z",
            "attributes": {}, "inputs": inputs, "output": output, "summary": {"note": 1},
        }
        for call_id, parent, op, inputs, output in calls
    ]  # fmt: skip
    wire.post(f"/v2/{wire.project}/calls/complete", batch=batch)
    return root, row, predict


def test_a_score_beside_those_of_an_sdk_keeps_them(v2: V2Api, wire: Wire) -> None:
    root, row, predict = sdk_row(wire, {"judge": True, "length": 1})
    before = wire.call(row)
    judge = v2.ref("object", "late", "S" * 43)
    score = v2.post("scores", prediction_id=predict, scorer=judge, value=0.5, evaluation_run_id=root)["score_id"]
    after = wire.call(row)
    scores = {"judge": True, "length": 1, "late": 0.5}
    assert after["output"] == {"output": "A", "scores": scores, "model_latency": 0.5}
    assert (after["ended_at"], after["summary"]["note"]) == (before["ended_at"], 1)
    assert v2.delete("scores", score_ids=[score]) == 1
    assert wire.call(row)["output"] == before["output"]


@pytest.mark.parametrize("value", [{}, [], 1, None])
def test_a_prediction_below_a_row_with_odd_marks_is_deleted(v2: V2Api, wire: Wire, value: Any) -> None:
    run, at = Run(v2), "2026-01-01T00:00:00Z"
    row, prediction = str(uuid.uuid4()), str(uuid.uuid4())
    head = {"project_id": wire.project, "trace_id": run.id, "started_at": at, "ended_at": at, "inputs": {}}
    marks = {row: {"predict_call_id": value}, prediction: {"prediction": "true"}}
    batch = [
        {**head, "id": call_id, "parent_id": parent, "op_name": op, "attributes": {"weave": marks[call_id]}}
        for call_id, parent, op in ((row, run.id, "Evaluation.predict_and_score"), (prediction, row, "m.predict"))
    ]
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[{**call, "output": 1, "summary": {}} for call in batch])
    assert v2.delete("predictions", prediction_ids=[prediction]) == 1
    assert {call["id"] for call in wire.calls()} == {run.id, row}


def test_functions_are_the_models_and_scorers_of_what_an_sdk_ran(v2: V2Api, wire: Wire) -> None:
    root, row, predict = sdk_row(wire, {"judge": True})
    model = v2.get(f"evaluation_runs/{root}")["model"]
    assert v2.get(f"predictions/{predict}")["model"] == model == v2.ref("op", "calculator", "M" * 43)
    (judge,) = [call["id"] for call in wire.calls(filter={"parent_ids": [row]}) if call["id"] != predict]
    assert v2.get(f"scores/{judge}")["scorer"] == v2.ref("op", "judge", "S" * 43)
    made = v2.post("evaluation_runs", evaluation=v2.ref("object", "exam", "E" * 43), model=model)
    assert v2.get(f"evaluation_runs/{made['evaluation_run_id']}")["model"] == model
