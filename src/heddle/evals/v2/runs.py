"""/v2/{entity}/{project}/evaluation_runs: one evaluation of one model, as a call with a call per row below it."""

import uuid
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from heddle.evals.v2.calls import (
    MARK,
    RUN,
    DeleteCalls,
    ProjectCalls,
    ReadCalls,
    WriteCalls,
    equals,
    evaluation_of,
    first_text,
    is_among,
    is_marked,
    is_row,
    is_run,
    mark,
    scores_of,
)
from heddle.evals.v2.versions import Limit, Names, Offset, parse_ref, read_body, to_external
from heddle.http.description import body_schema
from heddle.http.routing import Lines, RequestModel, ResponseModel, StoreDep, answer, group, lines
from heddle.store.control.objects import Objects
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.means import Mean
from heddle.wire.records import Call, CallEnd, CallStart
from heddle.wire.trials import EVALUATE, SUMMARIZE

_OUTPUT = "output"
_NAMES = uuid.UUID("0d5f2a1c-9a53-5b0e-8d1c-6a54b1f0c7de")
"""What the ids of summarize calls are derived under, so that finishing twice makes one."""
router: APIRouter = group("Evaluation runs")


class EvaluationRunCreateBody(RequestModel):
    """A run; `evaluation` and `model` are refs, or any text."""

    evaluation: str
    model: str
    source_evaluation_run_id: str | None = None


class EvaluationRunCreateRes(ResponseModel):
    """The id of the run, which is the id of its call."""

    evaluation_run_id: str


class EvaluationRunReadRes(ResponseModel):
    """A run; `status` is running, completed or failed."""

    evaluation_run_id: str
    evaluation: str
    model: str
    status: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    summary: dict[str, Any] | None = None
    source_evaluation_run_id: str | None = None


class EvaluationRunFinishBody(RequestModel):
    """What the client has to say about the run."""

    summary: dict[str, Any] | None = None


class EvaluationRunFinishRes(ResponseModel):
    """Always true."""

    success: bool


class EvaluationRunDeleteRes(ResponseModel):
    """How many runs were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/evaluation_runs",
    response_model=EvaluationRunCreateRes,
    openapi_extra=body_schema(EvaluationRunCreateBody),
)
async def run_create(request: Request, calls: WriteCalls) -> Response:
    """Start a run."""
    body = await read_body(request, EvaluationRunCreateBody)
    parse_ref(body.evaluation), parse_ref(body.model)
    run_id, source = times.uuid7(), body.source_evaluation_run_id
    start = CallStart(
        id=run_id,
        trace_id=run_id,
        op_name=await calls.op(EVALUATE),
        started_at=times.now(),
        attributes=mark(RUN, evaluation=body.evaluation, model=body.model, source_evaluation_run_id=source),
        inputs={"self": body.evaluation, "model": body.model},
    )
    await calls.write([start], [])
    return answer({"evaluation_run_id": run_id})


@router.get(
    "/v2/{entity}/{project}/evaluation_runs",
    response_model=EvaluationRunReadRes,
    response_class=Lines,
    response_description="One run per line",
)
async def run_list(
    calls: ReadCalls,
    evaluations: Names = None,
    models: Names = None,
    evaluation_run_ids: Names = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Runs that were made here, oldest first; those that SDKs run themselves are read by their id."""
    conditions = [equals(RUN, MARK)]
    conditions += [is_among("evaluation", evaluations)] if evaluations else []
    conditions += [is_among("model", models)] if models else []
    chosen = {"call_ids": evaluation_run_ids} if evaluation_run_ids else {}

    async def record(calls: list[Call]) -> list[Json]:
        return [_record(call) for call in calls]

    return lines(await calls.lines(record, conditions, chosen, limit, offset))


@router.get("/v2/{entity}/{project}/evaluation_runs/{evaluation_run_id}", response_model=EvaluationRunReadRes)
async def run_read(evaluation_run_id: str, calls: ReadCalls) -> Response:
    """One run, whoever made it."""
    return answer(_record(await calls.find_run(evaluation_run_id)))


@router.post(
    "/v2/{entity}/{project}/evaluation_runs/{evaluation_run_id}/finish",
    response_model=EvaluationRunFinishRes,
    openapi_extra=body_schema(EvaluationRunFinishBody),
)
async def run_finish(evaluation_run_id: str, request: Request, calls: WriteCalls, store: StoreDep) -> Response:
    """Sum the rows up and end the run; once more takes in what came later and changes nothing else."""
    body = await read_body(request, EvaluationRunFinishBody)
    async with calls.lock(evaluation_run_id):
        run = await calls.find_run(evaluation_run_id)
        # What an SDK has ended has a summary that says more.
        if run.ended_at is None or is_marked(run, RUN):
            await _finish(calls, store.objects, run, body.summary)
    return answer({"success": True})


@router.delete("/v2/{entity}/{project}/evaluation_runs", response_model=EvaluationRunDeleteRes)
async def run_delete(calls: DeleteCalls, evaluation_run_ids: Annotated[list[str], Query()]) -> Response:
    """Delete runs with all calls below them; feedback stays."""
    found = [call.id for call in await calls.read_named(evaluation_run_ids) if is_run(call)]
    await calls.delete(found)
    return answer({"num_deleted": len(found)})


async def _finish(calls: ProjectCalls, objects: Objects, run: Call, summary: Json | None) -> None:
    began = times.now()
    output = await _sum_rows(calls, objects, run.id)
    ended_at, summing = run.end_instant(), str(uuid.uuid5(_NAMES, run.id))
    start = CallStart(
        id=summing,
        trace_id=run.trace_id,
        parent_id=run.id,
        op_name=SUMMARIZE,
        started_at=began if run.ended_at is None else ended_at,
        inputs={"self": to_external(evaluation_of(run))},
    )
    given = run.own_summary if summary is None else summary
    ends = [
        CallEnd(id=summing, ended_at=ended_at, output=output),
        CallEnd(id=run.id, ended_at=ended_at, output=output, summary=given, exception=run.exception),
    ]
    await calls.write([] if await calls.find(summing) else [start], ends)


async def _sum_rows(calls: ProjectCalls, objects: Objects, run_id: str) -> Json:
    """The rows of a run summed up, a slice at a time; a score that is a ref counts as what it points to."""
    totals = Totals()
    async for slice_ in calls.stream(filter={"parent_ids": [run_id]}, columns=["op_name", "output"]):
        outputs = [call.output for call in slice_ if is_row(call) and isinstance(call.output, dict)]
        wanted = {ref for output in outputs for ref in refs.find(scores_of(output))}
        values = await objects.values(calls.project, wanted) if wanted else {}
        for output in outputs:
            if wanted:
                output["scores"] = {name: _resolve(value, values) for name, value in scores_of(output).items()}
            totals.add(output)
    return totals.summary


def _resolve(value: Any, values: dict[str, str | None]) -> Any:
    text = values.get(value) if isinstance(value, str) else None
    return value if text is None else orjson.loads(text)


class Total:
    """The values of one scorer, or of the model: numbers and truths count, everything else is passed over."""

    def __init__(self) -> None:
        self.truths = 0
        self.true = 0
        self._has_numbers = False
        self._mean = Mean()

    def add(self, value: Any) -> None:
        """Take one value in."""
        if isinstance(value, bool):
            self.truths += 1
            self.true += value
        elif isinstance(value, int | float):
            self._has_numbers = True
        else:
            return
        self._mean.add(value)

    @property
    def summary(self) -> Json | None:
        """A mean, or how many are true where there are only truths; beside numbers a truth counts 1 or 0."""
        if self._has_numbers:
            return {"mean": self._mean.value}
        if self.truths:
            return {"true_count": self.true, "true_fraction": self.true / self.truths}
        return None


class Totals:
    """The totals of a run: one per scorer, and one of the model's outputs."""

    def __init__(self) -> None:
        self._scorers: dict[str, Total] = {}
        self._outputs = Total()

    def add(self, output: Json) -> None:
        """Take in the output of one row's call: `{output, scores}` (`model_output` in TypeScript)."""
        self._outputs.add(output.get("output", output.get("model_output")))
        for name, value in scores_of(output).items():
            self._scorers.setdefault(name, Total()).add(value)

    @property
    def summary(self) -> Json:
        """`{scorer: summary}`, and the model's as `output`; what has neither numbers nor truths is left out."""
        found = {name: total.summary for name, total in self._scorers.items() if name != _OUTPUT}
        # A scorer may be named `output`: then it stands there.
        named = self._scorers.get(_OUTPUT)
        found[_OUTPUT] = (named.summary if named else None) or self._outputs.summary
        return {name: summary for name, summary in found.items() if summary is not None}


def _record(call: Call) -> Json:
    status = "failed" if call.exception else "running" if call.ended_at is None else "completed"
    source = call.marks.get("source_evaluation_run_id")
    return {
        "evaluation_run_id": call.id,
        "evaluation": evaluation_of(call),
        "model": first_text(call.marks.get("model"), call.inputs.get("model")),
        "status": status,
        "started_at": call.started_at,
        "finished_at": call.ended_at,
        "summary": call.summary,
        "source_evaluation_run_id": source if isinstance(source, str) else None,
    }
