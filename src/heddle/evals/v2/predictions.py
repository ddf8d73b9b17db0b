"""/v2/{entity}/{project}/{predictions,scores}: answers of a model, alone or in a run, and what scorers said of them."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from heddle.errors import InvalidRequest
from heddle.evals.v2.calls import (
    PREDICTION,
    SCORE,
    DeleteCalls,
    ReadCalls,
    WriteCalls,
    evaluation_of,
    first_text,
    is_marked,
    mark,
    op_ref,
    scorer_name,
    scorer_of,
)
from heddle.evals.v2.versions import Limit, Offset, internal_ref, parse_ref, read_body, to_external
from heddle.http.description import body_schema
from heddle.http.routing import Lines, RecordsDep, RequestModel, ResponseModel, answer, group, lines
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import Call, CallEnd, CallStart, NewFeedback
from heddle.wire.trials import PREDICT_AND_SCORE

predictions_router: APIRouter = group("Predictions")
scores_router: APIRouter = group("Scores")


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


class PredictionFinishBody(RequestModel):
    """Nothing of a body is needed; one that is sent must be JSON."""


class PredictionFinishRes(ResponseModel):
    """Always true."""

    success: bool


class PredictionDeleteRes(ResponseModel):
    """How many predictions were deleted."""

    num_deleted: int


class ScoreCreateBody(RequestModel):
    """What a scorer (a ref) said of a prediction."""

    prediction_id: str
    scorer: str
    value: Any
    evaluation_run_id: str | None = None


class ScoreCreateRes(ResponseModel):
    """The id of the score, which is the id of its call."""

    score_id: str


class ScoreReadRes(ResponseModel):
    """A score; one without a value counts 0."""

    score_id: str
    scorer: str
    value: Any
    evaluation_run_id: str | None = None
    wb_user_id: str | None = None


class ScoreDeleteRes(ResponseModel):
    """How many scores were deleted."""

    num_deleted: int


@predictions_router.post(
    "/v2/{entity}/{project}/predictions",
    response_model=PredictionCreateRes,
    openapi_extra=body_schema(PredictionCreateBody),
)
async def prediction_create(request: Request, calls: WriteCalls) -> Response:
    """Store an answer; within a run the call of its row is started with it."""
    began = times.now()
    body = await read_body(request, PredictionCreateBody)
    prediction_id = times.uuid7()
    spans = [span.model_dump() for span in body.genai_span_ref or ()] or None
    row = None
    if body.evaluation_run_id is not None:
        run = await calls.find_run(body.evaluation_run_id)
        # The spans stand at the row then.
        own = {"predict_call_id": prediction_id, **({"genai_span_ref": spans} if spans else {})}
        spans = None
        row = CallStart(
            id=times.uuid7(),
            trace_id=run.trace_id,
            parent_id=run.id,
            op_name=await calls.op(PREDICT_AND_SCORE),
            started_at=began,
            attributes={"weave": own},
            inputs={"self": to_external(evaluation_of(run)), "model": body.model, "example": body.inputs},
        )
    attributes = mark(PREDICTION, model=body.model, evaluation_run_id=body.evaluation_run_id, genai_span_ref=spans)
    start = CallStart(
        id=prediction_id,
        trace_id=row.trace_id if row else prediction_id,
        parent_id=row.id if row else None,
        op_name=await calls.op(f"{_model_name(body.model)}.predict"),
        started_at=began,
        attributes=attributes,
        inputs={"self": body.model, "inputs": body.inputs},
    )
    end = CallEnd(id=prediction_id, ended_at=times.now(), output=body.output)
    await calls.write([row, start] if row else [start], [end])
    return answer({"prediction_id": prediction_id})


@predictions_router.get(
    "/v2/{entity}/{project}/predictions",
    response_model=PredictionReadRes,
    response_class=Lines,
    response_description="One prediction per line",
)
async def prediction_list(
    calls: ReadCalls,
    evaluation_run_id: Annotated[str | None, Query()] = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Predictions that were made here, oldest first."""
    return lines(await calls.marked_lines(PREDICTION, _prediction, evaluation_run_id, limit, offset))


@predictions_router.get("/v2/{entity}/{project}/predictions/{prediction_id}", response_model=PredictionReadRes)
async def prediction_read(prediction_id: str, calls: ReadCalls) -> Response:
    """One prediction, also one that an SDK made."""
    call = await calls.find_marked(prediction_id, PREDICTION)
    [run] = await calls.runs_of([call])
    return answer(_prediction(call, run))


@predictions_router.post(
    "/v2/{entity}/{project}/predictions/{prediction_id}/finish", response_model=PredictionFinishRes
)
async def prediction_finish(prediction_id: str, request: Request, calls: WriteCalls) -> Response:
    """End the row's call with the output and the scores; an unknown or lone prediction has nothing to end."""
    await read_body(request, PredictionFinishBody)
    prediction = await calls.find(prediction_id)
    if prediction is not None and is_marked(prediction, PREDICTION):
        row = await calls.find_row(prediction)
        if row is not None:
            async with calls.lock(row.id):
                row = await calls.find(row.id) or row
                await calls.write_row([], [], row, prediction)
    return answer({"success": True})


@predictions_router.delete("/v2/{entity}/{project}/predictions", response_model=PredictionDeleteRes)
async def prediction_delete(calls: DeleteCalls, prediction_ids: Annotated[list[str], Query()]) -> Response:
    """Delete predictions, with the calls of their rows and the scores where they belong to a run."""
    found = await calls.read_marked(prediction_ids, PREDICTION)
    parents = await calls.read_parents(found)
    named = set(prediction_ids)
    rows = [parent.id for parent in parents.values() if first_text(parent.marks.get("predict_call_id")) in named]
    await calls.delete([*(call.id for call in found), *rows])
    return answer({"num_deleted": len(found)})


@scores_router.post(
    "/v2/{entity}/{project}/scores", response_model=ScoreCreateRes, openapi_extra=body_schema(ScoreCreateBody)
)
async def score_create(request: Request, calls: WriteCalls, records: RecordsDep) -> Response:
    """Store a score as a call and as feedback on the prediction; a row that has ended takes it in."""
    began = times.now()
    body = await read_body(request, ScoreCreateBody)
    scorer = internal_ref(body.scorer, "scorer", ("object", "op"))
    prediction = await calls.find_marked(body.prediction_id, PREDICTION)
    score_id, run_id = times.uuid7(), body.evaluation_run_id
    run = None if run_id is None else await calls.find_run(run_id)
    row = None if run is None else await calls.find_row(prediction)
    if run is not None and row is not None and row.parent_id != run.id:
        raise InvalidRequest(f"Prediction {prediction.id} does not belong to evaluation run {run.id}"[:600])
    parent = row or run
    start = CallStart(
        id=score_id,
        trace_id=parent.trace_id if parent else score_id,
        parent_id=parent.id if parent else None,
        op_name=await calls.op(f"{scorer.name}.score"),
        started_at=began,
        attributes=mark(SCORE, prediction_id=body.prediction_id, scorer=body.scorer, evaluation_run_id=run_id),
        inputs={
            "self": body.scorer,
            "inputs": to_external(prediction.inputs.get("inputs", {})),
            "output": to_external(prediction.output),
        },
    )
    feedback = NewFeedback(
        weave_ref=refs.to_external(refs.call_ref(calls.project, body.prediction_id)),
        feedback_type=f"wandb.runnable.{scorer.name}",
        payload={"output": body.value},
        runnable_ref=body.scorer,
        call_ref=refs.to_external(refs.call_ref(calls.project, score_id)),
    )
    # The feedback has rules that may refuse it; it comes first, so that then nothing is stored.
    await records.add_feedback(calls.caller, calls.project_id, [feedback])
    end = CallEnd(id=score_id, ended_at=times.now(), output=body.value)
    if row is None:
        await calls.write([start], [end])
        return answer({"score_id": score_id})
    async with calls.lock(row.id):
        row = await calls.find(row.id) or row
        added = scorer.name, body.value
        if row.ended_at is not None:
            await calls.write_row([start], [end], row, prediction, added)
        else:
            await calls.write([start], [end])
            row = await calls.find(row.id) or row
            if row.ended_at is not None:  # another server has ended it since
                await calls.write_row([], [], row, prediction, added)
    return answer({"score_id": score_id})


@scores_router.get(
    "/v2/{entity}/{project}/scores",
    response_model=ScoreReadRes,
    response_class=Lines,
    response_description="One score per line",
)
async def score_list(
    calls: ReadCalls,
    evaluation_run_id: Annotated[str | None, Query()] = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Scores that were made here, oldest first."""
    return lines(await calls.marked_lines(SCORE, _score, evaluation_run_id, limit, offset))


@scores_router.get("/v2/{entity}/{project}/scores/{score_id}", response_model=ScoreReadRes)
async def score_read(score_id: str, calls: ReadCalls) -> Response:
    """One score, also one that an SDK made."""
    call = await calls.find_marked(score_id, SCORE)
    [run] = await calls.runs_of([call])
    return answer(_score(call, run))


@scores_router.delete("/v2/{entity}/{project}/scores", response_model=ScoreDeleteRes)
async def score_delete(calls: DeleteCalls, score_ids: Annotated[list[str], Query()]) -> Response:
    """Delete scores; rows that have ended lose them, feedback stays."""
    found = await calls.read_marked(score_ids, SCORE)
    await calls.delete([call.id for call in found])
    for row_id in dict.fromkeys(call.parent_id for call in found if call.parent_id):
        mine = [call for call in found if call.parent_id == row_id and is_marked(call, SCORE)]
        await calls.refresh_row(row_id, {scorer_name(scorer_of(call)) for call in mine})
    return answer({"num_deleted": len(found)})


def _model_name(ref: str) -> str:
    """The name of the model behind a ref; a text that is none is just a model."""
    try:
        parsed = parse_ref(ref)
    except InvalidRequest:
        return "Model"
    return "Model" if parsed is None else parsed.name


def _prediction(call: Call, run: str | None) -> Json:
    inputs = call.inputs.get("inputs")
    if not isinstance(inputs, dict):
        # SDKs that run the model themselves keep its arguments beside `self`.
        alone = is_marked(call, PREDICTION)
        inputs = {} if alone else {key: value for key, value in call.inputs.items() if key != "self"}
    model = first_text(call.marks.get("model"), call.inputs.get("self"), call.inputs.get("this"), op_ref(call))
    return {
        "prediction_id": call.id,
        "model": model,
        "inputs": inputs,
        "output": call.output,
        "evaluation_run_id": run,
        "wb_user_id": call.wb_user_id,
    }


def _score(call: Call, run: str | None) -> Json:
    return {
        "score_id": call.id,
        "scorer": scorer_of(call),
        "value": 0.0 if call.output is None else call.output,
        "evaluation_run_id": run,
        "wb_user_id": call.wb_user_id,
    }
