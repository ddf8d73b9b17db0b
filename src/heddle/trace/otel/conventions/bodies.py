"""Whole bodies of requests to models and of their answers, as some libraries record them."""

from typing import Any

from heddle.trace.otel.conventions.parts import joined, message, messages_of, simple
from heddle.trace.otel.conventions.values import as_text, objects, parsed
from heddle.wire.jsontypes import Json


def asked(body: Any) -> list[Json]:
    """The messages of a request: chat completions, Responses or Anthropic's; else the body as a user's text."""
    body = parsed(body)
    if not isinstance(body, dict):
        return messages_of(body, "user")
    given = next((body[key] for key in ("messages", "input", "prompt") if body.get(key) is not None), None)
    if given is None:
        return messages_of(body, "user") if "role" in body else [simple("user", body)]
    system = next((body[key] for key in ("system", "instructions") if body.get(key)), None)
    first = [message({"role": "system", "content": system})] if system is not None else []
    return first + messages_of(given, "user")


def answered(body: Any) -> list[Json]:
    """The messages of an answer: chat completions, Responses or Anthropic's; else the body as the assistant's text."""
    body = parsed(body)
    if not isinstance(body, dict):
        return messages_of(body, "assistant")
    if isinstance(body.get("choices"), list):
        return [_choice(one) for one in objects(body["choices"])]
    if isinstance(body.get("output"), list):
        return joined(messages_of(body["output"], "assistant"))
    if isinstance(body.get("messages"), list):
        return messages_of(body["messages"], "assistant")
    if "role" in body or body.get("type") == "message":
        reason = body.get("finish_reason") or body.get("stop_reason")
        return [message({**body, "finish_reason": reason}, "assistant")]
    return [simple("assistant", as_text(body))]


def _choice(choice: Json) -> Json:
    inner = choice.get("message", choice.get("delta"))
    if not isinstance(inner, dict):
        inner = {"content": choice.get("text", "")}
    return message({**inner, "finish_reason": choice.get("finish_reason")}, "assistant")
