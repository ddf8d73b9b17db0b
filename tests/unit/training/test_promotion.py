"""When a new step becomes the latest policy, and how a job is shown as a call."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from pydantic import ValidationError

from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import InvalidRequest, Unavailable
from heddle.settings import Settings
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
from heddle.store.control.training import JobRow
from heddle.store.control.training_models import ModelRow
from heddle.trace.records import TraceRecords
from heddle.training.queue.publish import Promotion
from heddle.training.schemas.requests import PromotionRequest
from heddle.training.service import Training
from heddle.wire.keys import Authority
from heddle.wire.training import Sampling, Scored, call_id_of
from tests.support.inprocess import Trace, running_services

MODEL = ModelRow("m1", "team", "proj", "agent", "tiny", None, {"rank": 8}, 1, "ann")
REF = "weave:///team/proj/object/check:abc"
ANN = Caller("ann", (Grant.parse("editor:team/proj"),))
RULE = {"evaluation": REF, "minimum_gain": 0.0, "temperature": 0.0, "max_tokens": 7, "caller": ANN.to_json()}
JOB = JobRow(
    id="j1",
    model_id="m1",
    kind="rl",
    config={"settings": {"learning_rate": 1e-3}, "promotion": RULE, "source": None},
    payload="blob",
    created_at=10,
    created_by="ann",
)


class Scores:
    """An evaluator that knows the score of each step."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.asked: list[tuple[Any, ...]] = []

    async def check(self, ref: str, _caller: Any) -> str:
        """Pin `latest`; everything else is no evaluation."""
        if not ref.endswith(":latest"):
            raise InvalidRequest("no Evaluation")
        return REF

    async def run(
        self, ref: str, model: str, caller: Any, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """The score of the step in the address."""
        self.asked.append((ref, model, caller, project, sampling, run_id, label))
        step = int(model.rpartition(":step")[2])
        if step >= len(self.scores):
            raise Unavailable("The engine failed")
        return Scored(self.scores[step], 10, step, {}, "call")


@pytest.mark.parametrize(
    ("old", "new", "gain", "promoted"),
    [
        (0.5, 0.6, 0.0, True),
        (0.5, 0.5, 0.0, True),
        (0.5, 0.49, 0.0, False),
        (0.5, 0.49, -0.02, True),
        (0.5, 0.55, 0.1, False),
    ],
)
def test_the_score_decides(old: float, new: float, gain: float, promoted: bool) -> None:
    scores = Scores(old, new)
    job = replace(JOB, config={**JOB.config, "promotion": {**RULE, "minimum_gain": gain}})
    verdict = asyncio.run(Promotion(scores).judge(MODEL, job, 1, 0))
    assert verdict.promote is promoted
    assert verdict.data == {
        "promotion/score_old": old,
        "promotion/score_new": new,
        "promotion/failed_old": 0.0,
        "promotion/failed_new": 1.0,
        "promotion/rows": 10.0,
        "promotion/promoted": float(promoted),
    }
    address = "wandb-artifact:///team/proj/agent:step1"
    assert (REF, address, ANN, "team/proj", Sampling(0.0, 7), "j1/1", "agent step 1") in scores.asked


def test_a_run_that_fails_is_no_verdict() -> None:
    with pytest.raises(Unavailable):
        asyncio.run(Promotion(Scores(0.5)).judge(MODEL, JOB, 1, 0))


def test_the_evaluation_is_checked_and_pinned_when_the_job_comes_in() -> None:
    promotion = Promotion(Scores())
    asked = PromotionRequest(evaluation="weave:///team/proj/object/check:latest", max_tokens=7)
    assert asyncio.run(promotion.check(asked, ANN)) == RULE
    assert asyncio.run(promotion.check(None, LOCAL)) is None
    with pytest.raises(InvalidRequest, match="no Evaluation"):
        asyncio.run(promotion.check(PromotionRequest(evaluation="weave:///team/proj/object/other:v0"), LOCAL))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"evaluation": ""},
        {"evaluation": REF, "minimum_gain": float("nan")},
        {"evaluation": REF, "gain": 1},
        {"evaluation": REF, "temperature": -1},
        {"evaluation": REF, "max_tokens": 0},
    ],
)
def test_a_bad_promotion_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PromotionRequest.model_validate(fields)


ENDS = {
    SUCCEEDED: (replace(JOB, state=SUCCEEDED, step=3, parent_step=2, metrics={"loss": 0.5}), None),
    FAILED: (replace(JOB, state=FAILED, error="group 0: too many tokens"), "group 0: too many tokens"),
    CANCELLED: (replace(JOB, state=CANCELLED, error="cancelled"), "cancelled"),
}


@pytest.mark.parametrize("state", ENDS)
def test_a_job_is_one_call_of_its_project(tmp_path: Path, state: str) -> None:
    job, exception = ENDS[state]
    job = replace(job, started_at=2_000_000, ended_at=5_000_000)

    async def test() -> None:
        async with running_services(tmp_path / "data") as (services, client):
            for _ in range(2):
                await TraceRecords(services.settings, services.store).ended(MODEL, job)
            (call,) = await Trace(client, MODEL.project_id).calls()
        assert call["id"] == call["trace_id"] == call_id_of("j1") and call["op_name"] == "heddle.training_job"
        assert (call["exception"], call["wb_user_id"]) == (exception, "ann")
        assert (call["started_at"], call["ended_at"]) == ("1970-01-01T00:00:02.000000Z", "1970-01-01T00:00:05.000000Z")
        assert call["attributes"]["job_id"] == "j1"
        assert call["inputs"]["model"] == "wandb-artifact:///team/proj/agent"
        assert call["inputs"]["settings"] == {"learning_rate": 1e-3} and call["inputs"]["promotion"] == RULE
        assert call["output"]["state"] == state and call["output"]["step"] == job.step
        if state == SUCCEEDED:
            assert call["output"]["metrics"] == {"loss": 0.5}
            assert call["output"]["policy"] == "wandb-artifact:///team/proj/agent:step3"

    asyncio.run(test())


def test_what_only_looks_like_a_ref_is_stored_as_text(tmp_path: Path) -> None:
    odd = "weave:///no"
    job = replace(
        JOB, state=FAILED, error=odd, config={"source": {"reward": {"path": odd}, "x": "weave-trace-internal:///"}}
    )

    async def test() -> None:
        async with running_services(tmp_path / "data") as (services, client):
            await TraceRecords(services.settings, services.store).ended(MODEL, job)
            (call,) = await Trace(client, MODEL.project_id).calls()
        assert call["inputs"]["source"]["reward"]["path"] == odd and call["output"]["error"] == odd

    asyncio.run(test())


def test_a_job_keeps_what_its_key_allowed() -> None:
    ann = Caller("ann", (Grant.parse("editor:team"), Grant.parse("viewer:other/x")), key_id="k")
    training = Mock(models=Mock(ending=set()), settings=Settings())
    training._tinker.is_run, training._jobs.add = AsyncMock(return_value=False), AsyncMock()
    row = asyncio.run(Training._add_job(training, Mock(id="m1"), "rl", JOB.config, "payload", ann))
    assert row.authority == ann.authority == Authority("k", ann.grants)
    assert asyncio.run(Training._add_job(training, Mock(id="m1"), "rl", JOB.config, "payload", LOCAL)).authority is None
