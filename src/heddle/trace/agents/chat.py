"""The chat view of a trace: what was asked, which agents and tools acted, what was answered, in order.

The tree comes from the index of spans, messages from the calls' dumps, a few spans at a time, so that a trace of any
length needs little memory. Where an agent's span repeats the answer of a model below it, the model's is shown; steps
around models (chains, tasks, prompts, retrievals) pass the same messages on, often in a form of their own, and are told
only where no model's span tells anything.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Any

from heddle.store.base import Store
from heddle.store.control.agents.reads import Node
from heddle.store.control.agents.table import MODEL_OPERATIONS
from heddle.trace.agents import messages as parts
from heddle.trace.agents.timeline import EXECUTE_TOOL, INVOKE_AGENT, Pricing, Timeline, Totals
from heddle.trace.agents.view import status
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_AHEAD = 64
_TALKS = frozenset(MODEL_OPERATIONS) - {"embeddings"}
_HEARD = frozenset(("", INVOKE_AGENT, EXECUTE_TOOL))
_PAYLOADS = ("user_message", "assistant_message", "tool_call", "agent_start", "agent_handoff", "context_compacted")


class Bodies:
    """The spans with their messages, fetched a few ahead in the order they are needed."""

    def __init__(self, store: Store, project: str, timeline: Timeline) -> None:
        self._store = store
        self._project = project
        self._timeline = timeline
        self._held: dict[str, AgentSpan | None] = {}

    async def at(self, place: int) -> AgentSpan | None:
        """The span of the event at a place; None when its call keeps no messages (any more)."""
        wanted = self._id(place)
        if wanted not in self._held:
            ahead = islice(self._timeline.events, place, place + _AHEAD)
            ids = list(dict.fromkeys(self._timeline.nodes[event // 2].span_id for event in ahead))
            found, read = await parts.some_spans(self._store, self._project, ids)
            self._held = {span_id: self._mine(found.get(span_id)) for span_id in ids[:read]}
        return self._held.get(wanted)

    def _id(self, place: int) -> str:
        return self._timeline.nodes[self._timeline.events[place] // 2].span_id

    def _mine(self, span: AgentSpan | None) -> AgentSpan | None:
        return span if span is not None and span.trace_id == self._timeline.nodes[0].trace_id else None


class Chat:
    """Tells one trace as messages."""

    def __init__(self, store: Store, project: str, timeline: Timeline, pricing: Pricing, model_tools: bool) -> None:
        self._timeline = timeline
        self._pricing = pricing
        self._bodies = Bodies(store, project, timeline)
        self._model_tools = model_tools
        self._executed = {node.tool_call_id for node in timeline.nodes if node.operation_name == EXECUTE_TOOL}
        self._answers = 0
        self._answers_at: dict[int, int] = {}
        self._silent = _silent(timeline.nodes)
        self._last_user: tuple[str, tuple[str, ...]] | None = None
        self._last_turn: list[tuple[str, tuple[str, ...]]] = []

    async def messages(self) -> AsyncIterator[Json]:
        """The messages in order; the user speaks before the first agent starts."""
        held: Json | None = None
        leading = await self._leading_user()
        if leading is not None:
            yield leading
        first = leading is None
        async for message in self._walked():
            if first and message["type"] == "agent_start":
                held, first = message, False
                continue
            if held is not None and message["type"] == "user_message":
                yield message
                yield held
                held = None
                continue
            if held is not None:
                yield held
                held = None
            first = False
            yield message
        if held is not None:
            yield held

    async def _walked(self) -> AsyncIterator[Json]:
        for place, event in enumerate(self._timeline.events):
            index, leaves = divmod(event, 2)
            node = self._timeline.nodes[index]
            if node.operation_name == EXECUTE_TOOL and leaves:
                continue
            if node.operation_name == INVOKE_AGENT and leaves and self._answers > self._answers_at.pop(index):
                continue
            full = await self._bodies.at(place)
            for message in self._event(index, node, full, bool(leaves)):
                yield message

    def _event(self, index: int, node: Node, full: AgentSpan | None, leaves: bool) -> Iterator[Json]:
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

    def _answer(self, index: int, node: Node, full: AgentSpan | None, subtree: Any) -> Json | None:
        if full is None:
            return None
        text = parts.output_text(full.output_messages)
        reasoning = full.reasoning_content or parts.reasoning_of(full.output_messages)
        if not text and not reasoning:
            return None
        totals: Totals = subtree(index, self._pricing) if subtree else self._pricing.totals(node)
        answered = {
            "text": text,
            "model": node.model or None,
            "reasoning_content": reasoning or None,
            "reasoning_tokens": totals.reasoning_tokens,
            "input_tokens": totals.input_tokens,
            "output_tokens": totals.output_tokens,
            "input_cost_usd": totals.input_cost,
            "output_cost_usd": totals.output_cost,
            "total_cost_usd": totals.cost,
            "duration_ms": duration(node),
            "status": status(node.status_code),
            "content_refs": parts.media_of(full.output_messages, full.content_refs),
        }
        return _message(node, self._timeline.labels[index], assistant_message=answered)

    def _user_turn(self, node: Node, full: AgentSpan | None) -> Iterator[Json]:
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

    def _model_calls(self, node: Node, label: str, full: AgentSpan) -> Iterator[Json]:
        """The tools that the model called and that no span of the trace executed."""
        for call in parts.tool_calls_of(full.output_messages):
            if call.get("id") and call["id"] in self._executed:
                continue
            arguments = call.get("arguments")
            text = arguments if isinstance(arguments, str) or arguments is None else jsontext.dumps(arguments)
            called: Json = {
                "tool_name": call.get("name"),
                "tool_arguments": text,
                "tool_result": None,
                "duration_ms": None,
                "status": status(node.status_code),
                "content_refs": [],
            }
            yield _message(node, label, tool_call=called)

    async def _leading_user(self) -> Json | None:
        """The prompt of a trace none of whose model spans tells what the user said: an agent's span, else any, does."""
        candidate: tuple[int, str] | None = None
        of_agents = False
        for place, event in enumerate(self._timeline.events):
            node = self._timeline.nodes[event // 2]
            if event % 2 or node.operation_name == EXECUTE_TOOL:
                continue
            full = await self._bodies.at(place)
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


def _starts(node: Node, full: AgentSpan | None) -> Iterator[Json]:
    instructions = full.system_instructions if full is not None else []
    tools = full.tool_definitions if full is not None else None
    if node.own_agent or node.model or instructions or tools:
        started = {
            "model": node.model or None,
            "status": status(node.status_code),
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


def _tool_call(node: Node, full: AgentSpan | None) -> Json:
    return {
        "tool_name": node.tool_name or node.span_name.removeprefix(f"{EXECUTE_TOOL} "),
        "tool_arguments": full.tool_call_arguments if full is not None else None,
        "tool_result": full.tool_call_result if full is not None else None,
        "duration_ms": duration(node),
        "status": status(node.status_code),
        "content_refs": full.content_refs if full is not None else [],
    }


def _user_message(started_at: int, text: str, content_refs: list[str]) -> Json:
    return {
        "type": "user_message",
        "span_id": None,
        "agent_name": "User",
        "agent_version": None,
        "status_code": None,
        "status_message": None,
        "error_type": None,
        "started_at": times.to_iso(started_at),
        **dict.fromkeys(_PAYLOADS),
        "user_message": {"text": text, "content_refs": content_refs},
        "feedback": None,
    }


def _message(node: Node, agent_name: str, **payload: Json) -> Json:
    return {
        "type": next(iter(payload)),
        "span_id": node.span_id,
        "agent_name": agent_name or None,
        "agent_version": (node.agent_version or None) if node.own_agent else None,
        "status_code": status(node.status_code),
        "status_message": node.status_message or None,
        "error_type": node.error_type or None,
        "started_at": times.to_iso(node.started_at),
        **dict.fromkeys(_PAYLOADS),
        **payload,
        "feedback": None,
    }
