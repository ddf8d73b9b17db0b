"""Answers that no honest model gives: they cost their row or its score, and never the run."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import LOCAL
from heddle.errors import InvalidRequest
from heddle.evals import objects, predictions
from heddle.evals.objects import DEEPEST_ANSWER
from heddle.evals.results.trials import EvalResultsScorerStats
from heddle.evals.run import Summary
from heddle.evals.scorers import LONGEST_SCORE, number_of
from heddle.evals.v2.runs import Total
from heddle.services import Services
from heddle.wire.means import mean
from tests.support.inprocess import Trace
from tests.unit.evals.test_running import PROJECT, Echo, evaluated, exam, with_services

Json = dict[str, Any]
DEEP = "[" * (DEEPEST_ANSWER + 1) + "]" * (DEEPEST_ANSWER + 1)
HUGE = 10**400
"""An integer beyond every float."""


class Says(Echo):
    """A model that says the same to whatever it is asked as `odd`, and repeats everything else."""

    def __init__(self, text: str = "", **more: Any) -> None:
        super().__init__()
        self.answer = {"choices": [{"message": {"content": text}}], **more}

    async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
        """A completion."""
        plain = await super().create(inputs, caller, project)
        return self.answer if inputs["model"] == "odd" else plain


def described(**parameters: Any) -> Json:
    """A model that is asked as `odd`."""
    return {
        "_type": "LLMStructuredCompletionModel",
        "_class_name": "LLMStructuredCompletionModel",
        "_bases": ["Model", "Object", "BaseModel"],
        "name": "odd",
        "llm_model_id": "odd",
        "default_params": parameters,
    }


ODD = [
    (Says(DEEP), 0),
    (Says("[]", extra=[[[[]]]]), 3),
    (Says('{"a": 1' + "0" * 400 + "}"), 3),
    (Says('{"a": "\\ud800", "b": NaN, "c": -Infinity}'), 3),
    (Says("{}", usage={"prompt_tokens": 1, "prompt_tokens_details": [1]}), 3),
    (Says("{}", usage={"prompt_tokens": HUGE, "prompt_tokens_details": {"cached_tokens": "4"}}), 3),
]
nested: Any = []
for _ in range(DEEPEST_ANSWER + 1):
    nested = [nested]
ODD.append((Says("{}", extra=nested), 0))


@pytest.mark.parametrize(("model", "answered"), ODD)
def test_an_odd_answer_costs_its_row_only(tmp_path: Path, model: Says, answered: int) -> None:
    async def test(services: Services, trace: Trace) -> None:
        ref = await trace.publish("odd", described(response_format="json_object"))
        job = await evaluated(services, await exam(trace, 3), ref)
        assert job.state == "succeeded" and job.result is not None, job.error
        assert (job.result["cases"], job.result["failed"]) == (3, 3 - answered)
        rows = [call for call in await trace.calls() if "predict_and_score" in call["op_name"]]
        assert len([row for row in rows if row["exception"] is None]) == answered

    with_services(tmp_path, test, model)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEEP, "is nested deeper than"),
        ('"' + "x" * LONGEST_SCORE + '"', "returned more than"),
        ("Well said.", "The model did not return valid JSON"),
        ('{"verdict": "fine"}', "Its result has no number or boolean"),
    ],
)
def test_an_odd_judgement_costs_its_score_only_and_the_run_says_so(tmp_path: Path, text: str, reason: str) -> None:
    async def test(services: Services, trace: Trace) -> None:
        judge = {
            "_type": "LLMAsAJudgeScorer",
            "_class_name": "LLMAsAJudgeScorer",
            "_bases": ["Scorer", "Object", "BaseModel"],
            "name": "judge",
            "model": await trace.publish("judging", described(response_format="json_object")),
            "scoring_prompt": "{output}",
        }
        scorers = [await trace.publish("judge", judge), await trace.scorer("ExactMatchScorer")]
        job = await evaluated(services, await exam(trace, 3, scorers=scorers), "echo")
        assert job.state == "succeeded" and job.result is not None, job.error
        assert job.result["summary"]["ExactMatchScorer"]["exact_match"]["true_count"] == 3
        assert "judge" not in job.result["summary"]
        assert job.result["unscored"].keys() == {"judge"}
        assert job.result["unscored"]["judge"]["answers"] == 3
        assert reason in job.result["unscored"]["judge"]["reason"]
        told = await trace.post("/evaluations/status", project_id=PROJECT, call_id=job.id)
        assert told["status"]["unscored"] == job.result["unscored"]
        found = await trace.post("/feedback/query", project_id=PROJECT)
        given = {"wandb.runnable.ExactMatchScorer"} | ({"wandb.runnable.judge"} if "verdict" in text else set())
        assert {row["feedback_type"] for row in found["result"]} == given

    with_services(tmp_path, test, Says(text))


def test_means_of_the_largest_scores_are_numbers() -> None:
    summary, total = Summary(["s"]), Total()
    stats = EvalResultsScorerStats("s")
    for _ in range(3):
        summary.add("x", {"s": 1.5e308}, None)
        total.add(1.5e308)
        stats.add(1.5e308)
    total.add(HUGE)
    assert summary.result() == {"s": {"mean": 1.5e308}}
    assert total.summary == {"mean": pytest.approx(1.5e308 / 4 * 3 + sys.float_info.max / 4)}
    assert stats.numeric_mean == pytest.approx(1.5e308)
    assert number_of({"a": 1.5e308, "b": 1.5e308}) == 1.5e308
    assert mean([sys.float_info.max] * 3) == sys.float_info.max


def test_integers_beyond_floats_are_no_scores() -> None:
    assert number_of({"a": HUGE, "b": -HUGE, "c": 0.5}) == 0.5
    summary = Summary(["s"])
    summary.add(HUGE, {"s": {"a": HUGE, "b": 2}}, None)
    assert summary.result() == {"s": {"b": {"mean": 2.0}}}


def test_places_do_not_come_to_more_than_memory_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LONGEST_TEXT", 100)
    values = {"row": "x" * 30}
    message = {"role": "user", "content": "{row}"}
    assert len(objects.fill_template([message] * 3, values)) == 3
    for bomb in ("{row}" * 4, [message] * 4, "{row:>99}{row:>99}"):
        with pytest.raises(InvalidRequest, match="exceeds 100 characters"):
            objects.fill_template(bomb, values)


def test_a_template_holds_messages(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        ref = await trace.publish("odd", described(response_format="text", messages_template=["x", 5]))
        job = await evaluated(services, await exam(trace, 1), ref)
        assert job.state == "failed" and "messages_template without messages" in str(job.error)

    with_services(tmp_path, test, Echo())


def test_a_run_in_which_everything_failed_is_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers that are missing are those rows' own matter, however many lie side by side."""
    monkeypatch.setattr(predictions, "PATIENCE_SECONDS", 0.0)

    class Refusing(Echo):
        async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
            raise InvalidRequest("too long")

    async def test(services: Services, trace: Trace) -> None:
        evaluation = await exam(trace, 60)
        first = await evaluated(services, evaluation, "echo")
        assert first.state == "succeeded" and first.result is not None and first.result["failed"] == 60
        scorers = [await trace.scorer("ContainsScorer")]
        again = await services.evaluations.rescore(LOCAL, PROJECT, first.id, scorers)
        job = await services.jobs.wait(PROJECT, again)
        assert job.state == "succeeded" and job.result is not None, job.error
        assert (job.result["cases"], job.result["failed"]) == (60, 60)

    with_services(tmp_path, test, Refusing())
