"""Agent spans and their messages: as answers show them, as text, and rebuilt from the dumps that calls keep."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import orjson

from heddle.store.base import Store
from heddle.store.control.agents.fields import COSTS
from heddle.store.control.agents.table import CUSTOM, MORE_LISTS, MORE_NUMBERS, MORE_TEXTS, TEXTS, TOKENS
from heddle.trace.otel.reading import from_dump
from heddle.trace.otel.span import KINDS, STATUS_CODES
from heddle.wire import jsontext, times
from heddle.wire.aggregates import Value
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

SLICE = 128
_FEW = 8
CONTEXT_ROLES = frozenset(("assistant", "system", "developer", "tool", "tool_call", "tool_result", "model"))
"""Roles whose messages are no prompt of a user."""
_SAID = frozenset(("text", "refusal"))
_MEDIA = frozenset(("uri", "blob", "file"))


def normalized(messages: Iterable[Json]) -> list[Json]:
    """Messages as answers show them: `{role, content, finish_reason}`; content is text, or its parts as JSON text."""
    return [
        {
            "role": message.get("role") or "",
            "content": content_of(message),
            "finish_reason": message.get("finish_reason") or "",
        }
        for message in messages
    ]


def content_of(message: Json) -> str:
    """The content of a message: the text when it has no other parts, else all parts as JSON text."""
    parts = _parts(message)
    if all(part.get("type") in _SAID and isinstance(part.get("content"), str) for part in parts):
        return "\n".join(part["content"] for part in parts)
    return jsontext.dumps(parts)


def text_of(message: Json) -> str:
    """What a message says: the texts of its parts, without reasoning, tool calls and media."""
    texts = [part.get("content") for part in _parts(message) if part.get("type") in _SAID]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def tool_calls_of(messages: Iterable[Json]) -> list[Json]:
    """The parts of messages by which a model calls tools."""
    return [part for message in messages for part in _parts(message) if part.get("type") == "tool_call"]


def media_of(messages: Iterable[Json], content_refs: Sequence[str]) -> list[str]:
    """Those of a span's content refs that media parts of the messages name; both end in the content's digest."""
    named = {
        part["uri"].rpartition(":")[2]
        for message in messages
        for part in _parts(message)
        if part.get("type") in _MEDIA and isinstance(part.get("uri"), str) and part["uri"]
    }
    return [ref for ref in content_refs if ref.rpartition(":")[2] in named] if named else []


def user_texts(messages: Sequence[Json]) -> list[str]:
    """The texts of a user among input messages; of unknown roles where none is named so."""
    texts = [text_of(message) for message in messages if message.get("role") == "user"]
    if not any(texts):
        texts = [text_of(message) for message in messages if message.get("role") not in CONTEXT_ROLES]
    return [text for text in texts if text]


def output_text(messages: Sequence[Json]) -> str:
    """The answer among output messages."""
    texts = [text_of(message) for message in messages if message.get("role") != "user"]
    return "\n\n".join(text for text in texts if text)


def last_user_turn(messages: Sequence[Json]) -> list[Json]:
    """The messages of a user at the end of input messages: what is new since the last answer."""
    turn: list[Json] = []
    for message in reversed(messages):
        if message.get("role") in CONTEXT_ROLES:
            break
        turn.append(message)
    return turn[::-1]


async def some_spans(store: Store, project: str, span_ids: Sequence[str]) -> tuple[dict[str, AgentSpan], int]:
    """The first spans of a list with their messages, by id, as many as fit a slice of memory; and how many were read.

    Spans whose call is gone are left out.
    """
    found = await store.calls.otel_dumps(project, span_ids[:SLICE])
    spans = await rebuilt(project, [text for _, _, text in found.dumps])
    return {call_id: span for (call_id, _, _), span in zip(found.dumps, spans, strict=True)}, found.read


async def full_spans(store: Store, project: str, span_ids: Sequence[str]) -> AsyncIterator[dict[str, AgentSpan]]:
    """The spans with their messages, slice by slice in the order of the ids, by id."""
    start = 0
    while start < len(span_ids):
        piece, read = await some_spans(store, project, span_ids[start : start + SLICE])
        yield piece
        start += read


async def rebuilt(project: str, texts: Sequence[str]) -> list[AgentSpan]:
    """The spans that dumps tell of; many of them are read in a thread of their own, as it takes long."""
    return await asyncio.to_thread(_rebuilt, project, texts) if len(texts) > _FEW else _rebuilt(project, texts)


def _rebuilt(project: str, texts: Sequence[str]) -> list[AgentSpan]:
    spans = [from_dump(project, orjson.loads(text)) for text in texts]
    for span, text in zip(spans, texts, strict=True):
        span.raw_span_dump = text
    return spans


def _parts(message: Json) -> list[Json]:
    parts = message.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


_TEXT_DETAILS = (
    *("reasoning_content", "tool_description", "tool_definitions", "tool_call_arguments", "tool_call_result"),
    "compaction_summary",
)
_LIST_DETAILS = ("system_instructions", "content_refs", "artifact_refs", "object_refs")


def span_view(project_id: str, row: Json, columns: Iterable[Value], full: AgentSpan | None) -> Json:
    """One row of the index as an answer: with the details of `full` and all custom attributes, else with `columns`."""
    more: Json = orjson.loads(row["more"]) if row["more"] else {}
    custom: dict[str, Json] = orjson.loads(row["custom"]) if row["custom"] else {}
    if full is None:
        chosen = {source: [column.key for column in columns if column.source == source] for source in CUSTOM}
        custom = {name: {key: custom[name][key] for key in chosen[name] if key in custom[name]} for name in custom}
    return {
        "project_id": project_id,
        **{name: row[name] for name in TEXTS},
        "span_kind": row["span_kind"] if row["span_kind"] in KINDS else "UNSPECIFIED",
        "status_code": status(row["status_code"]),
        "started_at": times.to_iso(row["started_at"]),
        "ended_at": times.to_iso(row["ended_at"]),
        **{name: row[name] for name in TOKENS},
        **{name: row.get(name) for name in COSTS},
        **{name: more.get(name, "") for name in MORE_TEXTS},
        **{name: more.get(name) for name in MORE_NUMBERS},
        **{name: more.get(name, []) for name in MORE_LISTS},
        **{name: getattr(full, name, None) or "" for name in _TEXT_DETAILS},
        **{name: getattr(full, name, []) for name in _LIST_DETAILS},
        "input_messages": [] if full is None else normalized(full.input_messages),
        "output_messages": [] if full is None else normalized(full.output_messages),
        "raw_span_dump": None if full is None else full.raw_span_dump,
        **{source: custom.get(source, {}) for source in CUSTOM},
    }


def status(code: str) -> str:
    """A status code that answers may show."""
    return code if code in STATUS_CODES else "UNSET"
