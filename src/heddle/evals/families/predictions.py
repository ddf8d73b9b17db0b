"""/v2/{entity}/{project}/predictions: answers of a model, alone or as rows of an evaluation run."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from heddle.errors import InvalidRequest
from heddle.evals.families.common import Entity, Limit, Offset, Project, body_of, outward
from heddle.evals.families.records import (
    PREDICT_AND_SCORE,
    CallFamily,
    is_marked,
    marks,
    now,
    text_of,
    whole,
)
from heddle.evals.families.rows import PREDICTION, ending, marked, op_ref, row_of
from heddle.evals.families.runs import evaluation_of, find_run
from heddle.http import (
    Lines,
    Reader,
    RecordsDep,
    RequestModel,
    ResponseModel,
    Writer,
    answer,
    group,
    inlined_body,
    lines,
)
from heddle.wire import ids, refs
from heddle.wire.jsontypes import Json

router: APIRouter = group("Predictions")


class GenAISpanRef(RequestModel):
    """A span of OpenTelemetry that belongs to the prediction."""

    trace_id: str
    span_id: str


class PredictionCreateBody(RequestModel):
    """An answer of a model (a ref) to some inputs."""

    model: str
    inputs: dict[str, Any]
    output: Any
    evaluation_run_id: str | None = None
    genai_span_ref: list[GenAISpanRef] | None = None


class PredictionCreateRes(ResponseModel):
    """The id of the prediction, which is the id of its call."""

    prediction_id: str


class PredictionReadRes(ResponseModel):
    """A prediction."""

    prediction_id: str
    model: str
    inputs: dict[str, Any]
    output: Any
    evaluation_run_id: str | None = None
    wb_user_id: str | None = None


class PredictionFinishRes(ResponseModel):
    """Always true."""

    success: bool


class PredictionDeleteRes(ResponseModel):
    """How many predictions were deleted."""

    num_deleted: int


@router.post(
    "/v2/{entity}/{project}/predictions",
    response_model=PredictionCreateRes,
    openapi_extra=inlined_body(PredictionCreateBody),
)
async def prediction_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store an answer; within a run the call of its row is started with it."""
    began = now()
    body = await body_of(request, PredictionCreateBody)
    family = CallFamily(records, caller, f"{entity}/{project}")
    prediction_id = ids.uuid7()
    spans = [span.model_dump() for span in body.genai_span_ref] if body.genai_span_ref else None
    own: Json = {"model": body.model, "evaluation_run_id": body.evaluation_run_id}
    row: Json | None = None
    if body.evaluation_run_id is not None:
        run = await find_run(family, body.evaluation_run_id)
        row = await _row(family, run, body, prediction_id, spans)
        row["started_at"] = began
    else:
        own["genai_span_ref"] = spans
    start = {
        "id": prediction_id,
        "trace_id": row["trace_id"] if row else prediction_id,
        "parent_id": row["id"] if row else None,
        "op_name": await family.op(f"{_model_name(body.model)}.predict"),
        "started_at": began,
        "attributes": marked(PREDICTION, **own),
        "inputs": {"self": body.model, "inputs": body.inputs},
    }
    start, end = whole(start, body.output, now())
    await family.write([row, start] if row else [start], [end])
    return answer({"prediction_id": prediction_id})


@router.get(
    "/v2/{entity}/{project}/predictions",
    response_model=PredictionReadRes,
    response_class=Lines,
    response_description="One prediction per line",
)
async def prediction_list(
    entity: Entity,
    project: Project,
    caller: Reader,
    records: RecordsDep,
    evaluation_run_id: Annotated[str | None, Query()] = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Predictions that were made here, oldest first."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    return lines(await family.marked_lines(PREDICTION, _record, evaluation_run_id, limit, offset))


@router.get("/v2/{entity}/{project}/predictions/{prediction_id}", response_model=PredictionReadRes)
async def prediction_read(
    entity: Entity, project: Project, prediction_id: str, caller: Reader, records: RecordsDep
) -> Response:
    """One prediction, also one that an SDK made."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    call = await family.member(prediction_id, PREDICTION, "Prediction")
    [run] = await family.runs_of([call])
    return answer(_record(call, run))


@router.post(
    "/v2/{entity}/{project}/predictions/{prediction_id}/finish",
    response_model=PredictionFinishRes,
)
async def prediction_finish(
    entity: Entity, project: Project, prediction_id: str, caller: Writer, records: RecordsDep
) -> Response:
    """End the row's call with the output and the scores; an unknown or lone prediction has nothing to end."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    prediction = await family.call(prediction_id)
    row = None if prediction is None or not is_marked(prediction, PREDICTION) else await row_of(family, prediction)
    if prediction is not None and row is not None:
        async with family.lock(row["id"]):
            row = await family.call(row["id"]) or row
            await family.write([], [await ending(family, row, prediction)])
    return answer({"success": True})


@router.delete("/v2/{entity}/{project}/predictions", response_model=PredictionDeleteRes)
async def prediction_delete(
    entity: Entity,
    project: Project,
    caller: Writer,
    records: RecordsDep,
    prediction_ids: Annotated[list[str], Query()],
) -> Response:
    """Delete predictions, with the calls of their rows and the scores where they belong to a run."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    found = await family.members(prediction_ids, PREDICTION)
    parents = await family.parents(found)
    rows = [parent["id"] for parent in parents.values() if marks(parent).get("predict_call_id") in set(prediction_ids)]
    await family.delete([*(call["id"] for call in found), *rows])
    return answer({"num_deleted": len(found)})


async def _row(
    family: CallFamily, run: Json, body: PredictionCreateBody, prediction_id: str, spans: list[Json] | None
) -> Json:
    """The start of the call of a row."""
    own = {"predict_call_id": prediction_id, **({"genai_span_ref": spans} if spans else {})}
    return {
        "id": ids.uuid7(),
        "trace_id": run["trace_id"],
        "parent_id": run["id"],
        "op_name": await family.op(PREDICT_AND_SCORE),
        "attributes": {"weave": own},
        "inputs": {"self": outward(evaluation_of(run)), "model": body.model, "example": body.inputs},
    }


def _model_name(ref: str) -> str:
    """The name of the model behind a ref; a text that is none is just a model."""
    try:
        return refs.parse(refs.to_internal(ref) if ref.startswith(refs.EXTERNAL) else ref).name
    except InvalidRequest:
        return "Model"


def _record(call: Json, run: str | None) -> Json:
    inputs = call["inputs"].get("inputs")
    if not isinstance(inputs, dict):
        # SDKs that run the model themselves keep its arguments beside `self`.
        alone = is_marked(call, PREDICTION)
        inputs = {} if alone else {key: value for key, value in call["inputs"].items() if key != "self"}
    return {
        "prediction_id": call["id"],
        "model": text_of(
            marks(call).get("model"), call["inputs"].get("self"), call["inputs"].get("this"), op_ref(call)
        ),
        "inputs": inputs,
        "output": call["output"],
        "evaluation_run_id": run,
        "wb_user_id": call["wb_user_id"],
    }
