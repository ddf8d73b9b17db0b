"""/api/public/{scores,ingestion}: scores of traces, observations, sessions and runs, written, read and deleted.

They are feedback: what a scorer said of a call, which filters, charts and training read as any other. A name is a
scorer, made when it is first used. A score of a trace stands at its outermost call, one of a session at the
conversation, one of a run at the evaluation's call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field, TypeAdapter

from heddle.auth import Scope
from heddle.compat.langfuse.access import (
    API,
    REFUSING,
    Conditions,
    Limit,
    OfProject,
    OfProjectStore,
    Page,
    answer_with,
    body_api,
    meta,
    object_id,
    offset_of,
    to_cursor,
)
from heddle.errors import HeddleError, InvalidRequest, NotFound, TooLarge
from heddle.http.routing import RequestModel, answer, group, off_loop, validate
from heddle.store.control.row_queries import RowRequest, Sort
from heddle.trace.feedback.models import RUNNABLE, FeedbackCreateReq
from heddle.trace.feedback.roots import CREATOR, find_roots, move, waiting_ref
from heddle.trace.feedback.routes import prepare
from heddle.trace.records import lenient
from heddle.wire import jsontext, query, refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import object_value

DataType = Literal["NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION"]
OF_TEXT = ("CATEGORICAL", "TEXT", "CORRECTION")
_OWN = "payload.langfuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One score; `value` is a number, a text, or true and false for BOOLEAN; instants in microseconds."""

    id: str
    name: str
    value: float | str | bool
    data_type: DataType
    timestamp: int
    trace_id: str | None = None
    observation_id: str | None = None
    session_id: str | None = None
    dataset_run_id: str | None = None
    comment: str | None = None
    metadata: Any = None
    environment: str = "default"
    source: str = "API"
    queue_id: str | None = None
    author: str | None = None
    created_at: int = 0

    def payload(self) -> Json:
        """What is stored: the value as that of any scorer, and what only Langfuse has."""
        own = {shown: getattr(self, name) for shown, name in FIELDS.items()} | {
            "timestamp": times.to_iso(self.timestamp)
        }
        return {"output": self.value, "langfuse": {name: value for name, value in own.items() if value is not None}}

    @classmethod
    def of(cls, row: Json) -> "Score":
        """The score of a stored row."""
        payload = orjson.loads(orjson.dumps(row["payload"]))
        own, created_at = payload["langfuse"], times.parse(row["created_at"]) or 0
        return cls(
            **{name: own.get(shown) for shown, name in FIELDS.items()},
            id=row["id"],
            value=payload["output"],
            timestamp=times.parse(own["timestamp"]) or created_at,
            queue_id=row.get("queue_id"),
            author=row.get("wb_user_id"),
            created_at=created_at,
        )


FIELDS = {
    "name": "name",
    "dataType": "data_type",
    "traceId": "trace_id",
    "observationId": "observation_id",
    "sessionId": "session_id",
    "datasetRunId": "dataset_run_id",
    "comment": "comment",
    "metadata": "metadata",
    "environment": "environment",
    "source": "source",
}
"""Fields of the payload, and of a score."""


def compare_number(operator: str, value: float) -> Json:
    """The condition that the value of a score is a number that compares so."""
    number = {"$convert": {"input": {"$getField": "payload.output"}, "to": "double"}}
    return {operator: [number, {"$literal": value}]}


@dataclass(slots=True)
class Selection(Conditions):
    """Which scores; a field is one of the payload, or a column."""

    def path(self, name: str) -> str:
        """Where the field of a name lies."""
        if name in ("id", "queue_id", "wb_user_id"):
            return name
        return "payload.output" if name == "output" else f"{_OWN}.{name}"

    def number(self, operator: str, value: float | None) -> None:
        """The value is a number that compares so; None is no condition."""
        if value is not None:
            self.conditions.append(compare_number(operator, value))


class StoredScores(OfProjectStore):
    """The scores of one project, for one caller."""

    async def create(self, scores: Sequence[Score]) -> None:
        """Store scores in one commit; one with the id of another replaces it. Raises InvalidRequest."""
        if not scores:
            return
        project, caller = self.project, self.project.caller
        traces = [score.trace_id for score in scores if score.trace_id and not score.observation_id]
        roots = await find_roots(self._store, project.internal, traces) if traces else {}
        scorers = {name: await self._scorer(name) for name in dict.fromkeys(score.name for score in scores)}
        items = [self._feedback(score, roots, scorers[score.name]) for score in scores]
        # What a key that only writes refers to is read for it.
        rows = await prepare(items, caller.with_scope(Scope.READ), self._store)
        await self._store.feedback.create(rows)
        if waiting := [trace_id for trace_id in traces if trace_id not in roots]:
            # The outermost call may have come meanwhile.
            come = await find_roots(self._store, project.internal, waiting)
            targets = {waiting_ref(project.internal, trace_id): ref for trace_id, ref in come.items()}
            if targets:
                await move(self._store, project.internal, targets)

    async def query(self, selection: Selection, limit: int, offset: int) -> tuple[list[Score], int]:
        """A page of scores, the newest first, and how many there are."""
        of_scorer = {"input": {"$getField": "feedback_type"}, "substr": {"$literal": f"{RUNNABLE}."}}
        mine = [{"$eq": [{"$getField": "creator"}, {"$literal": CREATOR}]}, {"$contains": of_scorer}]
        parsed = query.parse_query({"$expr": {"$and": [*mine, *selection.conditions]}})
        assert isinstance(parsed, query.And)
        sort = (Sort("created_at", True), Sort("id", True))
        found = await self._store.feedback.query(self.project.internal, RowRequest(None, parsed, sort, limit, offset))
        return [Score.of(row) for row in found.rows], found.total

    async def find(self, score_id: str) -> Score:
        """One score; raises NotFound."""
        selection = Selection()
        selection.equals("id", score_id)
        found, _ = await self.query(selection, 1, 0)
        if not found:
            raise NotFound(f"Score not found: '{score_id[:200]}'")
        return found[0]

    async def delete(self, score_id: str) -> None:
        """Delete a score for good; raises NotFound."""
        await self.find(score_id)
        await self._store.feedback.purge(self.project.internal, [score_id], self.project.caller.user)

    def _feedback(self, score: Score, roots: dict[str, str], scorer: refs.Ref) -> FeedbackCreateReq:
        payload = lenient(score.payload(), self.project.caller)
        return FeedbackCreateReq(
            id=score.id,
            project_id=self.project.id,
            weave_ref=self._target(score, roots),
            creator=CREATOR,
            feedback_type=f"{RUNNABLE}.{scorer.name}",
            payload=payload,
            runnable_ref=refs.object_ref(self.project.internal, "object", scorer.name, scorer.version),
            queue_id=score.queue_id,
            span_trace_id=score.trace_id or "",
            span_conversation_id=score.session_id or "",
        )

    def _target(self, score: Score, roots: dict[str, str]) -> str:
        project = self.project.internal
        if score.observation_id:
            return refs.call_ref(project, score.observation_id)
        if score.trace_id:
            return roots.get(score.trace_id) or waiting_ref(project, score.trace_id)
        if score.dataset_run_id:
            return refs.call_ref(project, score.dataset_run_id)
        return f"{refs.INTERNAL}{project}/agent_conversation/{refs.quote_part(score.session_id or '')}"

    async def _scorer(self, name: str) -> refs.Ref:
        """The scorer of a name; made where nothing has its name."""
        place = object_id(name)
        found = await self._store.objects.read(self.project.internal, place, "latest", with_value=False)
        if found is not None and found.kind != "object":
            place = object_id(f"{name} score")
            found = await self._store.objects.read(self.project.internal, place, "latest", with_value=False)
        if found is None or found.deleted_at is not None:
            value = object_value("Scorer", name=name, description="Scores that clients of Langfuse send")
            # Who may only annotate may send the first score of a name, too.
            caller = self.project.caller.with_scope(Scope.WRITE)
            made = await self._records.publish(caller, self.project.id, place, value)
            return refs.parse(made.ref)
        return refs.parse(refs.object_ref(self.project.internal, "object", place, found.digest))


def check_score(score: Score) -> None:
    """Raise InvalidRequest where value, type and subject do not fit together."""
    if score.data_type in OF_TEXT and not isinstance(score.value, str):
        raise InvalidRequest(f"value: a {score.data_type} score has a text", param="value")
    if score.data_type not in OF_TEXT and isinstance(score.value, str):
        raise InvalidRequest(f"value: a {score.data_type} score has a number", param="value")
    if score.observation_id and not score.trace_id:
        raise InvalidRequest("observationId: a score of an observation needs its traceId", param="traceId")
    if not (score.trace_id or score.session_id or score.dataset_run_id):
        raise InvalidRequest("A score needs a traceId, a sessionId or a datasetRunId", param="traceId")


ReadScores = Annotated[StoredScores, Depends(OfProject(Scope.READ, StoredScores))]
WriteScores = Annotated[StoredScores, Depends(OfProject(Scope.ANNOTATE, StoredScores))]
DeleteScores = Annotated[StoredScores, Depends(OfProject(Scope.DELETE, StoredScores))]


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
            raise InvalidRequest("configId: heddle has no score configs; leave it out", param="configId")
        kind: DataType = self.data_type or ("CATEGORICAL" if isinstance(self.value, str) else "NUMERIC")
        value: float | str | bool = self.value
        if kind == "BOOLEAN":
            if value not in (0, 1):
                raise InvalidRequest("value: a BOOLEAN score is 0 or 1", param="value")
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
        raise TooLarge(f"Request too large: at most {MOST_AT_ONCE} scores are taken at once, these are {len(given)}")
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


@router.delete("/api/public/scores/{score_id}", **API)
async def delete_score(score_id: str, scores: DeleteScores) -> Response:
    """Delete a score for good."""
    await scores.delete(score_id)
    return answer_with(202, {"message": "Score deleted"})


@router.get("/api/public/scores/{score_id}", **API)
@router.get("/api/public/v2/scores/{score_id}", **API)
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
        raise InvalidRequest("operator and value belong together", param="operator")
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
        raise InvalidRequest(f"fields: {strange[0][:100]!r} is none of {', '.join(_GROUPS)}", param="fields")
    if observation_id is not None and trace_id is None:
        raise InvalidRequest("observationId needs traceId", param="observationId")
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
    offset = offset_of(cursor)
    found, total = await scores.query(selection, limit, offset)
    more = {"cursor": to_cursor(offset + limit)} if offset + limit < total else {}
    data = [_third(score, scores.project.id, groups) for score in found]
    return answer({"data": data, "meta": {"limit": limit, **more}})


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",")]


def _with_value(
    selection: Selection, kinds: Sequence[str] | None, values: list[str] | None, low: float | None, high: float | None
) -> None:
    kind = kinds[0] if kinds is not None and len(kinds) == 1 else None
    if (low is not None or high is not None) and kind != "NUMERIC":
        raise InvalidRequest("valueMin and valueMax need dataType=NUMERIC", param="dataType")
    selection.number("$gte", low)
    selection.number("$lte", high)
    if values is None:
        return
    if kind == "NUMERIC":
        try:
            numbers = [float(word) for word in values]
        except ValueError:
            raise InvalidRequest(f"value: {values[0][:100]!r} is no number", param="value") from None
        selection.conditions.append({"$or": [compare_number("$eq", number) for number in numbers]})
    elif kind == "BOOLEAN":
        if not {"true", "false"}.issuperset(values):
            raise InvalidRequest("value: a BOOLEAN score is true or false", param="value")
        selection.among("output", [word == "true" for word in values])
    elif kind == "CATEGORICAL":
        selection.among("output", values)
    else:
        raise InvalidRequest("value needs one dataType: NUMERIC, BOOLEAN or CATEGORICAL", param="dataType")


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
        raise TooLarge(f"Request too large: at most {MOST_AT_ONCE} events are taken at once")
    taken, stored, errors = [], [], []
    for event in body.batch:
        try:
            if event.type != SCORE:
                raise InvalidRequest(
                    f"heddle takes no {event.type[:100]!r} here: spans come by /api/public/otel/v1/traces, which SDKs "
                    "since version 3 use"
                )
            taken.append(read_score(event.body, event.timestamp))
            stored.append({"id": event.id, "status": 201})
        except HeddleError as error:
            errors.append({"id": event.id, "status": 400, "message": error.reason, "error": "InvalidRequestError"})
    await scores.create(taken)
    return answer_with(207, {"successes": stored, "errors": errors})
