"""The feedback routes: create, replace, query, purge, and the figures over feedback."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Response

from heddle.auth import Caller
from heddle.http.routing import Admin, Annotator, Empty, Reader, SettingsDep, StoreDep, answer, group, local, off_loop
from heddle.store.base import Store
from heddle.store.control.feedback import SPANS, STRUCTURES
from heddle.trace.feedback import models
from heddle.trace.feedback.models import (
    FeedbackAggregateReq,
    FeedbackAggregateRes,
    FeedbackBatchCreateReq,
    FeedbackBatchCreateRes,
    FeedbackCreateReq,
    FeedbackCreateRes,
    FeedbackPayloadSchemaReq,
    FeedbackPayloadSchemaRes,
    FeedbackPurgeReq,
    FeedbackQueryReq,
    FeedbackQueryRes,
    FeedbackReplaceReq,
    FeedbackStatsReq,
    FeedbackStatsRes,
)
from heddle.trace.feedback.stats import PayloadStats, ScoreAggregate, find_payload_paths
from heddle.trace.rows import answer_rows, purge_ids
from heddle.wire import jsontext, times

_AT_ONCE = 100
"""Rows after which others have their turn."""
router = group("Feedback")

PURGE_MESSAGE = "Can only purge feedback by specifying one or more feedback ids"

Row = dict[str, Any]


@router.post("/feedback/create", response_model=FeedbackCreateRes)
async def feedback_create(body: FeedbackCreateReq, caller: Annotator, store: StoreDep) -> Response:
    """Store one row; one with the same id is replaced."""
    rows = await prepare([body], caller, store)
    await store.feedback.create(rows)
    return answer(_created(rows[0]))


@router.post("/feedback/batch/create", response_model=FeedbackBatchCreateRes)
async def feedback_batch_create(body: FeedbackBatchCreateReq, caller: Annotator, store: StoreDep) -> Response:
    """Store rows; one that is refused fails them all."""
    rows = await prepare(body.batch, caller, store)
    await store.feedback.create(rows)
    return answer({"res": await asyncio.to_thread(lambda: [_created(row) for row in rows])})


@router.post("/feedback/replace", response_model=FeedbackCreateRes)
async def feedback_replace(body: FeedbackReplaceReq, caller: Annotator, store: StoreDep) -> Response:
    """Store a row in place of another, which need not exist; a refused row leaves the other as it was."""
    rows = await prepare([body], caller, store)
    await store.feedback.create(rows, replaced=(rows[0]["project"], body.feedback_id, caller.user))
    return answer(_created(rows[0]))


@router.post("/feedback/query", response_model=FeedbackQueryRes)
@local
async def feedback_query(body: FeedbackQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The rows that match, oldest first."""
    project = caller.open(body.project_id)
    selected = await store.feedback.query(project, body.selection(settings, body.fields))
    return answer_rows("result", selected, total_count=selected.total)


@router.post("/feedback/purge", response_model=Empty)
async def feedback_purge(body: FeedbackPurgeReq, caller: Admin, store: StoreDep) -> Response:
    """Delete rows by their ids, for good."""
    project = caller.open(body.project_id)
    await store.feedback.purge(project, purge_ids(body.query, PURGE_MESSAGE, lists=False), caller.user)
    return answer({})


@router.post("/feedback/stats", response_model=FeedbackStatsRes)
async def feedback_stats(body: FeedbackStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Figures over payload values, in time buckets and over the whole range."""
    project = caller.open(body.project_id)
    window = body.window()
    stats = PayloadStats(body, window)
    if body.metrics:
        await store.feedback.scan(project, window, ("created_at", "payload"), stats.take)
    return await off_loop(stats.size, lambda: answer(stats.answer()))


@router.post("/feedback/payload_schema", response_model=FeedbackPayloadSchemaRes)
async def feedback_payload_schema(body: FeedbackPayloadSchemaReq, caller: Reader, store: StoreDep) -> Response:
    """Which values the payloads hold, seen in the newest payload of each trigger."""
    project = caller.open(body.project_id)
    payloads = await store.feedback.newest_payloads(project, body.window(), body.sample_limit)
    return answer({"paths": find_payload_paths(payloads)})


@router.post("/feedback/aggregate", response_model=FeedbackAggregateRes)
async def feedback_aggregate(body: FeedbackAggregateReq, caller: Reader, store: StoreDep) -> Response:
    """Tags and ratings of scorers, counted and summed by time and dimension."""
    project = caller.open(body.project_id)
    aggregate = ScoreAggregate(body)
    await store.feedback.scan(project, aggregate.window, aggregate.columns, aggregate.take)
    return answer(aggregate.answer())


async def prepare(items: Sequence[FeedbackCreateReq], caller: Caller, store: Store) -> list[Row]:
    """The rows to store; raises InvalidRequest for the first item that breaks a rule."""
    projects = {project_id: caller.open(project_id) for project_id in {item.project_id for item in items}}
    for number, item in enumerate(items, 1):
        models.check_feedback(item, projects[item.project_id])
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    await _check_annotations(items, projects, store)

    def rows() -> list[Row]:
        payloads = [models.dump_payload(item) for item in items]
        # Counted up to this instant, so that the order of a batch is the order of its times.
        first = times.now() - len(items) + 1
        return [
            _row(item, projects[item.project_id], payload, caller.user, first + index)
            for index, (item, payload) in enumerate(zip(items, payloads, strict=True))
        ]

    return await asyncio.to_thread(rows) if len(items) > _AT_ONCE else rows()


async def _check_annotations(items: Sequence[FeedbackCreateReq], projects: dict[str, str], store: Store) -> None:
    for project_id, project in projects.items():
        annotations = [item for item in items if item.project_id == project_id and item.annotation_ref]
        wanted = sorted({item.annotation_ref for item in annotations if item.annotation_ref})
        specs = await store.objects.values(project, wanted) if wanted else {}
        for number, item in enumerate(annotations, 1):
            await models.check_annotation_value(item, specs.get(item.annotation_ref or ""))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)


def _row(item: FeedbackCreateReq, project: str, payload: str, user: str, at: int) -> Row:
    named = ("weave_ref", "feedback_type", "creator", "annotation_ref", "runnable_ref", "call_ref", "trigger_ref")
    row: Row = {"id": item.id or times.uuid7(), "project": project, "payload": payload, "created_at": at}
    row |= {"wb_user_id": user, "queue_id": item.queue_id}
    row |= {name: getattr(item, name) for name in (*named, *SPANS)}
    return row | {name: jsontext.dumps(getattr(item, name)) for name in STRUCTURES}


def _created(row: Row) -> Row:
    return {
        "id": row["id"],
        "created_at": times.to_iso(row["created_at"]),
        "wb_user_id": row["wb_user_id"],
        "payload": orjson.Fragment(row["payload"]),
    }
