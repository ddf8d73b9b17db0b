"""Chat views: one trace, or the turns of a conversation. Both are sent while they are read."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from heddle.http import Reader, StoreDep, group
from heddle.store.base import Store
from heddle.store.control.agents.reads import Node
from heddle.trace.agents import select
from heddle.trace.agents.answers import AgentConversationChatRes, AgentTraceChatRes
from heddle.trace.agents.chat import Chat, duration
from heddle.trace.agents.models import AgentConversationChatReq, AgentTraceChatReq
from heddle.trace.agents.timeline import Pricing, Timeline, plus
from heddle.trace.agents.view import status
from heddle.trace.prices import default_prices
from heddle.wire import jsontext, refs, times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Agents")
_TOGETHER = 32
_TURNS = 16


@router.post("/agents/traces/chat", response_model=AgentTraceChatRes)
async def agents_traces_chat(body: AgentTraceChatReq, caller: Reader, store: StoreDep) -> Response:
    """What happened in one trace, as a chat; an unknown trace has no messages."""
    told = await _Teller.of(store, caller.open(body.project_id), body)
    return StreamingResponse(told.trace(body.trace_id), media_type="application/json")


@router.post("/agents/conversations/chat", response_model=AgentConversationChatRes)
async def agents_conversations_chat(body: AgentConversationChatReq, caller: Reader, store: StoreDep) -> Response:
    """The turns of a conversation as chats, oldest first; `offset` leaves out that many of the newest."""
    told = await _Teller.of(store, caller.open(body.project_id), body)
    conversation, traces = await told.conversation(body)
    return StreamingResponse(told.turns(conversation, traces), media_type="application/json")


class _Teller:
    """Writes chat views as pieces of JSON text."""

    def __init__(
        self, store: Store, project: str, body: AgentTraceChatReq | AgentConversationChatReq, pricing: Pricing
    ) -> None:
        self._store = store
        self._project = project
        self._feedback = body.include_feedback
        self._model_tools = body.include_model_tool_calls
        self._pricing = pricing
        self._since: int | None = None

    @classmethod
    async def of(cls, store: Store, project: str, body: AgentTraceChatReq | AgentConversationChatReq) -> "_Teller":
        """A teller with the prices of the project."""
        pricing = Pricing(default_prices(), await store.costs.project_rows(project))
        told = cls(store, project, body, pricing)
        told._since = await select.kept_since(store, project)
        return told

    async def conversation(self, body: AgentConversationChatReq) -> tuple[Json, list[str]]:
        """What the answer says of the conversation, and the traces of the page."""
        spans = self._store.agent_spans
        traces, total = await spans.turns(self._project, body.conversation_id, self._since, body.limit, body.offset)
        said = await self._said("agent_conversation", [body.conversation_id])
        header = {
            "conversation_id": body.conversation_id,
            "total_turns": total,
            "has_more": body.offset + len(traces) < total,
            "limit": body.limit,
            "offset": body.offset,
            "feedback": said.get(body.conversation_id, []) if self._feedback else None,
        }
        return header, traces

    async def turns(self, conversation: Json, traces: list[str]) -> AsyncIterator[bytes]:
        """The answer of a conversation."""
        yield _opened(conversation, "turns")
        cost: float | None = None
        for start in range(0, len(traces), _TURNS):
            some = await self._nodes(traces[start : start + _TURNS])
            for place, (trace_id, nodes) in enumerate(some.items(), start):
                if place:
                    yield b","
                timeline = Timeline(nodes)
                cost = plus(cost, timeline.totals(self._pricing).cost)
                async for piece in self._told(trace_id, timeline):
                    yield piece
        yield b'],"total_cost_usd":' + jsontext.dumps_bytes(cost) + b"}"

    async def trace(self, trace_id: str) -> AsyncIterator[bytes]:
        """The answer of one trace."""
        timeline = Timeline((await self._nodes([trace_id]))[trace_id])
        async for piece in self._told(trace_id, timeline):
            yield piece

    async def _nodes(self, trace_ids: list[str]) -> dict[str, list[Node]]:
        return await self._store.agent_spans.nodes(self._project, trace_ids, self._since)

    async def _told(self, trace_id: str, timeline: Timeline) -> AsyncIterator[bytes]:
        said = await self._said("agent_turn", [trace_id])
        header = _header(trace_id, timeline, self._pricing)
        header["feedback"] = said.get(trace_id, []) if self._feedback else None
        yield _opened(header, "messages")
        chat = Chat(self._store, self._project, timeline, self._pricing, self._model_tools)
        together: list[Json] = []
        comma = b""
        async for message in chat.messages():
            together.append(message)
            if len(together) == _TOGETHER:
                yield comma + await self._written(together)
                together, comma = [], b","
        if together:
            yield comma + await self._written(together)
        yield b"]}"

    async def _written(self, together: list[Json]) -> bytes:
        if self._feedback:
            said = await self._said("agent_span", [item["span_id"] for item in together if item["span_id"]])
            for item in together:
                item["feedback"] = said.get(item["span_id"])
        return b",".join(refs.convert_out(jsontext.dumps_bytes(item)) for item in together)

    async def _said(self, kind: str, names: list[str]) -> dict[str, list[Json]]:
        """The feedback on spans, turns or conversations, by name."""
        if not self._feedback:
            return {}
        by_ref = {f"{refs.INTERNAL}{self._project}/{kind}/{refs.quote_part(name)}": name for name in names}
        found = await self._store.feedback.for_refs(self._project, list(by_ref))
        return {by_ref[ref]: rows for ref, rows in found.items()}


def _opened(header: Json, name: str) -> bytes:
    """The text of an object up to the beginning of its last list."""
    return refs.convert_out(jsontext.dumps_bytes(header))[:-1] + b',"' + name.encode() + b'":['


def _header(trace_id: str, timeline: Timeline, pricing: Pricing) -> Json:
    """What the answer says of the trace as a whole; the duration is that of its root."""
    root, totals = timeline.root, timeline.totals(pricing)
    header: Json = {
        "trace_id": trace_id,
        "total_input_tokens": totals.input_tokens,
        "total_output_tokens": totals.output_tokens,
        "total_reasoning_tokens": totals.reasoning_tokens,
        "total_cache_creation_input_tokens": totals.cache_creation_input_tokens,
        "total_cache_read_input_tokens": totals.cache_read_input_tokens,
        "total_cost_usd": totals.cost,
    }
    if root is None:
        return header
    return header | {
        "root_span_name": root.own_agent or root.span_name,
        "agent_name": root.own_agent or None,
        "agent_version": (root.agent_version or None) if root.own_agent else None,
        "status_code": status(root.status_code),
        "provider": root.provider_name or None,
        "wb_user_id": root.wb_user_id or None,
        "started_at": times.to_iso(root.started_at),
        "ended_at": times.to_iso(root.ended_at),
        "total_duration_ms": duration(root),
    }
