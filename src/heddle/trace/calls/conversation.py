"""The conversation of a stored call: out of its span where a convention knows it, else out of inputs and output."""

from dataclasses import asdict
from typing import Any

import orjson

from heddle.wire.calls import CallRow
from heddle.wire.conversation import call
from heddle.wire.conversation.call import Conversation
from heddle.wire.jsontypes import Json
from heddle.wire.spans import SpanReader

COLUMNS = frozenset(("inputs", "output", "attributes", "otel_dump"))
"""The columns that a conversation is read out of."""


def conversation_of(row: CallRow, project: str, read_span: SpanReader, filled: tuple[Any, Any] | None = None) -> Json:
    """The conversation of a call that was read with `COLUMNS`, and the call's kind; `project` is internal.

    `filled` are its inputs and output with what their refs point to.
    """
    bodies = filled or (_load(row.inputs), _load(row.output))
    return {"kind": row.kind, **asdict(_read(row, project, read_span, bodies))}


def _read(row: CallRow, project: str, read_span: SpanReader, bodies: tuple[Any, Any]) -> Conversation:
    span = None if row.otel_dump is None else _load(row.otel_dump)
    agent = read_span(project, span) if isinstance(span, dict) else None
    found = call.of_span(agent, is_agent=False) if agent is not None else None
    if found is not None:
        return found
    attributes = _load(row.attributes)
    is_tool = agent.operation_name == "execute_tool" if agent is not None else False
    found = call.of_call(*bodies, attributes, row.kind == "llm", is_tool)
    told = None if found.is_chat or agent is None else call.of_span(agent, is_agent=True)
    return told or found


def _load(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
