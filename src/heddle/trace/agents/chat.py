"""The chat view of a trace: what was asked, which agents and tools acted, what was answered, in order.

The tree comes from the index of spans, messages from the calls' dumps, a few spans at a time, so that a trace of any
length needs little memory. Where an agent's span repeats the answer of a model below it, the model's is shown; steps
around models (chains, tasks, prompts, retrievals) pass the same messages on, often in a form of their own, and are told
only where no model's span tells anything.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from heddle.http.routing import Reader, StoreDep, group
from heddle.store.base import Store
from heddle.store.control.agents.reads import Node
from heddle.store.control.agents.table import TOKENS
from heddle.trace.agents import messages as parts
from heddle.trace.agents import select
from heddle.trace.agents.requests import AgentChatReq, AgentConversationChatReq, AgentTraceChatReq
from heddle.trace.agents.responses import AgentChatMessage, AgentConversationChatRes, AgentTraceChatRes
from heddle.trace.agents.timeline import COSTS, EXECUTE_TOOL, INVOKE_AGENT, Pricing, Timeline, Totals
from heddle.trace.prices import default_prices
from heddle.wire import jsontext, refs, times
from heddle.wire.batched import batched
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.inference import sum_of_costs
from heddle.wire.spans import MODEL_OPERATIONS, AgentSpan

router: APIRouter = group("Agents")
_AHEAD = 64
_TALKS = frozenset(MODEL_OPERATIONS) - {"embeddings"}
_HEARD = frozenset(("", INVOKE_AGENT, EXECUTE_TOOL))
_TOGETHER = 32
_MOST_BETWEEN = 32
"""Spans that tell nothing between two that do, one below the other; behind more, the lower one is told as a root."""
_TURNS = 16
_ANSWER_TOTALS = ("reasoning_tokens", "input_tokens", "output_tokens", *COSTS)
Payload = dict[str, Any]


class Chat:
    """Tells one trace as messages."""

    def __init__(self, store: Store, project: str, timeline: Timeline, pricing: Pricing, model_tools: bool) -> None:
        self._store = store
        self._project = project
        self._timeline = timeline
        self._pricing = pricing
        self._model_tools = model_tools
        self._bodies: dict[str, AgentSpan | None] = {}
        self._executed = {node.tool_call_id for node in timeline.nodes if node.operation_name == EXECUTE_TOOL}
        self._answers = 0
        self._answers_at: dict[int, int] = {}
        self._silent = _silent(timeline.nodes)
        self._last_user: tuple[str, tuple[str, ...]] | None = None
        self._last_turn: list[tuple[str, tuple[str, ...]]] = []

    async def messages(self) -> AsyncIterator[Payload]:
        """The messages in order; the user speaks before the first agent starts."""
        held: Payload | None = None
        leading = await self._leading_user()
        if leading is not None:
            yield leading
        is_first = leading is None
        async for message in self._walked():
            if is_first and message["type"] == "agent_start":
                held, is_first = message, False
                continue
            is_first = False
            if held is not None and message["type"] != "user_message":
                yield held
                held = None
            yield message
            if held is not None:
                yield held
                held = None
        if held is not None:
            yield held

    async def _body(self, place: int) -> AgentSpan | None:
        """The span of the event at a place with its messages; None when its call keeps none (any more)."""
        nodes, events = self._timeline.nodes, self._timeline.events
        wanted = nodes[events[place] // 2].span_id
        if wanted not in self._bodies:
            # A few are fetched ahead, in the order in which they are needed.
            ids = list(dict.fromkeys(nodes[event // 2].span_id for event in islice(events, place, place + _AHEAD)))
            found, read = await parts.some_spans(self._store, self._project, ids)
            mine = {span_id: span for span_id, span in found.items() if span.trace_id == nodes[0].trace_id}
            self._bodies = {span_id: mine.get(span_id) for span_id in ids[:read]}
        return self._bodies.get(wanted)

    async def _walked(self) -> AsyncIterator[Payload]:
        for place, event in enumerate(self._timeline.events):
            index, leaves = divmod(event, 2)
            node = self._timeline.nodes[index]
            if node.operation_name == EXECUTE_TOOL and leaves:
                continue
            if node.operation_name == INVOKE_AGENT and leaves and self._answers > self._answers_at.pop(index):
                continue
            full = await self._body(place)
            for message in self._event(index, node, full, bool(leaves)):
                yield message

    def _event(self, index: int, node: Node, full: AgentSpan | None, leaves: bool) -> Iterator[Payload]:
        label = self._timeline.labels[index]
        if node.operation_name == EXECUTE_TOOL:
            yield _message(node, label, tool_call=_tool_call(node, full))
        elif node.operation_name == INVOKE_AGENT:
            if not leaves:
                self._answers_at[index] = self._answers
                yield from _starts(node, full)
            elif answered := self._answer(index, node, full, self._timeline.subtree):
                self._answers += 1
                yield answered
        elif self._silent[index]:
            if leaves and not self._answers and node is self._timeline.root:
                answered = self._answer(index, node, full, self._timeline.subtree)
                yield from (answered,) if answered else ()
        elif not leaves:
            yield from self._user_turn(node, full)
        else:
            if answered := self._answer(index, node, full, None):
                self._answers += bool(answered["assistant_message"]["text"])
                yield answered
            if self._model_tools and full is not None:
                yield from self._model_calls(node, label, full)

    def _answer(self, index: int, node: Node, full: AgentSpan | None, subtree: Any) -> Payload | None:
        if full is None:
            return None
        text = parts.output_text(full.output_messages)
        reasoning = full.reasoning_content
        if not text and not reasoning:
            return None
        totals: Totals = subtree(index, self._pricing) if subtree else self._pricing.totals(node)
        answered = {
            "text": text,
            "model": node.model or None,
            "reasoning_content": reasoning or None,
            **{name: getattr(totals, name) for name in _ANSWER_TOTALS},
            "duration_ms": duration(node),
            "status": parts.status(node.status_code),
            "content_refs": parts.media_of(full.output_messages, full.content_refs),
        }
        return _message(node, self._timeline.labels[index], assistant_message=answered)

    def _user_turn(self, node: Node, full: AgentSpan | None) -> Iterator[Payload]:
        """What the user said since the last answer; the same words again, repeated by the next span, only once."""
        if full is None:
            return
        turn = [
            (parts.text_of(message), tuple(parts.media_of([message], full.content_refs)))
            for message in parts.last_user_turn(full.input_messages)
        ]
        known = 0
        while known < min(len(turn), len(self._last_turn)) and turn[known] == self._last_turn[known]:
            known += 1
        self._last_turn = turn or self._last_turn
        for said in turn[known:]:
            if any(said) and said != self._last_user:
                self._last_user = said
                yield _user_message(node.started_at, said[0], list(said[1]))

    def _model_calls(self, node: Node, label: str, full: AgentSpan) -> Iterator[Payload]:
        """The tools that the model called and that no span of the trace executed."""
        for call in parts.tool_calls_of(full.output_messages):
            if call.get("id") and call["id"] in self._executed:
                continue
            arguments = call.get("arguments")
            text = arguments if isinstance(arguments, str) or arguments is None else jsontext.dumps(arguments)
            called: Payload = {
                "tool_name": call.get("name"),
                "tool_arguments": text,
                "tool_result": None,
                "duration_ms": None,
                "status": parts.status(node.status_code),
                "content_refs": [],
            }
            yield _message(node, label, tool_call=called)

    async def _leading_user(self) -> Payload | None:
        """The prompt of a trace none of whose model spans tells what the user said: an agent's span, else any, does."""
        candidate: tuple[int, str] | None = None
        of_agents = False
        for place, event in enumerate(self._timeline.events):
            node = self._timeline.nodes[event // 2]
            if event % 2 or node.operation_name == EXECUTE_TOOL:
                continue
            full = await self._body(place)
            if full is None:
                continue
            is_agent = node.operation_name == INVOKE_AGENT
            is_heard = not (is_agent or self._silent[event // 2])
            turn = parts.last_user_turn(full.input_messages) if is_heard else []
            if any(parts.text_of(item) or parts.media_of([item], full.content_refs) for item in turn):
                return None
            texts = parts.user_texts(full.input_messages)
            if texts and (candidate is None or (is_agent and not of_agents)):
                candidate, of_agents = (node.started_at, texts[-1]), is_agent
        return None if candidate is None else _user_message(candidate[0], candidate[1], [])


def _silent(nodes: Sequence[Node]) -> bytearray:
    """1 for each span whose messages the models' spans of the trace tell better.

    These are steps around models, spans of models that repeat the request of the one above, and those that report no
    tokens and have a model's span below them.
    """
    talks = [node.operation_name in _TALKS for node in nodes]
    around = {node.parent_span_id for node, talking in zip(nodes, talks, strict=True) if talking}
    silent = bytearray(
        (not node.is_counted or (node.span_id in around and not (node.input_tokens or node.output_tokens)))
        if talking
        else node.operation_name not in _HEARD
        for node, talking in zip(nodes, talks, strict=True)
    )
    heard = any(talking and not muted for talking, muted in zip(talks, silent, strict=True))
    return silent if heard else bytearray(len(nodes))


def duration(node: Node) -> int:
    """How long a span took, in milliseconds."""
    return max(0, (node.ended_at - node.started_at) // 1000)


def _starts(node: Node, full: AgentSpan | None) -> Iterator[Payload]:
    instructions = full.system_instructions if full is not None else []
    tools = full.tool_definitions if full is not None else None
    if node.own_agent or node.model or instructions or tools:
        started = {
            "model": node.model or None,
            "status": parts.status(node.status_code),
            "system_instructions": "\n".join(instructions) or None,
            "tool_definitions": tools or None,
        }
        yield _message(node, node.own_agent, agent_start=started)
    if full is not None and (full.compaction_summary or (full.compaction_items_before or 0) > 0):
        compacted = {
            "compaction_summary": full.compaction_summary,
            "compaction_items_before": full.compaction_items_before,
            "compaction_items_after": full.compaction_items_after,
        }
        yield _message(node, node.own_agent, context_compacted=compacted)


def _tool_call(node: Node, full: AgentSpan | None) -> Payload:
    return {
        "tool_name": node.tool_name or node.span_name.removeprefix(f"{EXECUTE_TOOL} "),
        "tool_arguments": full.tool_call_arguments if full is not None else None,
        "tool_result": full.tool_call_result if full is not None else None,
        "duration_ms": duration(node),
        "status": parts.status(node.status_code),
        "content_refs": full.content_refs if full is not None else [],
    }


def _user_message(started_at: int, text: str, content_refs: list[str]) -> Payload:
    said = {"text": text, "content_refs": content_refs}
    return _event("user_message", said, agent_name="User", started_at=times.to_iso(started_at))


def _message(node: Node, agent_name: str, **payload: Payload) -> Payload:
    return _event(
        *next(iter(payload.items())),
        span_id=node.span_id,
        agent_name=agent_name or None,
        agent_version=(node.agent_version or None) if node.own_agent else None,
        status_code=parts.status(node.status_code),
        status_message=node.status_message or None,
        error_type=node.error_type or None,
        started_at=times.to_iso(node.started_at),
    )


def _event(kind: str, payload: Payload, **said: str | None) -> Payload:
    """One event of a chat view, as answers show it: the payload named by its type is set."""
    unsaid = dict.fromkeys(AgentChatMessage.model_fields)
    return {**unsaid, **said, "type": kind, kind: payload}


@router.post("/agents/traces/chat", response_model=AgentTraceChatRes)
async def agents_traces_chat(body: AgentTraceChatReq, caller: Reader, store: StoreDep) -> Response:
    """What happened in one trace, as a chat; an unknown trace has no messages."""
    writer = await _writer(store, caller.open(body.project_id), body)
    return StreamingResponse(writer.trace(body.trace_id), media_type="application/json")


@router.post("/agents/conversations/chat", response_model=AgentConversationChatRes)
async def agents_conversations_chat(body: AgentConversationChatReq, caller: Reader, store: StoreDep) -> Response:
    """The turns of a conversation as chats, oldest first; `offset` leaves out that many of the newest."""
    writer = await _writer(store, caller.open(body.project_id), body)
    return StreamingResponse(await writer.conversation(body), media_type="application/json")


async def _writer(store: Store, project: str, body: AgentChatReq) -> "_Writer":
    pricing = Pricing(default_prices(), await store.costs.project_rows(project))
    return _Writer(store, project, body, pricing, await select.kept_since(store, project))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes chat views as pieces of JSON text; `since` is the instant before which the project keeps nothing."""

    store: Store
    project: str
    body: AgentChatReq
    pricing: Pricing
    since: int | None

    async def conversation(self, body: AgentConversationChatReq) -> AsyncIterator[bytes]:
        """The answer of a conversation."""
        spans = self.store.agent_spans
        traces, total = await spans.turns(self.project, body.conversation_id, self.since, body.limit, body.offset)
        header: Payload = {
            "conversation_id": body.conversation_id,
            "total_turns": total,
            "has_more": body.offset + len(traces) < total,
            "limit": body.limit,
            "offset": body.offset,
            "feedback": await self._feedback("agent_conversation", body.conversation_id),
        }
        return self._turns(header, traces)

    async def _turns(self, header: Payload, traces: list[str]) -> AsyncIterator[bytes]:
        yield _open_list(header, "turns")
        cost: float | None = None
        for start in range(0, len(traces), _TURNS):
            some = await self._nodes(traces[start : start + _TURNS])
            for place, (trace_id, nodes) in enumerate(some.items(), start):
                if place:
                    yield b","
                timeline = Timeline(nodes)
                cost = sum_of_costs((cost, timeline.totals(self.pricing).total_cost_usd))
                async for piece in self._turn(trace_id, timeline):
                    yield piece
        yield b'],"total_cost_usd":' + jsontext.dumps_bytes(cost) + b"}"

    async def trace(self, trace_id: str) -> AsyncIterator[bytes]:
        """The answer of one trace."""
        timeline = Timeline((await self._nodes([trace_id]))[trace_id])
        async for piece in self._turn(trace_id, timeline):
            yield piece

    async def _nodes(self, trace_ids: list[str]) -> dict[str, list[Node]]:
        """The spans of traces; below other spans, which tell nothing, they hang on the nearest above these."""
        traces = await self.store.agent_spans.nodes(self.project, trace_ids, self.since)
        told = {(trace_id, node.span_id) for trace_id, nodes in traces.items() for node in nodes}
        above: dict[tuple[str, str], str] = {}
        missing = {(node.trace_id, node.parent_span_id) for nodes in traces.values() for node in nodes} - told
        for _ in range(_MOST_BETWEEN):
            if not (asked := {(trace_id, span_id) for trace_id, span_id in missing if span_id}):
                break
            found = await self._parents(asked)
            above |= found
            missing = {(trace_id, parent) for (trace_id, _), parent in found.items()} - told - above.keys()

        def nearest(node: Node) -> Node:
            at = node.parent_span_id
            for _ in range(_MOST_BETWEEN):
                if (node.trace_id, at) in told:
                    return node._replace(parent_span_id=at)
                at = above.get((node.trace_id, at), "")
            return node

        return {trace_id: [nearest(node) for node in nodes] for trace_id, nodes in traces.items()}

    async def _parents(self, spans: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The parents of spans, given and keyed by trace and id, as far as their calls are here; empty for roots."""
        found: dict[tuple[str, str], str] = {}
        for some in batched({span_id for _, span_id in spans}):
            query = CallsQuery(self.project, Filter(call_ids=tuple(some)), columns=frozenset())
            async for rows in self.store.calls.stream(query):
                found |= {(row.trace_id, row.id): row.parent_id or "" for row in rows}
        return {place: found[place] for place in spans & found.keys()}

    async def _turn(self, trace_id: str, timeline: Timeline) -> AsyncIterator[bytes]:
        header = _header(trace_id, timeline, self.pricing)
        header["feedback"] = await self._feedback("agent_turn", trace_id)
        yield _open_list(header, "messages")
        chat = Chat(self.store, self.project, timeline, self.pricing, self.body.include_model_tool_calls)
        together: list[Payload] = []
        comma = b""
        async for message in chat.messages():
            together.append(message)
            if len(together) == _TOGETHER:
                yield comma + await self._dump(together)
                together, comma = [], b","
        if together:
            yield comma + await self._dump(together)
        yield b"]}"

    async def _dump(self, together: list[Payload]) -> bytes:
        if self.body.include_feedback:
            given = await self._feedback_on("agent_span", [item["span_id"] for item in together if item["span_id"]])
            for item in together:
                item["feedback"] = given.get(item["span_id"])
        return b",".join(refs.convert_out(jsontext.dumps_bytes(item)) for item in together)

    async def _feedback(self, kind: str, name: str) -> list[Payload] | None:
        """The feedback on one turn or conversation; None where it is not asked for."""
        return (await self._feedback_on(kind, [name])).get(name, []) if self.body.include_feedback else None

    async def _feedback_on(self, kind: str, names: list[str]) -> dict[str, list[Payload]]:
        by_ref = {f"{refs.INTERNAL}{self.project}/{kind}/{refs.quote_part(name)}": name for name in names}
        found = await self.store.feedback.for_refs(self.project, list(by_ref))
        return {by_ref[ref]: rows for ref, rows in found.items()}


def _open_list(header: Payload, name: str) -> bytes:
    """The text of an object up to the beginning of its last list."""
    return refs.convert_out(jsontext.dumps_bytes(header))[:-1] + b',"' + name.encode() + b'":['


def _header(trace_id: str, timeline: Timeline, pricing: Pricing) -> Payload:
    """What the answer says of the trace as a whole; the duration is that of its root."""
    root, totals = timeline.root, timeline.totals(pricing)
    header: Payload = {
        "trace_id": trace_id,
        **{f"total_{name}": getattr(totals, name) for name in TOKENS},
        "total_cost_usd": totals.total_cost_usd,
    }
    if root is None:
        return header
    return header | {
        "root_span_name": root.own_agent or root.span_name,
        "agent_name": root.own_agent or None,
        "agent_version": (root.agent_version or None) if root.own_agent else None,
        "status_code": parts.status(root.status_code),
        "provider": root.provider_name or None,
        "wb_user_id": root.wb_user_id or None,
        "started_at": times.to_iso(root.started_at),
        "ended_at": times.to_iso(root.ended_at),
        "total_duration_ms": duration(root),
    }
