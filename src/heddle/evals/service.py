"""Evaluations of the trace service, run in the server for chat models that it serves."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from heddle.auth import Caller
from heddle.errors import HeddleError
from heddle.evals.evaluate import Model, Prediction, evaluate
from heddle.evals.plan import Plan, PlanReader
from heddle.evals.summary import summarise
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.evaluations import Sampling, Scored
from heddle.wire.inference import Chat, CompletionSink, InferenceCall

Json = dict[str, Any]
_NAMES = uuid.UUID("5b1f4a50-6a0e-5f0b-8d6c-2e1d4c7b9a63")
"""What the ids of the calls of a run are derived under."""
_SHOWN = {"_weave_eval_meta": {"declarative": True}}


class Evaluations:
    """An Evaluator over the stored evaluations, the chat service and the trace."""

    def __init__(self, store: Store, chat: Chat, calls: CompletionSink) -> None:
        self._store = store
        self._chat = chat
        self._calls = calls

    async def check(self, ref: str, caller: Caller) -> str:
        """The ref with its version as a digest; raises HeddleError for what cannot be read or run."""
        return refs.to_external((await PlanReader(self._store, caller).read(ref)).ref)

    async def run(
        self, ref: str, model: str, caller: Caller, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """Answer and score every row; raises HeddleError when the evaluation cannot be run."""
        plan = await PlanReader(self._store, caller).read(ref)
        shown = _Run(self._calls, plan, model, caller, project, run_id, label)
        asked = Model(self._chat, model, caller, project, sampling)
        summary: Json = {}
        problem: str | None = "The run was stopped"
        try:
            scored = _scored(plan, await evaluate(plan, asked, shown.predicted), shown.id)
            summary, problem = scored.summary, None
        except HeddleError as error:
            problem = error.reason
            raise
        finally:
            await shown.ended(summary, problem)
        return scored


class _Run:
    """Shows one run as the SDKs show theirs: a root call, and one call for each row and trial."""

    def __init__(
        self, calls: CompletionSink, plan: Plan, model: str, caller: Caller, project: str, run_id: str, label: str
    ) -> None:
        self.id = _id(run_id)
        self._calls = calls
        self._ref, self._name = plan.ref, label
        self._model = model
        self._caller = caller
        self._project = project
        self._started_at = datetime.now(UTC)

    async def predicted(self, prediction: Prediction) -> None:
        """Store the call of one row and trial."""
        output = {"output": prediction.output, "scores": prediction.scores, "model_latency": prediction.seconds}
        await self._calls.store(
            InferenceCall(
                caller=self._caller,
                project=self._project,
                op_name="Evaluation.predict_and_score",
                id=_id(f"{self.id}/{prediction.place}/{prediction.trial}"),
                trace_id=self.id,
                parent_id=self.id,
                started_at=prediction.started_at,
                ended_at=prediction.started_at + timedelta(seconds=prediction.seconds),
                inputs={"self": self._ref, "model": self._model, "example": prediction.row.example},
                output=output,
                exception=prediction.exception,
                attributes=_SHOWN,
                usage={self._model: {"requests": 1, **_counts(prediction.usage)}} if prediction.usage else {},
            )
        )

    async def ended(self, summary: Json, problem: str | None) -> None:
        """Store the root call."""
        await self._calls.store(
            InferenceCall(
                caller=self._caller,
                project=self._project,
                op_name="Evaluation.evaluate",
                id=self.id,
                trace_id=self.id,
                started_at=self._started_at,
                ended_at=datetime.now(UTC),
                inputs={"self": self._ref, "model": self._model},
                output=summary if problem is None else None,
                exception=problem,
                attributes=_SHOWN,
                display_name=self._name,
            )
        )


def _scored(plan: Plan, predictions: list[Prediction], call_id: str) -> Scored:
    means = [prediction.mean(len(plan.scorers)) for prediction in predictions]
    summary = summarise([prediction.scores for prediction in predictions], [item.seconds for item in predictions])
    failed = sum(prediction.exception is not None for prediction in predictions)
    return Scored(sum(means) / len(means), len(plan.rows), failed, summary, call_id)


def _counts(usage: Json | None) -> Json:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: usage[name] for name in names if isinstance(usage.get(name), int)} if usage else {}


def _id(name: str) -> str:
    return str(uuid.uuid5(_NAMES, name))
