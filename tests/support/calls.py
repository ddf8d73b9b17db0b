"""Calls as /calls/stream_query shows them, made by hand."""

from datetime import UTC, datetime
from typing import Any

Json = Any
USER = {"role": "user", "content": "hi"}


def sampled(text: str, *ids: int, index: int = 0) -> Json:
    """A choice as our server answers it."""
    content = [{"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ids]
    message = {"role": "assistant", "content": text}
    return {"index": index, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}


def call(call_id: str, parent: str | None = None, at: int = 0, **fields: Json) -> Json:
    """A finished call."""
    started = datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC).isoformat()
    return {
        "id": call_id,
        "trace_id": "t",
        "parent_id": parent,
        "op_name": "rollout",
        "inputs": {},
        "output": None,
        "summary": {},
        "started_at": started,
        "ended_at": started,
        **fields,
    }


def chat(
    call_id: str, parent: str | None, at: int, messages: list[Json], *choices: Json, tools: Json = None, **more: Json
) -> Json:
    """A call that shows a chat completion."""
    inputs = {"model": "m", "messages": messages} | ({"tools": tools} if tools else {})
    return call(
        call_id, parent, at, inputs=inputs, output={"id": f"chatcmpl-{call_id}", "choices": list(choices), **more}
    )


def said(choice: Json) -> Json:
    """The message of a choice as a later prompt repeats it."""
    return {"role": "assistant", "content": choice["message"]["content"]}


def feedback(kind: str, payload: Json, at: str = "2026-01-01") -> Json:
    """A row of feedback as calls show it."""
    return {"feedback_type": kind, "payload": payload, "created_at": at}


def with_feedback(subject: Json, *items: Json) -> Json:
    """The call with feedback."""
    return {**subject, "summary": {"weave": {"feedback": list(items)}}}
