"""Evaluations of the trace service, run in the server: at once for training, as durable jobs for everybody else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.jobs import JobRun, Jobs
from heddle.evals.objects import (
    ChatModel,
    Dataset,
    Model,
    ObjectReader,
    StoredObject,
    external_text,
    find_calls,
    is_ref,
    read_dataset,
    read_model,
)
from heddle.evals.predictions import Asker, Case, StoredAnswer, ask_model, repeat_answer
from heddle.evals.run import META, UNSCORED, WORKER, EvaluationRun, Report, Root, derived_id, fail_run
from heddle.evals.scorers import CannotRun, Scorer, read_scorers
from heddle.evals.scoring import SourceRun, read_cases, read_source
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.wire import refs, times
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.query import parse_query
from heddle.wire.records import Records
from heddle.wire.training import Sampling, Scored
from heddle.wire.trials import EVALUATE

EVALUATE_MODEL, RESCORE = "evaluate_model", "rescore"
PATIENCE = 50
"""So many rows in a row may fail for reasons that are not their own before a job fails."""
MOST_TRIALS = 100
_ROWS_SHOWN = 3
_IS_RUNNING: Json = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "running"}]}
_ENDED = parse_query({"$expr": {"$not": [_IS_RUNNING]}})
_COLUMNS = ["id", "op_name", "inputs", "output", "exception", "ended_at"]


@dataclass(frozen=True, slots=True)
class Plan:
    """An evaluation that can be run."""

    ref: str
    """Internal, its version a digest."""
    name: str
    label: str | None
    """Its `evaluation_name`, which its runs are shown under."""
    dataset: Dataset
    scorers: Sequence[Scorer]
    trials: int

    async def cases(self) -> AsyncIterator[Case]:
        """Every row of the dataset, once per trial; raises as `Dataset.rows` does."""
        for trial in range(self.trials):
            async for row in self.dataset.rows():
                yield Case(f"{row.place}/{trial}", row.example, row.value, trial)


async def read_plan(reader: ObjectReader, ref: str) -> Plan:
    """The evaluation behind a ref in either form; raises HeddleError for what cannot be read or run.

    CannotRun names the scorers that do not run here.
    """
    found = await reader.read(ref, "The evaluation")
    name, value = _name(found), found.value
    scorers = await _read_scorers_of(reader, found, ref)
    dataset = await read_dataset(reader, value.get("dataset"), name)
    trials = 1 if value.get("trials") is None else value["trials"]
    if not isinstance(trials, int) or isinstance(trials, bool) or not 1 <= trials <= MOST_TRIALS:
        raise InvalidRequest(f"The trials of the evaluation {name} must be from 1 to {MOST_TRIALS}, got {trials!r}")
    return Plan(found.ref, name, _label(value), dataset, scorers, trials)


def _label(evaluation: Json) -> str | None:
    """What the runs of an evaluation are called, where it says so."""
    label = evaluation.get("evaluation_name")
    return label if isinstance(label, str) else None


def _name(evaluation: StoredObject) -> str:
    return str(evaluation.value.get("name") or evaluation.target.name)


async def _read_scorers_of(reader: ObjectReader, evaluation: StoredObject, ref: str) -> list[Scorer]:
    """The scorers of a stored evaluation; raises InvalidRequest for an object (`ref` to its reader) that is none."""
    name, value = _name(evaluation), evaluation.value
    if not evaluation.is_a("Evaluation"):
        raise InvalidRequest(f"{external_text(ref)} is not an Evaluation but {value.get('_class_name')}")
    if value.get("preprocess_model_input") is not None:
        raise InvalidRequest(
            f"The evaluation {name} has a preprocess_model_input; stored code is not run on this server"
        )
    listed = value.get("scorers")
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest(f"The evaluation {name} has no scorers")
    return await read_scorers(reader, listed, f"The evaluation {name} has")


async def check_rows(plan: Plan, model: Model) -> None:
    """Raise InvalidRequest when a row cannot be asked or scored, or a scorer gives no numbers; reads every row once."""
    for scorer in plan.scorers:
        if not scorer.is_numeric:
            raise InvalidRequest(
                f"The scorer {scorer.name} of {plan.name} returns text, which cannot be used as a score"
            )
    needed = [(scorer.name, column) for scorer in plan.scorers for column in scorer.needs]
    missing: dict[tuple[str, str], list[int]] = {}
    async for row in plan.dataset.rows():
        try:
            model.inputs(row.value, 0)
        except InvalidRequest as error:
            raise InvalidRequest(f"Row {row.place} of the dataset of {plan.name}: {error.reason}") from None
        for pair in needed:
            if row.value.get(pair[1]) is None and len(missing.setdefault(pair, [])) <= _ROWS_SHOWN:
                missing[pair].append(row.place)
    for (name, column), places in missing.items():
        listed = ", ".join(map(str, places[:_ROWS_SHOWN])) + (" and more" if len(places) > _ROWS_SHOWN else "")
        raise InvalidRequest(
            f"The scorer {name} of {plan.name} needs the column {column!r} (see its column_map), "
            f"which is missing in rows {listed} of the dataset"
        )


async def read_status(store: Store, records: Records, caller: Caller, project_id: str, call_id: str) -> Json:
    """The status of a call; raises InvalidRequest for one that is no evaluation."""
    call = (await find_calls(records, caller, project_id, [call_id], [*_COLUMNS, "summary"])).get(call_id)
    if call is None:
        return {"code": "not_found"}
    if EVALUATE not in call.operation:
        raise InvalidRequest("Call is not an evaluation")
    if call.exception:
        return {"code": "failed", "error": _message(call.exception)}
    if call.ended_at is not None:
        output = call.output if isinstance(call.output, dict) else {"output": call.output}
        unscored = call.own_summary.get(UNSCORED)
        return {"code": "complete", "output": output, **({UNSCORED: unscored} if isinstance(unscored, dict) else {})}
    ended = CallsQuery(caller.open(project_id), Filter(parent_ids=(call_id,)), query=_ENDED)
    done = await store.calls.count(ended)
    rows = await _count_rows(ObjectReader(store, caller), call.inputs.get("self") or call.inputs.get("this"))
    return {"code": "running", "completed_rows": done, "total_rows": max(rows, done)}


async def _count_rows(reader: ObjectReader, ref: Any) -> int:
    """The rows of the dataset of an evaluation; 0 when they cannot be counted."""
    try:
        found = await reader.read(str(ref), "The evaluation")
        return (await read_dataset(reader, found.value.get("dataset"), found.target.name)).count
    except HeddleError:
        return 0


def _message(exception: str) -> str:
    """The text of an exception, of the JSON that SDKs write, or of a plain one."""
    try:
        value = orjson.loads(exception)
    except orjson.JSONDecodeError:
        return exception
    said = value.get("message") if isinstance(value, dict) else None
    return said if isinstance(said, str) and said else exception


@dataclass(frozen=True, slots=True)
class EvaluateSpec:
    """A job that evaluates a model: internal refs, or the name of a chat model."""

    evaluation_ref: str
    model_ref: str

    def root(self, job: JobRow, label: str | None = None) -> Root:
        """The call of the run."""
        return Root(job.id, job.project_id, job.created_at, self.evaluation_ref, self.model_ref, label)


@dataclass(frozen=True, slots=True)
class RescoreSpec:
    """A job that scores the answers of a run again; `source` is the id of that run."""

    source: str
    scorer_refs: list[str]

    def root(self, job: JobRow, source: SourceRun | None) -> Root:
        """The call of the new run."""
        markers, evaluation, model = {"source_evaluation_run_id": self.source}, "", ""
        if source is not None:
            evaluation, model = source.evaluation, source.model
            markers |= {"evaluation_run": "true", "evaluation": evaluation, "model": model}
        attributes = {META: WORKER, "weave": markers}
        return Root(job.id, job.project_id, job.created_at, evaluation, model, None, attributes)


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
        plan = await read_plan(ObjectReader(self._store, caller), ref)
        await check_rows(plan, ChatModel(""))
        return refs.to_external(plan.ref)

    async def run(
        self, ref: str, model: str, caller: Caller, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """Answer and score every row; raises HeddleError when the evaluation cannot be run."""
        plan, asked = await read_plan(ObjectReader(self._store, caller), ref), ChatModel(model, sampling)
        root = Root(derived_id(run_id), project, times.now(), plan.ref, model, label)
        problem: str | None = "The run was stopped"
        try:
            run = self._make_run(caller, root, asked.op_name, asked, plan.scorers, plan.cases, patience=1)
            result = await run.execute()
            problem = None
        except HeddleError as error:
            problem = error.reason
            raise
        finally:
            if problem is not None:
                await asyncio.shield(fail_run(self._records, caller, root, problem))
        return Scored(result.score, plan.dataset.count, result.failed, result.summary, root.id)

    async def evaluate_model(self, caller: Caller, project: str, evaluation: str, model: str) -> str:
        """Queue the evaluation of a model and show it as running; returns the id of its call.

        Raises CannotRun for scorers that do not run here; whatever else is wrong fails the call.
        """
        reader, pinned, label = ObjectReader(self._store, caller), evaluation, None
        try:
            found = await reader.read(evaluation, "The evaluation")
            pinned, label = found.ref, _label(found.value)
            await _read_scorers_of(reader, found, evaluation)
        except CannotRun:
            raise
        except HeddleError:
            pass  # The job meets it as well, and says so in the call.
        spec = EvaluateSpec(pinned, await _pin_version(reader, model))
        job = await self._jobs.submit(EVALUATE_MODEL, caller, project, asdict(spec))
        # The job may have begun by now: what it has written is not taken back.
        await self._start_root(caller, spec.root(job, label))
        return job.id

    async def rescore(self, caller: Caller, project: str, source: str, scorer_refs: Sequence[str]) -> str:
        """Queue new scores for the answers of a run; returns the id of the new run. Raises CannotRun."""
        scorers = await read_scorers(ObjectReader(self._store, caller), scorer_refs)
        spec = RescoreSpec(source, [scorer.ref for scorer in scorers])
        job = await self._jobs.submit(RESCORE, caller, project, asdict(spec))
        await self._start_root(caller, spec.root(job, await read_source(self._records, caller, project, source)))
        return job.id

    async def _start_root(self, caller: Caller, root: Root) -> None:
        op = await self._records.placeholder_op(caller, root.project, EVALUATE)
        await self._records.write_calls(caller, root.project, [root.start(op.ref)], [])

    async def _evaluate_model(self, job: JobRow, run: JobRun) -> Json:
        spec, reader = EvaluateSpec(**job.body), ObjectReader(self._store, run.caller)
        plan, model = await read_plan(reader, spec.evaluation_ref), await read_model(reader, spec.model_ref)
        report = _report(run, plan.dataset.count * plan.trials)
        root = spec.root(job, plan.label)
        at_work = self._make_run(run.caller, root, model.op_name, model, plan.scorers, plan.cases, report=report)
        result = await at_work.execute()
        await report(result.cases)
        return asdict(result)

    async def _close_evaluation(self, job: JobRow, run: JobRun, problem: str) -> None:
        await fail_run(self._records, run.caller, EvaluateSpec(**job.body).root(job), problem)

    async def _rescore(self, job: JobRow, run: JobRun) -> Json:
        spec = RescoreSpec(**job.body)
        scorers = await read_scorers(ObjectReader(self._store, run.caller), spec.scorer_refs)
        source = await read_source(self._records, run.caller, job.project_id, spec.source)
        if source is None:
            raise InvalidRequest(f"The evaluation run {spec.source[:100]!r} was not found")
        if not source.ended:
            raise InvalidRequest(f"The evaluation run {source.id[:100]!r} has not ended")
        report, root = _report(run, None), spec.root(job, source)
        cases = partial(read_cases, self._records, run.caller, job.project_id, source)
        at_work = self._make_run(run.caller, root, source.predict_op, None, scorers, cases, report=report)
        result = await at_work.execute()
        await report(result.cases)
        return asdict(result)

    async def _close_rescoring(self, job: JobRow, run: JobRun, problem: str) -> None:
        spec = RescoreSpec(**job.body)
        source = await read_source(self._records, run.caller, job.project_id, spec.source)
        await fail_run(self._records, run.caller, spec.root(job, source), problem)

    async def score_answers(
        self, caller: Caller, project_id: str, evaluation_ref: str, model: str, answer: Callable[[Json], Any]
    ) -> str:
        """A run over answers that are known; `answer` gives that of a row. Returns the id of the run."""
        plan = await read_plan(ObjectReader(self._store, caller), evaluation_ref)

        async def cases() -> AsyncIterator[Case]:
            async for row in plan.dataset.rows():
                stored = StoredAnswer(answer(row.value), 0.5, None)
                yield Case(f"{row.place}/0", row.example, row.value, 0, stored)

        root = Root(times.uuid7(), project_id, times.now(), plan.ref, model)
        await self._make_run(caller, root, "Model.predict", None, plan.scorers, cases).execute()
        return root.id

    def _make_run(
        self, caller: Caller, root: Root, op: str, model: Model | None, scorers: Sequence[Scorer],
        cases: Callable[[], AsyncIterator[Case]], patience: int = PATIENCE, report: Report | None = None,
    ) -> EvaluationRun:  # fmt: skip
        """The run of a root's cases; without a model the answers are those that are stored."""
        ask = Asker(self._completions, caller, root.project)
        predict = repeat_answer if model is None else ask_model(model, ask)
        return EvaluationRun(
            self._records, caller, root, op, predict, scorers, ask, cases, self._parallel, patience, report
        )


def _report(run: JobRun, total: int | None) -> Report:
    async def report(done: int) -> None:
        await run.progress({"completed_rows": done, **({} if total is None else {"total_rows": total})})

    return report


async def _pin_version(reader: ObjectReader, ref: str) -> str:
    """The ref with its version as a digest, or as it is where nothing is found behind it."""
    if not is_ref(ref):
        return ref
    try:
        return (await reader.read(ref, "The object")).ref
    except HeddleError:
        return ref
