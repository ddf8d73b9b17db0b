"""The first prompt and the last answer of conversations, shortened, as a list of conversations shows them."""

from collections.abc import Callable, Sequence

from heddle.store.base import Store
from heddle.store.control.agents.query import SpanFilter
from heddle.trace.agents.messages import full_spans, output_text, user_texts
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_PREVIEW = 280
_TRIES = 6


async def add_previews(store: Store, selected: SpanFilter, groups: Sequence[Json], alias: str) -> None:
    """Fill `first_message` and `last_message` of groups whose key `alias` is a conversation.

    They are looked for in the first and the last few spans of each conversation; without text there they stay null.
    """
    by_id = {key: group for group in groups if (key := group["group_keys"][alias])}
    window = SpanFilter(selected.project, selected.after, selected.before)
    for name, role, last, text_of in (
        ("first_message", "user_message", False, _first_text),
        ("last_message", "assistant_message", True, _last_text),
    ):
        missing = list(by_id)
        for rank in range(1, _TRIES + 1):
            found = await _texts(store, window, missing, rank, last, text_of) if missing else {}
            for conversation_id, text in found.items():
                by_id[conversation_id][name] = {"role": role, "text": text}
            missing = [conversation_id for conversation_id in missing if conversation_id not in found]


async def _texts(
    store: Store,
    selected: SpanFilter,
    conversation_ids: Sequence[str],
    rank: int,
    last: bool,
    text_of: Callable[[AgentSpan], str],
) -> dict[str, str]:
    """What the span at a rank of each conversation says, where it says something."""
    spans = await store.agent_spans.ranked(selected, conversation_ids, rank, last)
    conversation_of = {span_id: conversation_id for conversation_id, span_id in spans}
    found: dict[str, str] = {}
    async for piece in full_spans(store, selected.project, list(conversation_of)):
        for span_id, span in piece.items():
            if text := text_of(span).strip():
                short = text if len(text) <= _PREVIEW else text[:_PREVIEW].rstrip() + "…"
                found[conversation_of[span_id]] = short
    return found


def _first_text(span: AgentSpan) -> str:
    return next(reversed(user_texts(span.input_messages)), "")


def _last_text(span: AgentSpan) -> str:
    return output_text(span.output_messages)
