"""Evaluations of the trace service, run in the server: at once for training, as durable jobs for everybody else."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.jobs.run import JobRun
from heddle.evals.jobs.service import Jobs
from heddle.evals.model import ChatModel, Model, read_model
from heddle.evals.objects import ObjectReader, is_ref
from heddle.evals.plan import Plan, PlanReader, check_rows
from heddle.evals.rescore import Source, cases_of, read_source
from heddle.evals.running.asking import Asker
from heddle.evals.running.calls import META, WORKER, Root, derived_id
from heddle.evals.running.prediction import Asking, Case, Repeating
from heddle.evals.running.run import EvaluationRun, Report, fail
from heddle.evals.scorers.read import CannotRun, read_scorers
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.wire import ids, refs, times
from heddle.wire.evaluations import Sampling, Scored
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

EVALUATE_MODEL, RESCORE = "evaluate_model", "rescore"
PATIENCE = 50
"""So many rows in a row may fail for reasons that are not their own before a job fails."""


class Evaluations:
    """An Evaluator over the stored evaluations, the completions and the trace, and the jobs of the evaluation routes.

    `parallel` is how many rows of one run are worked on at the same time.
    """

    def __init__(self, store: Store, records: Records, completions: Completions, jobs: Jobs, parallel: int) -> None:
        self._store = store
        self._records = records
        self._completions = completions
        self._jobs = jobs
        self._parallel = parallel

    def register(self) -> None:
        """Offer the jobs of these routes."""
        self._jobs.register(EVALUATE_MODEL, self._evaluate_model, self._close_evaluation)
        self._jobs.register(RESCORE, self._rescore, self._close_rescoring)

    async def check(self, ref: str, caller: Caller) -> str:
        """The ref with its version as a digest; raises HeddleError for what cannot be read or run."""
        plan = await PlanReader(self._store, caller).read(ref)
        await check_rows(plan, ChatModel(""))
        return refs.to_external(plan.ref)

    async def run(
        self, ref: str, model: str, caller: Caller, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """Answer and score every row; raises HeddleError when the evaluation cannot be run."""
        plan, asked = await PlanReader(self._store, caller).read(ref), ChatModel(model, sampling)
        root = Root(derived_id(run_id), project, times.now(), plan.ref, model, label)
        problem: str | None = "The run was stopped"
        try:
            result = await self._planned(plan, asked, caller, root, patience=1).execute()
            problem = None
        except HeddleError as error:
            problem = error.reason
            raise
        finally:
            if problem is not None:
                await asyncio.shield(fail(self._records, caller, root, problem))
        return Scored(result.score, plan.dataset.count, result.failed, result.summary, root.id)

    async def evaluate_model(self, caller: Caller, project: str, evaluation: str, model: str) -> str:
        """Queue the evaluation of a model and show it as running; returns the id of its call.

        Raises CannotRun for scorers that do not run here; whatever else is wrong fails the call.
        """
        reader = ObjectReader(self._store, caller)
        try:
            evaluation = (await PlanReader(self._store, caller).read(evaluation)).ref
            model = (await read_model(reader, model)).ref
        except CannotRun:
            raise
        except HeddleError:
            # The job meets it as well, and says so in the call.
            evaluation, model = await _pinned(reader, evaluation), await _pinned(reader, model)
        body = {"evaluation_ref": evaluation, "model_ref": model}
        job = await self._jobs.submit(EVALUATE_MODEL, caller, project, body, job_id=ids.uuid7())
        await self._show(caller, _evaluation_root(job))
        return job.id

    async def rescore(self, caller: Caller, project: str, source: str, scorer_refs: Sequence[str]) -> str:
        """Queue new scores for the answers of a run; returns the id of the new run. Raises CannotRun."""
        scorers = await read_scorers(ObjectReader(self._store, caller), scorer_refs, "There are")
        body = {"source": source, "scorer_refs": [scorer.ref for scorer in scorers]}
        job = await self._jobs.submit(RESCORE, caller, project, body, job_id=ids.uuid7())
        await self._show(caller, _rescoring_root(job, await self._source(caller, job)))
        return job.id

    async def _show(self, caller: Caller, root: Root) -> None:
        op = await self._records.placeholder_op(caller, root.project, "Evaluation.evaluate")
        await self._records.start_call(caller, root.project, root.start(op.ref))

    async def _evaluate_model(self, job: JobRow, run: JobRun) -> Json:
        reader = PlanReader(self._store, run.caller)
        plan = await reader.read(job.body["evaluation_ref"])
        model = await read_model(reader.objects, job.body["model_ref"])
        root = _evaluation_root(job, plan.label)
        report = _report(run, plan.dataset.count * plan.trials)
        result = await self._planned(plan, model, run.caller, root, patience=PATIENCE, report=report).execute()
        await report(result.cases)
        return {"summary": result.summary, "score": result.score, "cases": result.cases, "failed": result.failed}

    async def _close_evaluation(self, job: JobRow, run: JobRun, problem: str) -> None:
        await fail(self._records, run.caller, _evaluation_root(job), problem)

    async def _rescore(self, job: JobRow, run: JobRun) -> Json:
        scorers = await read_scorers(ObjectReader(self._store, run.caller), job.body["scorer_refs"], "There are")
        source = await self._source(run.caller, job)
        if source is None:
            raise InvalidRequest(f"The evaluation run {job.body['source'][:100]!r} is not found")
        if not source.ended:
            raise InvalidRequest(f"The evaluation run {source.id[:100]!r} has not ended")
        report = _report(run, None)
        result = await EvaluationRun(
            self._records,
            run.caller,
            _rescoring_root(job, source),
            source.predict_op,
            Repeating(),
            scorers,
            self._asker(run.caller, job.project_id),
            lambda: cases_of(self._records, run.caller, job.project_id, source),
            self._parallel,
            PATIENCE,
            report,
        ).execute()
        await report(result.cases)
        return {"summary": result.summary, "score": result.score, "cases": result.cases, "failed": result.failed}

    async def _close_rescoring(self, job: JobRow, run: JobRun, problem: str) -> None:
        await fail(self._records, run.caller, _rescoring_root(job, await self._source(run.caller, job)), problem)

    async def _source(self, caller: Caller, job: JobRow) -> Source | None:
        return await read_source(self._records, caller, job.project_id, job.body["source"])

    def _planned(
        self, plan: Plan, model: Model, caller: Caller, root: Root, *, patience: int, report: Report | None = None
    ) -> EvaluationRun:
        ask = self._asker(caller, root.project)

        async def cases() -> AsyncIterator[Case]:
            for trial in range(plan.trials):
                async for row in plan.dataset.rows():
                    yield Case(f"{row.place}/{trial}", row.example, row.value, trial)

        return EvaluationRun(
            self._records,
            caller,
            root,
            model.op_name,
            Asking(model, ask),
            plan.scorers,
            ask,
            cases,
            self._parallel,
            patience,
            report,
        )

    def _asker(self, caller: Caller, project: str) -> Asker:
        return Asker(self._completions, caller, project)


def _report(run: JobRun, total: int | None) -> Report:
    async def report(done: int) -> None:
        await run.progress({"completed_rows": done, **({} if total is None else {"total_rows": total})})

    return report


def _evaluation_root(job: JobRow, label: str | None = None) -> Root:
    body = job.body
    return Root(job.id, job.project_id, job.created_at, body["evaluation_ref"], body["model_ref"], label)


def _rescoring_root(job: JobRow, source: Source | None) -> Root:
    markers: Json = {"source_evaluation_run_id": job.body["source"]}
    evaluation, model = (source.evaluation, source.model) if source is not None else ("", "")
    if source is not None:
        markers |= {"evaluation_run": "true", "evaluation": evaluation, "model": model}
    attributes = {META: WORKER, "weave": markers}
    return Root(job.id, job.project_id, job.created_at, evaluation, model, None, attributes)


async def _pinned(reader: ObjectReader, ref: str) -> str:
    """The ref with its version as a digest, or as it is where nothing is found behind it."""
    if not is_ref(ref):
        return ref
    try:
        return (await reader.read(ref, "The object")).ref
    except HeddleError:
        return ref
