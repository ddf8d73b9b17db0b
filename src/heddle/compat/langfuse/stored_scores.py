"""Scores as feedback of the trace: what a scorer said of a trace, an observation, a session or a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from fastapi import Depends

from heddle.auth import Scope
from heddle.compat.langfuse.access import Conditions, OfProject, OfProjectStore, object_id
from heddle.errors import InvalidRequest, NotFound
from heddle.store.control.row_queries import RowRequest, Sort
from heddle.trace.feedback.models import RUNNABLE, FeedbackCreateReq
from heddle.trace.feedback.roots import CREATOR, find_roots, move, waiting_ref
from heddle.trace.feedback.routes import prepare
from heddle.trace.records import lenient
from heddle.wire import query, refs, times
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
        if name in ("id", "created_at", "queue_id", "wb_user_id"):
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
        raise InvalidRequest(f"value: must be a string for a {score.data_type} score", param="value")
    if score.data_type not in OF_TEXT and isinstance(score.value, str):
        raise InvalidRequest(f"value: must be a number for a {score.data_type} score", param="value")
    if score.observation_id and not score.trace_id:
        raise InvalidRequest("observationId requires traceId", param="traceId")
    if not (score.trace_id or score.session_id or score.dataset_run_id):
        raise InvalidRequest("A score requires a traceId, a sessionId or a datasetRunId", param="traceId")


ReadScores = Annotated[StoredScores, Depends(OfProject(Scope.READ, StoredScores))]
WriteScores = Annotated[StoredScores, Depends(OfProject(Scope.ANNOTATE, StoredScores))]
DeleteScores = Annotated[StoredScores, Depends(OfProject(Scope.DELETE, StoredScores))]
