"""/v2/{entity}/{project}/scores: what a scorer said of a prediction, as a call and as feedback."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from heddle.errors import InvalidRequest
from heddle.evals.families.common import Entity, Limit, Offset, Project, body_of, internal_ref, outward
from heddle.evals.families.records import CallFamily, is_marked, now, whole
from heddle.evals.families.rows import PREDICTION, SCORE, ending, marked, refresh, row_of, scorer_name, scorer_of
from heddle.evals.families.runs import find_run
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

router: APIRouter = group("Scores")


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


@router.post(
    "/v2/{entity}/{project}/scores", response_model=ScoreCreateRes, openapi_extra=inlined_body(ScoreCreateBody)
)
async def score_create(
    entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
) -> Response:
    """Store a score as a call and as feedback on the prediction; a row that has ended takes it in."""
    began = now()
    body = await body_of(request, ScoreCreateBody)
    scorer = internal_ref(body.scorer, "scorer", ("object", "op"))
    family = CallFamily(records, caller, f"{entity}/{project}")
    prediction = await family.member(body.prediction_id, PREDICTION, "Prediction")
    score_id = ids.uuid7()
    run = None if body.evaluation_run_id is None else await find_run(family, body.evaluation_run_id)
    row = None if run is None else await row_of(family, prediction)
    if run is not None and row is not None and row["parent_id"] != run["id"]:
        raise InvalidRequest(f"Prediction {prediction['id']} does not belong to evaluation run {run['id']}"[:600])
    parent = row or run
    start = {
        "id": score_id,
        "trace_id": parent["trace_id"] if parent else score_id,
        "parent_id": parent["id"] if parent else None,
        "op_name": await family.op(f"{scorer.name}.score"),
        "started_at": began,
        "attributes": marked(
            SCORE, prediction_id=body.prediction_id, scorer=body.scorer, evaluation_run_id=body.evaluation_run_id
        ),
        "inputs": {
            "self": body.scorer,
            "inputs": outward(prediction["inputs"].get("inputs", {})),
            "output": outward(prediction["output"]),
        },
    }
    # The feedback has rules that may refuse it; it comes first, so that then nothing is stored.
    await records.add_feedback(family.caller, family.project_id, [_feedback(family, body, scorer, score_id)])
    await _store(family, whole(start, body.value, now()), row, prediction, {"name": scorer.name, "value": body.value})
    return answer({"score_id": score_id})


@router.get(
    "/v2/{entity}/{project}/scores",
    response_model=ScoreReadRes,
    response_class=Lines,
    response_description="One score per line",
)
async def score_list(
    entity: Entity,
    project: Project,
    caller: Reader,
    records: RecordsDep,
    evaluation_run_id: Annotated[str | None, Query()] = None,
    limit: Limit = None,
    offset: Offset = None,
) -> Response:
    """Scores that were made here, oldest first."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    return lines(await family.marked_lines(SCORE, _record, evaluation_run_id, limit, offset))


@router.get("/v2/{entity}/{project}/scores/{score_id}", response_model=ScoreReadRes)
async def score_read(entity: Entity, project: Project, score_id: str, caller: Reader, records: RecordsDep) -> Response:
    """One score, also one that an SDK made."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    call = await family.member(score_id, SCORE, "Score")
    [run] = await family.runs_of([call])
    return answer(_record(call, run))


@router.delete("/v2/{entity}/{project}/scores", response_model=ScoreDeleteRes)
async def score_delete(
    entity: Entity,
    project: Project,
    caller: Writer,
    records: RecordsDep,
    score_ids: Annotated[list[str], Query()],
) -> Response:
    """Delete scores; rows that have ended lose them, feedback stays."""
    family = CallFamily(records, caller, f"{entity}/{project}")
    found = await family.members(score_ids, SCORE)
    await family.delete([call["id"] for call in found])
    for row_id in dict.fromkeys(call["parent_id"] for call in found if call["parent_id"]):
        mine = [call for call in found if call["parent_id"] == row_id and is_marked(call, SCORE)]
        await refresh(family, row_id, {scorer_name(scorer_of(call)) for call in mine})
    return answer({"num_deleted": len(found)})


async def _store(family: CallFamily, score: tuple[Json, Json], row: Json | None, prediction: Json, added: Json) -> None:
    """Store the halves of a score call, with the new end of its row where that has ended."""
    start, end = score
    if row is None:
        await family.write([start], [end])
        return
    async with family.lock(row["id"]):
        row = await family.call(row["id"]) or row
        ends = [end] if row["ended_at"] is None else [end, await ending(family, row, prediction, added)]
        await family.write([start], ends)


def _feedback(family: CallFamily, body: ScoreCreateBody, scorer: refs.Ref, score_id: str) -> Json:
    def call_ref(call_id: str) -> str:
        return refs.to_external(refs.call_ref(family.project, call_id))

    return {
        "weave_ref": call_ref(body.prediction_id),
        "feedback_type": f"wandb.runnable.{scorer.name}",
        "payload": {"output": body.value},
        "runnable_ref": body.scorer,
        "call_ref": call_ref(score_id),
    }


def _record(call: Json, run: str | None) -> Json:
    return {
        "score_id": call["id"],
        "scorer": scorer_of(call),
        "value": 0.0 if call["output"] is None else call["output"],
        "evaluation_run_id": run,
        "wb_user_id": call["wb_user_id"],
    }
