"""Random spans of agents, and what the agents reads must make of them."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.agents import value_of

Json = Any
MODELS = ("chat", "embeddings", "text_completion", "generate_content")
OPERATIONS = (*MODELS, "invoke_agent", "execute_tool", "invoke_workflow")
TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens")
BEGIN = datetime(2026, 3, 27, 5, 0, tzinfo=UTC)
"""Two days before the clocks of Berlin change."""
DAYS = 5


@dataclass
class Span:
    """A span as it was made; instants are microseconds."""

    trace: int
    number: int
    parent: int
    started: int
    ended: int
    operation: str
    agent: str
    version: str
    conversation: str
    model: str
    is_error: bool
    tokens: dict[str, int]
    custom: dict[str, Json]
    own_agent: bool = False
    is_counted: bool = True
    exported: Json = field(default=None)

    def export(self) -> Json:
        """As OTLP sends it."""
        said = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.agent.name": self.agent,
            "gen_ai.agent.version": self.version if self.agent else "",
            "gen_ai.conversation.id": self.conversation,
            "gen_ai.request.model": self.model,
        }
        attributes = {key: value for key, value in said.items() if value} | self.custom
        for name, key in zip(TOKENS, ("input_tokens", "output_tokens", "cache_read.input_tokens"), strict=True):
            if name in self.tokens:
                attributes[f"gen_ai.usage.{key}"] = self.tokens[name]
        return {
            "traceId": f"{self.trace:032x}",
            "spanId": f"{self.number:016x}",
            "parentSpanId": f"{self.parent:016x}" if self.parent else "",
            "name": f"{self.operation} {self.number}",
            "startTimeUnixNano": str(self.started * 1000),
            "endTimeUnixNano": str(self.ended * 1000),
            "attributes": [{"key": key, "value": value_of(value)} for key, value in attributes.items()],
            "status": {"code": 2, "message": "no"} if self.is_error else {},
        }

    @property
    def invokes(self) -> bool:
        """Whether it is an agent at work."""
        return self.operation == "invoke_agent" and (self.own_agent or not self.agent)

    @property
    def elapsed(self) -> float | None:
        """Milliseconds; none for a span that ends before it starts."""
        return (self.ended - self.started) / 1000 if self.ended > self.started else None


def made(chance: random.Random, traces: int, each: int) -> list[Span]:
    """Random spans."""
    begin, number = int(BEGIN.timestamp()) * 10**6, 0
    spans: list[Span] = []
    for trace in range(1, traces + 1):
        first = number + 1
        for _ in range(chance.randrange(1, each)):
            number += 1
            started = begin + chance.randrange(DAYS * 86400) * 10**6 + chance.randrange(10**6)
            operation = chance.choice(OPERATIONS)
            tokens = {name: chance.randrange(500, 1000) for name in TOKENS[:2] if chance.random() < 0.6}
            if "input_tokens" in tokens and chance.random() < 0.3:
                tokens["cache_read_input_tokens"] = chance.randrange(1, 500)
            custom: dict[str, Json] = {}
            for key, value in (
                ("env", chance.choice(["prod", "test", "dev"])),
                ("retries", chance.randrange(4)),
                ("score", chance.randrange(100) / 8),
                ("cached", chance.random() < 0.5),
            ):
                if chance.random() < 0.7:
                    custom[key] = value
            spans.append(
                Span(
                    trace,
                    number,
                    chance.randrange(first, number) if number > first and chance.random() < 0.8 else 0,
                    started,
                    started + chance.choice([-5, 1, 1, 1]) * chance.randrange(1, 10**7),
                    operation,
                    chance.choice(["", "", "planner", "writer"]),
                    chance.choice(["", "1", "2"]),
                    chance.choice(["", "", "trip", "visit", "call"]),
                    chance.choice(["gpt-4o", "gpt-4o-mini", "home-made"]) if operation in MODELS else "",
                    chance.random() < 0.2,
                    tokens,
                    custom,
                )
            )
    for span in spans:
        span.exported = span.export()
    return spans


def settle(spans: list[Span]) -> None:
    """What the trace says of spans that do not say it themselves, and which of them repeat the tokens of others."""
    by_trace: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        span.own_agent = bool(span.agent)
        by_trace[span.trace].append(span)
    for trace in by_trace.values():
        users = {span.number for span in trace if span.operation in MODELS and any(map(span.tokens.get, TOKENS[:2]))}
        agent = min((span for span in trace if span.agent), key=lambda span: span.started, default=None)
        talk = min((span for span in trace if span.conversation), key=lambda span: span.started, default=None)
        identity = (agent.agent, agent.version) if agent else ("", "")
        conversation = talk.conversation if talk else ""
        for span in trace:
            if not span.own_agent:
                span.agent, span.version = identity
            span.conversation = span.conversation or conversation
            if users:
                span.is_counted = span.operation in MODELS and span.parent not in users


def iso(micros: int) -> str:
    """An instant as answers write it."""
    return (datetime(1970, 1, 1) + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + "Z"


def instant(text: str) -> int:
    """Microseconds."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
