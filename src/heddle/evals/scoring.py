"""Scores of calls that are stored already: durable jobs, a part of the calls at a time."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.auth import Caller
from heddle.evals.jobs.run import JobRun
from heddle.evals.jobs.service import Jobs
from heddle.evals.objects import ObjectReader
from heddle.evals.rescore import resolved
from heddle.evals.running.asking import Asker
from heddle.evals.running.calls import SCORER, derived_id, feedback_of, outcome, score_op
from heddle.evals.running.prediction import Score, scored
from heddle.evals.scorers.base import Scorer
from heddle.evals.scorers.read import read_scorers
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.wire import ids, refs, times
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

SCORE_CALLS = "score_calls"
PART = 100
_COLUMNS = ["id", "inputs", "output", "exception", "ended_at"]


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
        job_id: str | None = None,
    ) -> JobRow:
        """Queue the scoring of calls by every scorer; unknown, running and failed calls are left out then.

        `trigger_ref` is the ref of what caused it (a monitor) and stands in the feedback; the same object scores a call
        once, so a call that ended anew is scored anew in place. Without `traced` there is feedback but no call of the
        scorer. The same `job_id` again is the same job. Raises CannotRun with the scorers that do not run here.
        """
        scorers = await read_scorers(ObjectReader(self._store, caller), scorer_refs, "There are")
        body = {
            "call_ids": list(dict.fromkeys(call_ids)),
            "scorer_refs": [scorer.ref for scorer in scorers],
            "trigger_ref": trigger_ref,
            "traced": traced,
        }
        return await self._jobs.submit(SCORE_CALLS, caller, project_id, body, job_id=job_id or ids.uuid7())

    async def _score_calls(self, job: JobRow, run: JobRun) -> Json:
        scorers = await read_scorers(ObjectReader(self._store, run.caller), job.body["scorer_refs"], "There are")
        ops = {}
        for scorer in scorers:
            name = f"{scorer.class_name}.score"
            ops[name] = (await self._records.placeholder_op(run.caller, job.project_id, name)).ref
        ask = Asker(self._completions, run.caller, job.project_id)
        work = _Work(self._records, run.caller, job, scorers, ops, ask, asyncio.Semaphore(self._parallel))
        call_ids, told = job.body["call_ids"], time.monotonic()
        for start in range(0, len(call_ids), PART):
            await work.part(call_ids[start : start + PART])
            if time.monotonic() - told > 1.0:
                told = time.monotonic()
                await run.progress({"calls": len(call_ids), **work.counts})
        await run.progress({"calls": len(call_ids), **work.counts})
        return dict(work.counts)


@dataclass(slots=True)
class _Work:
    """The scoring of one job."""

    records: Records
    caller: Caller
    job: JobRow
    scorers: Sequence[Scorer]
    ops: dict[str, str]
    ask: Asker
    free: asyncio.Semaphore
    counts: dict[str, int] = field(default_factory=lambda: {"scored": 0, "skipped": 0, "failed": 0})

    async def part(self, call_ids: Sequence[str]) -> None:
        """Score some calls, all but those whose scores are stored."""
        found = await self._read(call_ids)
        usable = [call for call in found if call.get("ended_at") is not None and not call.get("exception")]
        stored = {call["id"] for call in await self._read([self._id(call, self.scorers[0]) for call in usable])}
        left = [call for call in usable if self._id(call, self.scorers[0]) not in stored]
        self.counts["skipped"] += len(call_ids) - len(usable)
        self.counts["scored"] += len(usable) - len(left)
        async with asyncio.TaskGroup() as group:
            for call in left:
                group.create_task(self._call(call))

    async def _read(self, call_ids: Sequence[str]) -> list[Json]:
        if not call_ids:
            return []
        chosen = {"call_ids": list(call_ids)}
        slices = self.records.read_calls(self.caller, self.job.project_id, filter=chosen, columns=_COLUMNS)
        return [call async for calls in slices for call in calls]

    async def _call(self, call: Json) -> None:
        async with self.free:
            columns = {key: value for key, value in call["inputs"].items() if key != "self"}
            values = await resolved(self.records, self.caller, list(columns.values()))
            scores = await scored(call["output"], dict(zip(columns, values, strict=True)), self.scorers, self.ask)
            feedback = [self._feedback(call, score) for score in scores if score.problem is None]
            if feedback:
                await self.records.add_feedback(self.caller, self.job.project_id, feedback)
            if self.job.body["traced"]:
                calls = [self._scored(call, score, columns) for score in scores]
                await self.records.complete_calls(self.caller, self.job.project_id, calls)
            self.counts["failed" if len(feedback) < len(scores) else "scored"] += 1

    def _scored(self, call: Json, score: Score, columns: Json) -> Json:
        call_id = self._id(call, score.scorer)
        made: Json = {
            "id": call_id,
            "trace_id": call_id,
            "op_name": self.ops[score_op(score)],
            "started_at": times.to_iso(score.started_at),
            "ended_at": times.to_iso(score.ended_at),
            "attributes": SCORER,
            "inputs": {**score.scorer.arguments(columns), "self": score.scorer.ref, "output": call["output"]},
        }
        return made | outcome(score.value, score.problem, score.usage)

    def _feedback(self, call: Json, score: Score) -> Json:
        project, score_id = refs.internal_project(self.job.project_id), self._id(call, score.scorer)
        trigger = self.job.body["trigger_ref"]
        seed = f"{trigger.rpartition(':')[0]}/{call['id']}/{score.scorer.name}" if trigger else score_id
        row = feedback_of(score, project, call["id"], score_id, seed)
        if not self.job.body["traced"]:
            row.pop("call_ref")
        return {**row, "trigger_ref": trigger} if trigger else row

    def _id(self, call: Json, scorer: Scorer) -> str:
        return derived_id(f"{self.job.id}/{call['id']}/score/{scorer.name}")
