"""/v2/{entity}/{project}/evaluation_runs: one evaluation of one model, as a call with a call per row below it."""

import uuid
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from heddle.errors import NotFound
from heddle.evals.families.common import Entity, Limit, Names, Offset, Project, body_of, internal_ref, outward
from heddle.evals.families.records import (
    EVALUATE,
    MARK,
    SUMMARIZE,
    CallFamily,
    among,
    equals,
    is_marked,
    is_predict_and_score,
    marks,
    now,
    own_summary,
    text_of,
)
from heddle.evals.families.totals import Totals
from heddle.http import (
    Lines,
    Reader,
    RecordsDep,
    RequestModel,
    ResponseModel,
    StoreDep,
    Writer,
    answer,
    group,
    inlined_body,
    lines,
)
from heddle.store.control.objects import Objects
from heddle.wire import ids, refs
from heddle.wire.jsontypes import Json

RUN = "evaluation_run"
_NAMES = uuid.UUID("0d5f2a1c-9a53-5b0e-8d1c-6a54b1f0c7de")
"""What the ids of summarize calls are derived under, so that finishing twice makes one."""
router: APIRouter = group("Evaluation runs")


class EvaluationRunCreateBody(RequestModel):
    """A run; `evaluation` and `model` are refs."""

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
    openapi_extra=inlined_body(EvaluationRunCreateBody),
)
async def run_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Start a run."""
    body = await body_of(request, EvaluationRunCreateBody)
    internal_ref(body.evaluation, "evaluation")
    internal_ref(body.model, "model", ("object", "op"))
    family = CallFamily(records, caller, f"{entity}/{project}")
    run_id = ids.uuid7()
    own = {RUN: MARK, "evaluation": body.evaluation, "model": body.model}
    if body.source_evaluation_run_id is not None:
        own["source_evaluation_run_id"] = body.source_evaluation_run_id
    start = {
        "id": run_id,
        "trace_id": run_id,
        "op_name": await family.op(EVALUATE),
        "started_at": now(),
        "attributes": {"weave": own},
        "inputs": {"self": body.evaluation, "model": body.model},
    }
    await family.write([start], [])
    return answer({"evaluation_run_id": run_id})


@router.get(
    "/v2/{entity}/{project}/evaluation_runs",
    response_model=EvaluationRunReadRes,
    response_class=Lines,
    response_description="One run per line",
)
async def run_list(
    entity: Entity,
    project: Project,
    caller: Reader,
    records: RecordsDep,
    evaluations: Names = None,
    models: Names = None,
    evaluation_run_ids: Names = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Runs that were made here, oldest first; those that SDKs run themselves are read by their id."""
    conditions = [equals(RUN, MARK)]
    conditions += [among("evaluation", evaluations)] if evaluations else []
    conditions += [among("model", models)] if models else []
    chosen = {"call_ids": evaluation_run_ids} if evaluation_run_ids else {}

    async def shown(calls: list[Json]) -> list[Json]:
        return [_record(call) for call in calls]

    family = CallFamily(records, caller, f"{entity}/{project}")
    return lines(await family.lines(shown, conditions, chosen, limit, offset))


@router.get("/v2/{entity}/{project}/evaluation_runs/{evaluation_run_id}", response_model=EvaluationRunReadRes)
async def run_read(
    entity: Entity, project: Project, evaluation_run_id: str, caller: Reader, records: RecordsDep
) -> Response:
    """One run, whoever made it."""
    return answer(_record(await find_run(CallFamily(records, caller, f"{entity}/{project}"), evaluation_run_id)))


@router.post(
    "/v2/{entity}/{project}/evaluation_runs/{evaluation_run_id}/finish",
    response_model=EvaluationRunFinishRes,
    openapi_extra=inlined_body(EvaluationRunFinishBody),
)
async def run_finish(
    entity: Entity,
    project: Project,
    evaluation_run_id: str,
    request: Request,
    caller: Writer,
    store: StoreDep,
    records: RecordsDep,
) -> Response:
    """Sum the rows up and end the run; once more takes in what came later and changes nothing else."""
    body = await body_of(request, EvaluationRunFinishBody)
    family = CallFamily(records, caller, f"{entity}/{project}")
    async with family.lock(evaluation_run_id):
        run = await find_run(family, evaluation_run_id)
        # What an SDK has ended has a summary that says more.
        if run["ended_at"] is None or is_marked(run, RUN):
            await _finish(family, store.objects, run, body.summary)
    return answer({"success": True})


@router.delete("/v2/{entity}/{project}/evaluation_runs", response_model=EvaluationRunDeleteRes)
async def run_delete(
    entity: Entity,
    project: Project,
    caller: Writer,
    records: RecordsDep,
    evaluation_run_ids: Annotated[list[str], Query()],
) -> Response:
    """Delete runs with all calls below them; feedback stays."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    found = [call["id"] for call in await family.named(evaluation_run_ids) if is_run(call)]
    await family.delete(found)
    return answer({"num_deleted": len(found)})


def is_run(call: Json) -> bool:
    """True for the root call of an evaluation, of whichever SDK."""
    return is_marked(call, RUN) or refs.operation_name(call["op_name"]) == EVALUATE


async def find_run(family: CallFamily, run_id: str) -> Json:
    """The call of a run; raises NotFound."""
    call = await family.call(run_id)
    if call is None or not is_run(call):
        raise NotFound(f"Evaluation run {run_id} not found"[:600])
    return call


def evaluation_of(run: Json) -> str:
    """The ref of the evaluation that a run is of."""
    return text_of(marks(run).get("evaluation"), run["inputs"].get("self"), run["inputs"].get("this"))


async def _finish(family: CallFamily, objects: Objects, run: Json, summary: Json | None) -> None:
    began = now()
    output = await _totals(family, objects, run["id"])
    ended_at = run["ended_at"] or now()
    given = own_summary(run) if summary is None else summary
    summing = str(uuid.uuid5(_NAMES, run["id"]))
    start = {
        "id": summing,
        "trace_id": run["trace_id"],
        "parent_id": run["id"],
        "op_name": SUMMARIZE,
        "started_at": run["ended_at"] or began,
        "attributes": {},
        "inputs": {"self": outward(evaluation_of(run))},
    }
    ends = [
        {"id": summing, "ended_at": ended_at, "output": output, "summary": {}},
        {"id": run["id"], "ended_at": ended_at, "output": output, "summary": given, "exception": run["exception"]},
    ]
    await family.write([] if await family.call(summing) else [start], ends)


async def _totals(family: CallFamily, objects: Objects, run_id: str) -> Json:
    """The rows of a run summed up, a slice at a time; a score that is a ref counts as what it points to."""
    totals = Totals()
    async for slice_ in family.children(run_id, columns=["op_name", "output"]):
        found = [call["output"] for call in slice_ if is_predict_and_score(call)]
        outputs = [output for output in found if isinstance(output, dict)]
        wanted = {ref for output in outputs for ref in refs.find(_scores(output))}
        values = await objects.values(family.project, wanted) if wanted else {}
        for output in outputs:
            if wanted:
                output["scores"] = {name: _resolved(value, values) for name, value in _scores(output).items()}
            totals.add(output)
    return totals.summary


def _scores(output: Any) -> Json:
    scores = output.get("scores") if isinstance(output, dict) else None
    return scores if isinstance(scores, dict) else {}


def _resolved(value: Any, values: dict[str, str | None]) -> Any:
    text = values.get(value) if isinstance(value, str) else None
    return value if text is None else orjson.loads(text)


def _record(call: Json) -> Json:
    status = "failed" if call["exception"] else "running" if call["ended_at"] is None else "completed"
    source = marks(call).get("source_evaluation_run_id")
    return {
        "evaluation_run_id": call["id"],
        "evaluation": evaluation_of(call),
        "model": text_of(marks(call).get("model"), call["inputs"].get("model")),
        "status": status,
        "started_at": call["started_at"],
        "finished_at": call["ended_at"],
        "summary": call["summary"],
        "source_evaluation_run_id": source if isinstance(source, str) else None,
    }
