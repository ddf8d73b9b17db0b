"""/api/public/ingestion: batches of events, as SDKs before version 5 send scores; spans come over OpenTelemetry."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from heddle.compat.langfuse.access import API
from heddle.compat.langfuse.pages import answer_with
from heddle.compat.langfuse.scores import MOST_AT_ONCE, read_score
from heddle.compat.langfuse.stored_scores import WriteScores
from heddle.errors import HeddleError, InvalidRequest, TooLarge
from heddle.http.routing import RequestModel, group

router: APIRouter = group("Langfuse")
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
