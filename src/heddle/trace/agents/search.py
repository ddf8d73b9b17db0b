"""Search over the texts of messages, newest first, grouped by conversation.

Texts lie in the calls' dumps and are read there, so a search looks at no more than the newest `MAX_SPANS` spans that
its other conditions leave; the answer says how many it read and whether that was all.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from fastapi import APIRouter, Response

from heddle.http.routing import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.agents.fields import SpanFilter
from heddle.trace.agents import select
from heddle.trace.agents.messages import content_of, rebuilt
from heddle.trace.agents.requests import AgentSearchReq
from heddle.trace.agents.responses import AgentSearchRes
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.query import And, Compare, Field, Literal, Operation
from heddle.wire.spans import AgentSpan

router: APIRouter = group("Agents")

MAX_SPANS = 50_000
NO_CONVERSATION = "__NO_CONVERSATION__"
_PAGE = 1000
_PREVIEW = 500
_PLAIN = re.compile(r"[A-Za-z0-9 .,;:!?()_-]+")
_TOOLS = ("tool", "tool_call", "tool_result")


class _Found(NamedTuple):
    """A message that was found, and the row of its span."""

    row: Json
    role: str
    content: str


@router.post("/agents/search", response_model=AgentSearchRes)
async def agents_search(body: AgentSearchReq, caller: Reader, store: StoreDep) -> Response:
    """Messages that hold a text, in the order of the newest conversation."""
    project = caller.open(body.project_id)
    selected = await select.span_filter(
        store, project, after=body.started_after, before=body.started_before, query=_query(body)
    )
    search = _Search(store, selected, body)
    await search.run()
    results = search.conversations()
    return answer(
        {
            "results": results,
            "total_conversations": len(results),
            "x_spans_searched": search.read,
            "x_search_complete": search.is_complete,
        }
    )


def _query(body: AgentSearchReq) -> Operation | None:
    named = {name: getattr(body, name) for name in ("trace_id", "conversation_id", "agent_name")}
    named |= {"provider_name": body.provider_name, "request_model": body.request_model}
    tests = tuple(Compare("eq", Field(name), Literal(value)) for name, value in named.items() if value)
    return And(tests) if tests else None


class _Search:
    """One search: reads spans from the newest on until enough messages are found."""

    def __init__(self, store: Store, selected: SpanFilter, body: AgentSearchReq) -> None:
        self._store = store
        self._selected = selected
        self._body = body
        self._roles = _roles(body)
        # What the text of a dump must hold as it is, whatever JSON writes differently.
        self._needle = max(_PLAIN.findall(body.query), key=len, default="")
        self._skip = body.offset
        self._found: list[_Found] = []
        self.read = 0
        self.is_complete = False

    async def run(self) -> None:
        """Read until the page is full, or all is read, or the bound is reached."""
        position: tuple[int, int] | None = None
        while len(self._found) < self._body.limit and self.read < MAX_SPANS:
            rows = await self._store.agent_spans.newest(self._selected, position, _PAGE)
            await self._read(rows)
            self.read += len(rows)
            if len(rows) < _PAGE:
                self.is_complete = True
                return
            position = (rows[-1]["started_at"], rows[-1]["seq"])
        self.is_complete = len(self._found) >= self._body.limit

    async def _read(self, rows: list[Json]) -> None:
        by_id = {(row["span_id"], row["trace_id"]): row for row in rows}
        ids = list(dict.fromkeys(row["span_id"] for row in rows))
        start = 0
        while start < len(ids) and len(self._found) < self._body.limit:
            slice_ = await self._store.calls.otel_dumps(self._selected.project, ids[start:], self._needle)
            start += slice_.read
            spans = await rebuilt(self._selected.project, [text for _, _, text in slice_.dumps])
            for (span_id, trace_id, _), span in zip(slice_.dumps, spans, strict=True):
                if row := by_id.get((span_id, trace_id)):
                    self._take(row, span)

    def _take(self, row: Json, span: AgentSpan) -> None:
        for role, content in texts_of(span):
            if self._roles is not None and role not in self._roles:
                continue
            if not content or self._body.query not in content:
                continue
            if self._skip:
                self._skip -= 1
            elif len(self._found) < self._body.limit:
                self._found.append(_Found(row, role, content))

    def conversations(self) -> list[Json]:
        """What was found, by conversation; the one with the newest message first."""
        found: dict[str, Json] = {}
        for row, role, content in self._found:
            key = row["conversation_id"] or NO_CONVERSATION
            shown = found.setdefault(
                key,
                {
                    "conversation_id": key,
                    "conversation_name": row["conversation_name"],
                    "agent_name": row["agent_name"],
                    "matched_messages": [],
                    "last_activity": times.to_iso(row["started_at"]),
                },
            )
            shown["matched_messages"].append(
                {
                    "span_id": row["span_id"],
                    "trace_id": row["trace_id"],
                    "role": role,
                    "content_preview": content[:_PREVIEW] if self._body.truncate_content else content,
                    "content_digest": blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
                    "started_at": times.to_iso(row["started_at"]),
                }
            )
        # Spans were read from the newest on, so the first message of a conversation is its newest.
        return list(found.values())


def texts_of(span: AgentSpan) -> Iterator[tuple[str, str]]:
    """Role and content of everything that a span says."""
    for message in (*span.input_messages, *span.output_messages):
        yield str(message.get("role") or ""), content_of(message)
    for instruction in span.system_instructions:
        yield "system", instruction
    if span.tool_call_arguments:
        yield "tool_call", span.tool_call_arguments
    if span.tool_call_result:
        yield "tool_result", span.tool_call_result


def _roles(body: AgentSearchReq) -> frozenset[str] | None:
    """The roles that are asked for; `tool` means what tools were given and gave back as well."""
    if not body.roles:
        return None
    return frozenset(name for role in body.roles for name in (_TOOLS if role == "tool" else (role,)))
