"""The replay routes: start one, read it, show originals and answers side by side, make a dataset of both."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.evals.jobs import JobsDep
from heddle.evals.objects import ObjectReader, find_calls, is_ref
from heddle.evals.replay.chats import Chat, read_answer, read_chat
from heddle.evals.replay.job import KIND, ReplayJobs, answer_id, read_changes
from heddle.evals.replay.schemas import (
    ReplayCreateReq,
    ReplayCreateRes,
    ReplayDatasetReq,
    ReplayDatasetRes,
    ReplayQueryReq,
    ReplayQueryRes,
    ReplayReq,
    ReplayRes,
    ReplayResultsReq,
    ReplayResultsRes,
    ReplaySchema,
    ReplaySide,
)
from heddle.evals.scorers import read_scorers
from heddle.http.routing import Reader, RecordsDep, Service, StoreDep, Writer, answer, describe_row, group
from heddle.store.control.coordination import FAILED
from heddle.store.control.eval_jobs import REPLAYED, SKIPPED, JobRow, ReplayItem
from heddle.wire.call_summary import cost_of
from heddle.wire.calls import tokens_of
from heddle.wire.jsontypes import Json
from heddle.wire.records import Call, Records, publish_dataset

ReplaysDep = Annotated[ReplayJobs, Depends(Service("replays"))]
router: APIRouter = group("Replays")
_COLUMNS = ["inputs", "output", "attributes", "summary", "exception", "ended_at"]
_RUNNABLE = "wandb.runnable."
_AT_ONCE = 500


@router.post("/replays/create", response_model=ReplayCreateRes)
async def create(
    body: ReplayCreateReq, caller: Writer, store: StoreDep, records: RecordsDep, jobs: JobsDep
) -> Response:
    """Run stored chats again with another model, prompt or parameters; answers as soon as the job is stored."""
    caller.open(body.project_id)
    reader = ObjectReader(store, caller)
    made = body.model_dump(exclude={"project_id"}, exclude_none=True)
    made["scorer_refs"] = [scorer.ref for scorer in await read_scorers(reader, body.scorer_refs, "The replay has")]
    await read_changes(reader, body)
    for name in ("model", "prompt"):
        if is_ref(made.get(name)):
            made[name] = (await reader.read(made[name], f"The {name}")).ref
    # One call is read as the job will, so that a field that cannot be used is refused now.
    async for _ in records.read_calls(caller, body.project_id, **body.chosen, limit=1, columns=["id"]):
        break
    return answer({"id": (await jobs.submit(KIND, caller, body.project_id, made)).id})


@router.post("/replays/query", response_model=ReplayQueryRes)
async def query(body: ReplayQueryReq, caller: Reader, jobs: JobsDep, replays: ReplaysDep) -> Response:
    """The replays of a project, newest first."""
    caller.open(body.project_id)
    rows = await jobs.query(body.project_id, [KIND], body.states, body.limit, body.offset)
    return answer({"replays": [await _replay(row, replays) for row in rows]})


@router.post("/replays/read", response_model=ReplayRes)
async def read(body: ReplayReq, caller: Reader, jobs: JobsDep, replays: ReplaysDep) -> Response:
    """State and counts of a replay."""
    return answer({"replay": await _replay(await jobs.find(caller, body.project_id, body.id, KIND, "replay"), replays)})


@router.post("/replays/results", response_model=ReplayResultsRes)
async def results(
    body: ReplayResultsReq, caller: Reader, store: StoreDep, records: RecordsDep, jobs: JobsDep
) -> Response:
    """Originals and replayed answers side by side: text, scores, cost, latency and tokens of both."""
    await jobs.find(caller, body.project_id, body.id, KIND, "replay")
    counts = await store.replays.counts(body.id)
    total = sum(number for outcome, number in counts.items() if body.outcomes is None or outcome in body.outcomes)
    items = await store.replays.page(body.id, body.outcomes, body.limit, body.offset)
    pairs = await _find_pairs(records, caller, body.project_id, items)
    return answer({"rows": [_row(item, source, answered) for item, source, answered in pairs], "total": total})


@router.post("/replays/cancel", response_model=ReplayRes)
async def cancel(body: ReplayReq, caller: Writer, jobs: JobsDep, replays: ReplaysDep) -> Response:
    """End a replay; what was answered stays."""
    caller = caller.require(Scope.READ)
    await jobs.find(caller, body.project_id, body.id, KIND, "replay")
    return answer({"replay": await _replay(await jobs.cancel(body.project_id, body.id), replays)})


@router.post("/replays/dataset", response_model=ReplayDatasetRes)
async def dataset(
    body: ReplayDatasetReq, caller: Writer, store: StoreDep, records: RecordsDep, jobs: JobsDep
) -> Response:
    """Publish the calls of a replay with both answers and their scores as a dataset."""
    caller = caller.require(Scope.READ)
    await jobs.find(caller, body.project_id, body.id, KIND, "replay")
    items = await store.replays.page(body.id, body.outcomes, None, 0)
    if not items:
        raise InvalidRequest(f"The replay {body.id} has no calls with the outcome {', '.join(body.outcomes)}")
    rows: list[Json] = []
    for start in range(0, len(items), _AT_ONCE):
        calls = await _find_pairs(records, caller, body.project_id, items[start : start + _AT_ONCE])
        rows += [_dataset_row(item, source, answered) for item, source, answered in calls]
    named = {"name": body.name, "description": body.description}
    made, _ = await publish_dataset(records, caller, body.project_id, body.name, rows, **named)
    return answer({**asdict(made), "rows": len(rows)})


async def _replay(job: JobRow, replays: ReplayJobs) -> Json:
    request = dict(job.body)
    name = request.pop("name", None)
    counts, scoring = await replays.counts(job.id), await replays.scoring(job)
    return describe_row(ReplaySchema, job, name=name, request=request, counts=counts, **scoring)


async def _find_pairs(
    records: Records, caller: Caller, project_id: str, items: Sequence[ReplayItem]
) -> list[tuple[ReplayItem, Call | None, Call | None]]:
    """Each item with its call and the replay of that, as far as they are there."""
    answers = {item.place: answer_id(item.replay_id, item.place) for item in items}
    wanted = [*(item.call_id for item in items), *answers.values()]
    more = {"include_costs": True, "include_feedback": True}
    calls = await find_calls(records, caller, project_id, wanted, _COLUMNS, **more)
    return [(item, calls.get(item.call_id), calls.get(answers[item.place])) for item in items]


def _row(item: ReplayItem, source: Call | None, answered: Call | None) -> Json:
    """A call and its replay, side by side."""
    gone = [] if source or item.outcome == SKIPPED else ["the recorded call was deleted"]
    if item.outcome in (REPLAYED, FAILED) and answered is None:
        gone.append("the new call was deleted")
    return {
        "place": item.place,
        "outcome": item.outcome,
        "reason": "; ".join(filter(None, (item.reason, *gone))) or None,
        "original": _side(item.call_id, source),
        "replay": _side(answered.id, answered) if answered else None,
    }


def _side(call_id: str, call: Call | None) -> Json:
    if call is None:
        return dict.fromkeys(ReplaySide.model_fields) | {"call_id": call_id, "scores": {}}
    weave = call.summary.get("weave") or {}
    return {
        "call_id": call_id,
        "trace_id": call.trace_id,
        "op_name": call.op_name,
        "model": call.inputs.get("model") or call.attributes.get("model"),
        "status": weave.get("status"),
        "answer": read_answer(call.output),
        "output": call.output,
        "exception": call.exception,
        "latency_ms": weave.get("latency_ms"),
        "total_tokens": tokens_of(call.summary) if call.summary.get("usage") else None,
        "total_cost": cost_of(weave.get("costs")),
        "scores": _newest_scores(weave.get("feedback") or ()),
    }


def _newest_scores(feedback: Sequence[Any]) -> Json:
    """The newest score of each scorer."""
    found: Json = {}
    for item in sorted(feedback, key=lambda item: str(item["created_at"])):
        if item["feedback_type"].startswith(_RUNNABLE):
            found[item["feedback_type"].removeprefix(_RUNNABLE)] = (item["payload"] or {}).get("output")
    return found


def _dataset_row(item: ReplayItem, source: Call | None, answered: Call | None) -> Json:
    """A row of the dataset: what was asked, both answers and their scores, and where they come from."""
    shown = _row(item, source, answered)
    original, replay = shown["original"], shown["replay"]
    chat = read_chat(source.inputs, source.attributes) if source else None
    made: Json = {
        "inputs": source.inputs if source else None,
        "messages": chat.messages if isinstance(chat, Chat) else None,
        "original_output": original["answer"] if original["answer"] is not None else original["output"],
        "replayed_output": replay["answer"] if replay else None,
        "original_model": original["model"],
        "replayed_model": replay["model"] if replay else None,
        "original_scores": original["scores"],
        "replayed_scores": replay["scores"] if replay else {},
        "source_call_id": original["call_id"],
        "replayed_call_id": replay["call_id"] if replay else None,
    }
    return made | ({"reason": shown["reason"]} if shown["reason"] else {})
