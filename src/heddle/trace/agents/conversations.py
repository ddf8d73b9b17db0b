"""The spans of conversations in short, with what scorers and people said of them."""

from collections.abc import Iterable

import orjson
from fastapi import APIRouter, Response

from heddle.http import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.trace.agents import select
from heddle.trace.agents.answers import AgentConversationSpansRes
from heddle.trace.agents.models import AgentConversationSpansReq
from heddle.trace.agents.view import status
from heddle.trace.feedback.rules import AGENT_MONITOR, AGENT_USER_FEEDBACK, without_tone
from heddle.wire import refs
from heddle.wire.jsontypes import Json

router: APIRouter = group("Agents")

MAX_SPANS = 200


@router.post("/agents/conversations/spans", response_model=AgentConversationSpansRes)
async def agents_conversations_spans(body: AgentConversationSpansReq, caller: Reader, store: StoreDep) -> Response:
    """The newest 200 spans of each conversation, oldest first, and the feedback on it and on its turns."""
    project = caller.open(body.project_id)
    selected = await select.span_filter(store, project, after=body.started_after, before=body.started_before)
    ids = list(dict.fromkeys(body.conversation_ids))
    found = await store.agent_spans.conversations(selected, ids, MAX_SPANS) if ids else {}
    turns = {row["trace_id"]: conversation_id for conversation_id, rows in found.items() for row in rows}
    said = await _feedback(store, project, ids, turns)
    shown = {
        conversation_id: {
            "conversation_id": conversation_id,
            "spans": [_span(row) for row in found.get(conversation_id, ())],
            "spans_feedback": said.get(conversation_id, []),
        }
        for conversation_id in ids
    }
    return answer({"conversations": [shown[conversation_id] for conversation_id in body.conversation_ids]})


async def _feedback(store: Store, project: str, ids: Iterable[str], turns: dict[str, str]) -> dict[str, list[Json]]:
    """Tags and ratings by conversation: those of the conversation itself first, then those of its turns."""
    prefix = f"{refs.INTERNAL}{project}/"
    targets: dict[str, tuple[str, str | None]] = {
        f"{prefix}agent_conversation/{refs.quote_part(conversation_id)}": (conversation_id, None)
        for conversation_id in ids
    }
    targets |= {f"{prefix}agent_turn/{refs.quote_part(turn)}": (turns[turn], turn) for turn in turns}
    rows = await store.feedback.for_refs(project, list(targets))
    found: dict[str, list[Json]] = {}
    for ref, (conversation_id, trace_id) in targets.items():
        for row in rows.get(ref, ()):
            if row["feedback_type"] in (AGENT_USER_FEEDBACK, AGENT_MONITOR):
                found.setdefault(conversation_id, []).append(_marker(row, trace_id))
    return found


def _marker(row: Json, trace_id: str | None) -> Json:
    named = {
        name: orjson.loads(orjson.dumps(row[name]))
        for name in ("scorer_tags", "scorer_ratings", "scorer_rating_reasons", "scorer_rating_confidences")
    }
    reasons, confidences = named["scorer_rating_reasons"], named["scorer_rating_confidences"]
    return {
        "trace_id": trace_id,
        "feedback_type": row["feedback_type"],
        "tags": [without_tone(tag) for tag in named["scorer_tags"] if tag],
        "ratings": [
            {"name": name, "value": value, "reason": reasons.get(name) or None, "confidence": confidences.get(name)}
            for name, value in named["scorer_ratings"].items()
        ],
    }


def _span(row: Json) -> Json:
    return {
        "operation_name": row["operation_name"],
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        "status": status(row["status_code"]),
        "duration_ms": max(0, (row["ended_at"] - row["started_at"]) // 1000),
    }
