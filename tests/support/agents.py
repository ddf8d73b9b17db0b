"""Spans of agents made by hand and exported over OTLP/JSON, as the conversation SDK sends them."""

import json
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Wire

Json = Any
MILLISECOND = 10**6


def value_of(value: Any) -> Json:
    """An attribute value of OTLP/JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


class Trace:
    """One trace; spans begin one after the other, each `step` milliseconds after the one before."""

    def __init__(self, conversation: str | None = None, start: int | None = None, step: int = 10) -> None:
        self.trace_id = secrets.token_hex(16)
        self.conversation = conversation
        self.start = start if start is not None else time.time_ns() - 60_000 * MILLISECOND
        self.step = step * MILLISECOND
        self.spans: list[Json] = []

    def span(self, name: str, parent: str = "", length: int = 5, error: str = "", **attributes: Any) -> str:
        """Add a span of so many milliseconds; underscores twice in attribute names are dots. Returns its id."""
        span_id = secrets.token_hex(8)
        start = self.start + len(self.spans) * self.step
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        if self.conversation is not None:
            named.setdefault("gen_ai.conversation.id", self.conversation)
        self.spans.append(
            {
                "traceId": self.trace_id,
                "spanId": span_id,
                "parentSpanId": parent,
                "name": name,
                "kind": 1,
                "startTimeUnixNano": str(start),
                "endTimeUnixNano": str(start + length * MILLISECOND),
                "attributes": [{"key": key, "value": value_of(item)} for key, item in named.items()],
                "status": {"code": 2, "message": error} if error else {},
            }
        )
        return span_id

    def agent(self, name: str, parent: str = "", user: str = "", **attributes: Any) -> str:
        """An invocation of an agent."""
        if user:
            attributes["gen_ai__input__messages"] = messages(("user", user))
        named: Json = {"gen_ai__operation__name": "invoke_agent", "gen_ai__agent__name": name}
        return self.span(f"invoke_agent {name}", parent, length=500, **named, **attributes)

    def chat(self, parent: str = "", user: str = "", answer: str = "", model: str = "gpt-4o", **attributes: Any) -> str:
        """A call of a model."""
        if user:
            attributes.setdefault("gen_ai__input__messages", messages(("user", user)))
        if answer:
            attributes.setdefault("gen_ai__output__messages", messages(("assistant", answer)))
        named: Json = {
            "gen_ai__operation__name": "chat",
            "gen_ai__request__model": model,
            "gen_ai__provider__name": "openai",
        }
        return self.span(f"chat {model}", parent, **named, **attributes)

    def tool(self, name: str, arguments: str, result: str, parent: str = "", **attributes: Any) -> str:
        """A tool that was run."""
        named: Json = {
            "gen_ai__operation__name": "execute_tool",
            "gen_ai__tool__name": name,
            "gen_ai__tool__call__arguments": arguments,
            "gen_ai__tool__call__result": result,
        }
        return self.span(f"execute_tool {name}", parent, **named, **attributes)


def messages(*said: tuple[str, str]) -> str:
    """Messages of text in the form of the GenAI conventions."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said])


def export(wire: Wire, *traces: Trace, spans: list[Json] | None = None) -> None:
    """Send the spans (all of the traces, unless some are given) to the route of agents."""
    sent = [span for trace in traces for span in trace.spans] if spans is None else spans
    scope = {"scope": {"name": "weave.conversation"}, "spans": sent}
    body = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}
    answer = wire.client.post("/agents/otel/v1/traces", json=body, headers={"project_id": wire.project})
    assert answer.status_code == 200, answer.text
    assert not answer.json().get("partialSuccess", {}).get("rejectedSpans"), answer.text


def travelled(wire: Wire) -> Trace:
    """A turn of the agent `planner`, exported: it asks a model, runs a tool that fails, and asks again."""
    trace = Trace("trip")
    agent = trace.agent("planner", user="Find a train", gen_ai__agent__version="2")
    used: Json = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 10}
    trace.chat(agent, "Find a train", "One moment", team="a", **used)
    trace.tool("timetable", '{"to":"Basel"}', "no such station", agent, error="unknown", retries=2)
    trace.chat(agent, answer="Sorry", gen_ai__usage__input_tokens=200, gen_ai__usage__output_tokens=20, score=0.5)
    export(wire, trace)
    return trace


def eq(field: str, value: Any) -> Json:
    """A query for a field's value."""
    return {"$expr": {"$eq": [{"$getField": field}, {"$literal": value}]}}


def hour(offset: float = 0) -> str:
    """ISO text so many hours from now."""
    return (datetime.now(UTC) + timedelta(hours=offset)).isoformat()
