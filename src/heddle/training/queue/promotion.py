"""Safe promotion: a new step becomes the latest policy only if an evaluation does not fall (ours, opt-in)."""

from typing import Annotated

from pydantic import ConfigDict, Field, FiniteFloat

from heddle.auth import Caller, Scope
from heddle.http import RequestModel
from heddle.store.control.jobs import JobRow
from heddle.store.control.training import ModelRow
from heddle.training.hooks import Verdict
from heddle.wire.evaluations import Evaluator, Sampling, Scored
from heddle.wire.jsontypes import Json


class PromotionRequest(RequestModel):
    """`promotion` of a training job; an unknown key is refused, as it would promote by another rule."""

    model_config = ConfigDict(strict=True, extra="forbid")

    evaluation: Annotated[str, Field(min_length=1)]
    """`weave:///entity/project/object/name:version` of an Evaluation."""
    minimum_gain: FiniteFloat = 0.0
    """The new score must reach the old one plus this."""
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] = 0.0
    max_tokens: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Of an answer; null is `usual_answer`."""


def usual_answer(max_model_len: int) -> int:
    """Tokens of an answer where a rule does not say: a policy that went wrong may never end one by itself."""
    return max(1, min(1024, max_model_len // 4))


class Promotion:
    """A PromotionJudge that lets both policies answer an evaluation of the trace service."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    async def check(self, request: PromotionRequest | None, caller: Caller) -> Json | None:
        """What the job keeps: the request with its evaluation pinned to a digest, and how far the caller's key reaches.

        Raises HeddleError with what is wrong with the evaluation, before the job is queued.
        """
        if request is None:
            return None
        pinned = await self._evaluator.check(request.evaluation, caller)
        reach = {"entity": caller.entity, "project": caller.project}
        return {**request.model_dump(), "evaluation": pinned, "reach": reach}

    async def judge(self, model: ModelRow, job: JobRow, candidate: int, latest: int) -> Verdict:
        """Whether the candidate's score reaches the latest one's; raises HeddleError when it cannot be found out."""
        rule = job.config["promotion"]
        old = await self._score(model, job, rule, latest)
        new = await self._score(model, job, rule, candidate)
        promote = new.score >= old.score + rule["minimum_gain"]
        data = {
            "promotion/score_old": old.score,
            "promotion/score_new": new.score,
            "promotion/failed_old": float(old.failed),
            "promotion/failed_new": float(new.failed),
            "promotion/rows": float(new.rows),
            "promotion/promoted": float(promote),
        }
        return Verdict(promote, data)

    async def _score(self, model: ModelRow, job: JobRow, rule: Json, step: int) -> Scored:
        # The key may be revoked by now; what the job was given when it came in still holds, and reaches no further.
        author = Caller(job.created_by, frozenset((Scope.READ, Scope.WRITE)), **rule["reach"])
        address = f"wandb-artifact:///{model.entity}/{model.project}/{model.name}:step{step}"
        return await self._evaluator.run(
            rule["evaluation"],
            address,
            author,
            model.project_id,
            sampling=Sampling(rule["temperature"], rule["max_tokens"]),
            run_id=f"{job.id}/{step}",
            label=f"{model.name} step {step}",
        )
