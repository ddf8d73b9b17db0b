"""Scores of what is stored already: of calls, and of the answers of an earlier run."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from heddle.auth import Caller, Scope
from heddle.errors import HeddleError, InvalidRequest, NotFound
from heddle.evals.jobs import JobCancelled, JobRun, Jobs
from heddle.evals.objects import CLASS_NAME, ObjectReader, find_calls, is_ref
from heddle.evals.predictions import Asker, Case, Score, StoredAnswer, score_output
from heddle.evals.run import SCORER, derived_id, end_of, score_feedback
from heddle.evals.scorers import CannotRun, Scorer, read_scorers, read_usable_scorers
from heddle.jobs.runner import TaskGroup
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.wire import refs
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.records import Call, CallStart, NewFeedback, Records
from heddle.wire.trials import EVALUATE, TRIAL_OPS

SCORE_CALLS = "score_calls"
PART = 100
_COLUMNS = ["id", "inputs", "output", "exception", "ended_at"]
_RUN_COLUMNS = ["id", "op_name", "inputs", "output", "exception", "ended_at"]


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run that was stored."""

    id: str
    evaluation: str
    model: str
    ended: bool

    @property
    def predict_op(self) -> str:
        """The name of the op that its answers are shown as."""
        return f"{CLASS_NAME}.predict" if is_ref(self.model) else "Model.predict"


async def read_source(records: Records, caller: Caller, project: str, run_id: str) -> SourceRun | None:
    """The run with an id; None when there is none, or the call is no evaluation."""
    call = (await find_calls(records, caller, project, [run_id], _RUN_COLUMNS)).get(run_id)
    if call is None or EVALUATE not in call.operation:
        return None
    evaluation, model = call.inputs.get("self") or call.inputs.get("this"), call.inputs.get("model")
    return SourceRun(run_id, _text(evaluation), _text(model), call.ended_at is not None)


async def read_cases(records: Records, caller: Caller, project: str, source: SourceRun) -> AsyncIterator[Case]:
    """The rows of a run with their answers, in the order of their calls; raises InvalidRequest for a deleted run."""
    children = records.read_calls(caller, project, filter={"parent_ids": [source.id]}, columns=_RUN_COLUMNS)
    async for calls in children:
        rows = [call for call in calls if call.operation in TRIAL_OPS and call.ended_at]
        values = await resolve_refs(records, caller, [call.inputs.get("example") for call in rows])
        for call, value in zip(rows, values, strict=True):
            row = value if isinstance(value, dict) else {}
            yield Case(call.id, call.inputs.get("example"), row, 0, _stored_answer(call))
    if await read_source(records, caller, project, source.id) is None:
        raise InvalidRequest(f"The evaluation run {source.id[:100]!r} was deleted")


async def resolve_refs(records: Records, caller: Caller, values: Sequence[Any]) -> list[Any]:
    """The values, with what refs among them point to; a ref that leads nowhere stays as it is."""
    wanted = list(dict.fromkeys(value for value in values if is_ref(value)))
    try:
        known = dict(zip(wanted, await records.read_refs(caller, wanted), strict=True)) if wanted else {}
    except HeddleError:
        known = {ref: await _read_or_keep(records, caller, ref) for ref in wanted}
    return [known[value] if is_ref(value) else value for value in values]


async def _read_or_keep(records: Records, caller: Caller, ref: str) -> Any:
    try:
        return (await records.read_refs(caller, [ref]))[0]
    except HeddleError:
        return ref


def _stored_answer(call: Call) -> StoredAnswer:
    """The answer of a row as the SDKs store it: `output`, or `model_output` (TypeScript, old versions)."""
    output = call.output if isinstance(call.output, dict) else {}
    said = output["output"] if "output" in output else output.get("model_output")
    latency = output.get("model_latency")
    latency = latency.get("mean") if isinstance(latency, dict) else latency
    is_number = isinstance(latency, int | float) and not isinstance(latency, bool) and 0 <= latency < 10**7
    problem = None
    if said is None:
        problem = str(call.exception or "The run that is scored again has no answer for this row")
    return StoredAnswer(said, float(latency) if is_number and latency is not None else 0.0, problem)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class ScoreCallsSpec:
    """What a job scores, and by what; without `traced` there is feedback but no call of the scorer.

    With `failed` calls that failed are scored, too: their exception as the output.
    """

    call_ids: list[str]
    scorer_refs: list[str]
    trigger_ref: str | None
    traced: bool
    failed: bool = False


class Scoring:
    """Submits and does the scoring of calls; `parallel` calls are worked on at the same time."""

    def __init__(self, store: Store, records: Records, completions: Completions, jobs: Jobs, parallel: int) -> None:
        self._store = store
        self._records = records
        self._completions = completions
        self._jobs = jobs
        self._parallel = parallel

    def register(self) -> None:
        """Offer the jobs."""
        self._jobs.register(SCORE_CALLS, self._score_calls)

    async def submit(
        self,
        caller: Caller,
        project_id: str,
        call_ids: Sequence[str],
        scorer_refs: Sequence[str],
        trigger_ref: str | None = None,
        *,
        traced: bool = True,
        failed: bool = False,
        job_id: str | None = None,
    ) -> JobRow:
        """Queue the scoring of calls by every scorer; unknown, running and, without `failed`, failed ones are left out.

        `trigger_ref` is the ref of what caused it (a monitor) and stands in the feedback; the same object scores a call
        once, so a call that ended anew is scored anew in place. Without `traced` there is feedback but no call of the
        scorer. The same `job_id` again is the same job. Raises CannotRun with the scorers that do not run here.
        """
        scorers = await read_scorers(ObjectReader(self._store, caller), scorer_refs)
        pinned = [scorer.ref for scorer in scorers]
        spec = ScoreCallsSpec(list(dict.fromkeys(call_ids)), pinned, trigger_ref, traced, failed)
        return await self._queue(caller, project_id, spec, job_id)

    async def submit_pinned(
        self, caller: Caller, project_id: str, call_ids: Sequence[str], scorer_refs: Sequence[str], job_id: str
    ) -> JobRow:
        """The same by scorers that were read before; the job says which are gone, or run here no more."""
        spec = ScoreCallsSpec(list(dict.fromkeys(call_ids)), list(scorer_refs), None, True)
        return await self._queue(caller, project_id, spec, job_id)

    async def _queue(self, caller: Caller, project_id: str, spec: ScoreCallsSpec, job_id: str | None) -> JobRow:
        return await self._jobs.submit(SCORE_CALLS, caller, project_id, asdict(spec), job_id=job_id)

    async def preview(self, caller: Caller, project_id: str, call_ids: Sequence[str], scorer: Json) -> list[Json]:
        """What a scorer that is not stored says of calls, in their order; nothing is stored. Raises CannotRun."""
        caller = caller.require(Scope.WRITE)
        scorers = await read_scorers(ObjectReader(self._store, caller), [scorer])
        ask, free = Asker(self._completions, caller, project_id), asyncio.Semaphore(self._parallel)
        found = await find_calls(self._records, caller, project_id, call_ids, _COLUMNS)

        async def score(call_id: str) -> Json:
            call = found.get(call_id)
            if call is None or call.ended_at is None:
                return {"call_id": call_id, "score": None, "problem": "No ended call with this id"}
            async with free:
                columns = {key: value for key, value in call.inputs.items() if key != "self"}
                values = await resolve_refs(self._records, caller, list(columns.values()))
                row = dict(zip(columns, values, strict=True))
                [given] = await score_output(call.exception or call.output, row, scorers, ask)
            problem = None if given.problem is None else given.problem.reason
            return {"call_id": call_id, "score": given.value, "problem": problem}

        return list(await asyncio.gather(*map(score, dict.fromkeys(call_ids))))

    async def _score_calls(self, job: JobRow, run: JobRun) -> Json:
        spec, reader = ScoreCallsSpec(**job.body), ObjectReader(self._store, run.caller)
        scorers, refused = await read_usable_scorers(reader, spec.scorer_refs)
        if not scorers:
            raise CannotRun(f"There are scorers that cannot be run here: {'; '.join(refused)}")
        names = dict.fromkeys(scorer.op_name for scorer in scorers)
        ops = {name: (await self._records.placeholder_op(run.caller, job.project_id, name)).ref for name in names}
        ask = Asker(self._completions, run.caller, job.project_id)
        scoring = _ScoringRun(self._records, run.caller, job, spec, scorers, refused, ops, ask, self._parallel)
        reported = time.monotonic()
        for start in range(0, len(spec.call_ids), PART):
            await _require_trigger(reader, spec)
            await scoring.score_part(spec.call_ids[start : start + PART])
            if time.monotonic() - reported > 1.0:
                reported = time.monotonic()
                await run.progress({"calls": len(spec.call_ids), **scoring.figures})
        await run.progress({"calls": len(spec.call_ids), **scoring.figures})
        return scoring.figures


async def _require_trigger(reader: ObjectReader, spec: ScoreCallsSpec) -> None:
    """Raise JobCancelled where the monitor that caused the job was deleted or switched off."""
    if not spec.trigger_ref:
        return
    name = spec.trigger_ref.rpartition(":")[0]
    try:
        monitor = await reader.read(f"{name}:latest", "The monitor")
    except NotFound:
        raise JobCancelled(f"The monitor {name.rpartition('/')[2]} was deleted") from None
    if monitor.value.get("active") is not True:
        raise JobCancelled(f"The monitor {monitor.target.name} was switched off")


@dataclass(slots=True)
class _ScoringRun:
    """The scoring of one job."""

    records: Records
    caller: Caller
    job: JobRow
    spec: ScoreCallsSpec
    scorers: Sequence[Scorer]
    refused: Sequence[str]
    """Why each of the other scorers is not applied."""
    ops: dict[str, str]
    ask: Asker
    parallel: int
    counts: dict[str, int] = field(default_factory=lambda: {"scored": 0, "skipped": 0, "failed": 0})
    reason: str | None = None
    """Why the first of those that failed did."""

    @property
    def figures(self) -> Json:
        """What the job tells."""
        told = {"reason": self.reason, "refused_scorers": self.refused}
        return {**self.counts, **{name: value for name, value in told.items() if value}}

    async def score_part(self, call_ids: Sequence[str]) -> None:
        """Score some calls, all but those whose scores are stored."""
        found = await self._read(call_ids)
        usable = [call for call in found if call.ended_at is not None and (self.spec.failed or not call.exception)]
        stored = {call.id for call in await self._read([self._id(call, self.scorers[0]) for call in usable])}
        left = [call for call in usable if self._id(call, self.scorers[0]) not in stored]
        self.counts["skipped"] += len(call_ids) - len(usable)
        self.counts["scored"] += len(usable) - len(left)
        async with TaskGroup(self.parallel) as group:
            for call in left:
                group.add(self._score, call)

    async def _read(self, call_ids: Sequence[str]) -> list[Call]:
        found = await find_calls(self.records, self.caller, self.job.project_id, call_ids, _COLUMNS)
        return list(found.values())

    async def _score(self, call: Call) -> None:
        columns = {key: value for key, value in call.inputs.items() if key != "self"}
        values = await resolve_refs(self.records, self.caller, list(columns.values()))
        output = call.exception or call.output
        scores = await score_output(output, dict(zip(columns, values, strict=True)), self.scorers, self.ask)
        feedback = [self._feedback(call, score) for score in scores if score.problem is None]
        if feedback:
            await self.records.add_feedback(self.caller, self.job.project_id, feedback)
        if self.spec.traced:
            starts = [self._start(call, score, columns) for score in scores]
            ends = [
                end_of(start.id, score.ended_at, score.value, score.problem, score.usage)
                for start, score in zip(starts, scores, strict=True)
            ]
            await self.records.write_calls(self.caller, self.job.project_id, starts, ends)
        problem = next((score.problem for score in scores if score.problem is not None), None)
        self.counts["scored" if problem is None else "failed"] += 1
        if problem is not None and self.reason is None:
            self.reason = problem.reason

    def _start(self, call: Call, score: Score, columns: Json) -> CallStart:
        call_id = self._id(call, score.scorer)
        return CallStart(
            id=call_id,
            trace_id=call_id,
            op_name=self.ops[score.scorer.op_name],
            started_at=score.started_at,
            attributes=SCORER,
            inputs={
                **score.scorer.arguments(columns),
                "self": score.scorer.ref,
                "output": call.exception or call.output,
            },
        )

    def _feedback(self, call: Call, score: Score) -> NewFeedback:
        project, score_id = refs.internal_project(self.job.project_id), self._id(call, score.scorer)
        trigger = self.spec.trigger_ref or None
        seed = f"{trigger.rpartition(':')[0]}/{call.id}/{score.scorer.name}" if trigger else score_id
        return score_feedback(score, project, call.id, score_id if self.spec.traced else None, seed, trigger)

    def _id(self, call: Call, scorer: Scorer) -> str:
        return derived_id(f"{self.job.id}/{call.id}/score/{scorer.name}")
