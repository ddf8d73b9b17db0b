"""/api/public/{scores,ingestion}: scores of traces, observations, sessions and runs, written, read and deleted.

They are feedback: what a scorer said of a call, which filters, charts and training read as any other. A name is a
scorer, made when it is first used. A score of a trace stands at its outermost call, one of a session at the
conversation, one of a run at the evaluation's call.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, TypeAdapter

from heddle.compat.langfuse.access import API, REFUSING, Limit, Page, answer_with, body_api, meta, to_cursor
from heddle.compat.langfuse.stored_scores import (
    FIELDS,
    OF_TEXT,
    DataType,
    DeleteScores,
    ReadScores,
    Score,
    Selection,
    WriteScores,
    check_score,
    compare_number,
)
from heddle.errors import HeddleError, InvalidRequest, TooLarge
from heddle.http.routing import RequestModel, answer, group, off_loop, validate
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Langfuse")
MOST_AT_ONCE = 1000
"""Scores in one request."""
_GROUPS = ("details", "subject", "annotation")
_OPERATORS = {"<": "$lt", ">": "$gt", "<=": "$lte", ">=": "$gte", "=": "$eq"}
_TAKEN = ("trace_id", "observation_id", "session_id", "dataset_run_id", "comment", "metadata", "source", "queue_id")
"""What a score has as it was sent."""


class CreateScore(RequestModel):
    """A score; without a `dataType` a number is NUMERIC and a text CATEGORICAL."""

    id: str | None = Field(default=None, min_length=1, max_length=500)
    name: str = Field(min_length=1, max_length=500)
    value: float | str
    trace_id: str | None = Field(default=None, alias="traceId", min_length=1, max_length=500)
    observation_id: str | None = Field(default=None, alias="observationId", min_length=1, max_length=500)
    session_id: str | None = Field(default=None, alias="sessionId", min_length=1, max_length=500)
    dataset_run_id: str | None = Field(default=None, alias="datasetRunId", min_length=1, max_length=500)
    data_type: DataType | None = Field(default=None, alias="dataType")
    comment: str | None = None
    metadata: Any = None
    environment: str | None = Field(default=None, max_length=200)
    source: Literal["API", "ANNOTATION"] = "API"
    queue_id: str | None = Field(default=None, alias="queueId")
    config_id: str | None = Field(default=None, alias="configId")
    timestamp: datetime | None = None

    def score(self) -> Score:
        """The score; raises InvalidRequest where its parts do not fit together."""
        if self.config_id is not None:
            raise InvalidRequest(
                "configId is not supported: heddle has no score configs; leave it out", param="configId"
            )
        kind: DataType = self.data_type or ("CATEGORICAL" if isinstance(self.value, str) else "NUMERIC")
        value: float | str | bool = self.value
        if kind == "BOOLEAN":
            if value not in (0, 1):
                raise InvalidRequest("value: must be 0 or 1 for a BOOLEAN score", param="value")
            value = bool(value)
        made = Score(
            id=self.id or times.uuid7(),
            name="output" if kind == "CORRECTION" else self.name,
            value=value,
            data_type=kind,
            timestamp=times.to_micros(self.timestamp) if self.timestamp else times.now(),
            environment=self.environment or "default",
            **{name: getattr(self, name) for name in _TAKEN},
        )
        check_score(made)
        return made


_ONE: TypeAdapter[CreateScore] = TypeAdapter(CreateScore)


def read_score(value: Any, at: datetime | None = None) -> Score:
    """The score of a body, of that instant where it tells none; raises HeddleError."""
    given = validate(_ONE, value)
    return (given if given.timestamp is not None else given.model_copy(update={"timestamp": at})).score()


@router.post(
    "/api/public/scores",
    openapi_extra=body_api(CreateScore),
)
async def create_scores(request: Request, scores: WriteScores) -> Response:
    """Store one score, or those of a list that are right; one with the id of another replaces it."""
    body = await request.body()
    given = await off_loop(len(body), lambda: jsontext.loads(body))
    if not isinstance(given, list):
        score = read_score(given)
        await scores.create([score])
        return answer({"id": score.id})
    if len(given) > MOST_AT_ONCE:
        raise TooLarge(f"Request too large: at most {MOST_AT_ONCE} scores are allowed at once, got {len(given)}")
    taken, errors = [], []
    for item in given:
        try:
            taken.append(read_score(item))
        except HeddleError as error:
            errors.append({"message": error.reason})
    await scores.create(taken)
    if errors:
        return answer_with(207, {"accepted": len(taken), "rejected": len(errors), "errors": errors})
    return answer_with(202, {"message": "Accepted"})


@router.delete("/api/public/scores/{score_id:path}", **API)
async def delete_score(score_id: str, scores: DeleteScores) -> Response:
    """Delete a score for good."""
    await scores.delete(score_id)
    return answer_with(202, {"message": "Score deleted"})


@router.get("/api/public/scores/{score_id:path}", **API)
@router.get("/api/public/v2/scores/{score_id:path}", **API)
async def get_score(score_id: str, scores: ReadScores) -> Response:
    """One score."""
    return answer(to_second(await scores.find(score_id), scores.project.id))


@router.get("/api/public/v2/scores", **REFUSING)
async def list_scores(
    scores: ReadScores,
    page: Page = 1,
    limit: Limit = 50,
    name: str | None = None,
    source: str | None = None,
    operator: Literal["<", ">", "<=", ">=", "="] | None = None,
    value: float | None = None,
    environment: Annotated[list[str] | None, Query()] = None,
    score_ids: Annotated[str | None, Query(alias="scoreIds")] = None,
    trace_id: Annotated[str | None, Query(alias="traceId")] = None,
    observation_id: Annotated[str | None, Query(alias="observationId")] = None,
    session_id: Annotated[str | None, Query(alias="sessionId")] = None,
    dataset_run_id: Annotated[str | None, Query(alias="datasetRunId")] = None,
    queue_id: Annotated[str | None, Query(alias="queueId")] = None,
    data_type: Annotated[DataType | None, Query(alias="dataType")] = None,
    from_timestamp: Annotated[datetime | None, Query(alias="fromTimestamp")] = None,
    to_timestamp: Annotated[datetime | None, Query(alias="toTimestamp")] = None,
) -> Response:
    """Scores, the newest first, as SDKs before version 5 read them."""
    if (operator is None) != (value is None):
        raise InvalidRequest("operator and value must be given together", param="operator")
    selection = Selection()
    for key, one in (
        ("name", name), ("source", source), ("traceId", trace_id), ("observationId", observation_id),
        ("sessionId", session_id), ("datasetRunId", dataset_run_id), ("queue_id", queue_id), ("dataType", data_type),
    ):  # fmt: skip
        selection.among(key, None if one is None else [one])
    selection.among("environment", environment)
    selection.among("id", None if score_ids is None else score_ids.split(","))
    if operator is not None:
        selection.number(_OPERATORS[operator], value)
    selection.within("timestamp", from_timestamp, to_timestamp)
    found, total = await scores.query(selection, limit, (page - 1) * limit)
    return answer({"data": [to_second(score, scores.project.id) for score in found], "meta": meta(page, limit, total)})


@router.get("/api/public/v3/scores", **REFUSING)
async def list_scores_by_cursor(
    scores: ReadScores,
    limit: Limit = 50,
    cursor: str | None = None,
    fields: str | None = None,
    id: str | None = None,
    name: str | None = None,
    source: str | None = None,
    environment: str | None = None,
    value: str | None = None,
    data_type: Annotated[str | None, Query(alias="dataType")] = None,
    queue_id: Annotated[str | None, Query(alias="queueId")] = None,
    author: Annotated[str | None, Query(alias="authorUserId")] = None,
    value_min: Annotated[float | None, Query(alias="valueMin")] = None,
    value_max: Annotated[float | None, Query(alias="valueMax")] = None,
    trace_id: Annotated[str | None, Query(alias="traceId")] = None,
    observation_id: Annotated[str | None, Query(alias="observationId")] = None,
    session_id: Annotated[str | None, Query(alias="sessionId")] = None,
    experiment_id: Annotated[str | None, Query(alias="experimentId")] = None,
    from_timestamp: Annotated[datetime | None, Query(alias="fromTimestamp")] = None,
    to_timestamp: Annotated[datetime | None, Query(alias="toTimestamp")] = None,
) -> Response:
    """Scores, the newest first, a page behind the cursor of the one before."""
    groups = _words(fields) or []
    if strange := [word for word in groups if word not in _GROUPS]:
        raise InvalidRequest(f"fields: {strange[0][:100]!r} is not one of {', '.join(_GROUPS)}", param="fields")
    if observation_id is not None and trace_id is None:
        raise InvalidRequest("observationId requires traceId", param="observationId")
    selection, kinds = Selection(), [word.upper() for word in _words(data_type) or ()] or None
    for key, words in (
        ("id", id), ("name", name), ("environment", environment), ("queue_id", queue_id), ("wb_user_id", author),
        ("traceId", trace_id), ("observationId", observation_id), ("sessionId", session_id),
        ("datasetRunId", experiment_id),
    ):  # fmt: skip
        selection.among(key, _words(words))
    selection.among("source", None if source is None else [word.upper() for word in _words(source) or ()])
    selection.among("dataType", kinds)
    _with_value(selection, kinds, _words(value), value_min, value_max)
    selection.within("timestamp", from_timestamp, to_timestamp)
    selection.behind("created_at", cursor)
    found, total = await scores.query(selection, limit, 0)
    more = {"cursor": to_cursor(times.to_iso(found[-1].created_at), found[-1].id)} if found and limit < total else {}
    data = [_third(score, scores.project.id, groups) for score in found]
    return answer({"data": data, "meta": {"limit": limit, **more}})


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",")]


def _with_value(
    selection: Selection, kinds: Sequence[str] | None, values: list[str] | None, low: float | None, high: float | None
) -> None:
    kind = kinds[0] if kinds is not None and len(kinds) == 1 else None
    if (low is not None or high is not None) and kind != "NUMERIC":
        raise InvalidRequest("valueMin and valueMax require dataType=NUMERIC", param="dataType")
    selection.number("$gte", low)
    selection.number("$lte", high)
    if values is None:
        return
    if kind == "NUMERIC":
        try:
            numbers = [float(word) for word in values]
        except ValueError:
            raise InvalidRequest(f"value: {values[0][:100]!r} is not a number", param="value") from None
        selection.conditions.append({"$or": [compare_number("$eq", number) for number in numbers]})
    elif kind == "BOOLEAN":
        if not {"true", "false"}.issuperset(values):
            raise InvalidRequest("value: must be true or false for a BOOLEAN score", param="value")
        selection.among("output", [word == "true" for word in values])
    elif kind == "CATEGORICAL":
        selection.among("output", values)
    else:
        raise InvalidRequest("value requires one dataType: NUMERIC, BOOLEAN or CATEGORICAL", param="dataType")


def _head(score: Score, project_id: str) -> Json:
    created = times.to_iso(score.created_at)
    named = {name: getattr(score, FIELDS[name]) for name in ("name", "dataType", "source", "environment")}
    stamps = {"timestamp": times.to_iso(score.timestamp), "createdAt": created, "updatedAt": created}
    return {"id": score.id, "projectId": project_id, **named, **stamps}


def to_second(score: Score, project_id: str) -> Json:
    """A score of the second version: a number always, and the text or word beside it."""
    value, word = score.value, {}
    if score.data_type in OF_TEXT:
        value, word = 0, {"stringValue": score.value}
    elif score.data_type == "BOOLEAN":
        value, word = int(bool(value)), {"stringValue": str(bool(value))}
    return {
        **{shown: getattr(score, name) for shown, name in FIELDS.items()},
        **_head(score, project_id),
        "value": value,
        **word,
        "metadata": score.metadata if isinstance(score.metadata, dict) else {},
        "authorUserId": score.author,
        "configId": None,
        "queueId": score.queue_id,
    }


def _third(score: Score, project_id: str, groups: Sequence[str]) -> Json:
    """A score of the third version: the value in its own type, more on request."""
    found = {**_head(score, project_id), "value": score.value}
    if "details" in groups:
        found |= {"comment": score.comment, "configId": None, "metadata": score.metadata}
    if "annotation" in groups:
        found |= {"authorUserId": score.author, "queueId": score.queue_id}
    if "subject" in groups:
        found["subject"] = _subject(score)
    return found


def _subject(score: Score) -> Json:
    if score.observation_id:
        return {"kind": "observation", "id": score.observation_id, "traceId": score.trace_id}
    kind, key = (
        ("trace", score.trace_id)
        if score.trace_id
        else ("experiment", score.dataset_run_id)
        if score.dataset_run_id
        else ("session", score.session_id)
    )
    return {"kind": kind, "id": key}


SCORE = "score-create"


class Event(RequestModel):
    """An event of an instant; the body is that of its type."""

    id: str = Field(min_length=1, max_length=500)
    type: str
    timestamp: datetime | None = None
    body: Any = None


class Batch(RequestModel):
    """Events, each stored or refused for itself, and what the SDK tells of itself."""

    batch: list[Event]
    metadata: Any = None


@router.post("/api/public/ingestion", status_code=207, **API)
async def ingest(body: Batch, scores: WriteScores) -> Response:
    """Store the scores of a batch; other events are refused, each with what to use instead."""
    if len(body.batch) > MOST_AT_ONCE:
        raise TooLarge(f"Request too large: at most {MOST_AT_ONCE} events are allowed at once")
    taken, stored, errors = [], [], []
    for event in body.batch:
        try:
            if event.type != SCORE:
                raise InvalidRequest(
                    f"{event.type[:100]!r} is not supported here; send spans to /api/public/otel/v1/traces, as "
                    "SDKs since version 3 do"
                )
            taken.append(read_score(event.body, event.timestamp))
            stored.append({"id": event.id, "status": 201})
        except HeddleError as error:
            errors.append({"id": event.id, "status": 400, "message": error.reason, "error": "InvalidRequestError"})
    await scores.create(taken)
    return answer_with(207, {"successes": stored, "errors": errors})
