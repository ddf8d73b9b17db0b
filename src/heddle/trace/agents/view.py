"""Spans as answers show them. Texts that a span does not say are empty, numbers null."""

from collections.abc import Iterable

import orjson

from heddle.store.control.agents.fields import COSTS
from heddle.store.control.agents.measures import ValueRef
from heddle.store.control.agents.table import CUSTOM, MORE_LISTS, MORE_NUMBERS, MORE_TEXTS, TEXTS, TOKENS
from heddle.trace.agents.messages import normalized
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_DETAILS: Json = {
    "reasoning_content": "",
    "tool_description": "",
    "tool_definitions": "",
    "tool_call_arguments": "",
    "tool_call_result": "",
    "compaction_summary": "",
    "input_messages": [],
    "output_messages": [],
    "system_instructions": [],
    "content_refs": [],
    "artifact_refs": [],
    "object_refs": [],
    "raw_span_dump": None,
}
_KINDS = frozenset(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
_CODES = frozenset(("UNSET", "OK", "ERROR"))


def span_view(project_id: str, row: Json, columns: Iterable[ValueRef], full: AgentSpan | None) -> Json:
    """One row of the index as an answer: with the details of `full` and all custom attributes, else with `columns`."""
    more: Json = orjson.loads(row["more"]) if row["more"] else {}
    custom: Json = orjson.loads(row["custom"]) if row["custom"] else {}
    view: Json = {"project_id": project_id}
    view |= {name: row[name] for name in TEXTS}
    view["span_kind"] = row["span_kind"] if row["span_kind"] in _KINDS else "UNSPECIFIED"
    view["status_code"] = status(row["status_code"])
    view |= {"started_at": times.to_iso(row["started_at"]), "ended_at": times.to_iso(row["ended_at"])}
    view |= {name: row[name] for name in TOKENS}
    view |= {name: row.get(name) for name in COSTS}
    view |= {name: more.get(name, "") for name in MORE_TEXTS}
    view |= {name: more.get(name) for name in MORE_NUMBERS}
    view |= {name: more.get(name, []) for name in MORE_LISTS}
    view |= _DETAILS
    if full is not None:
        view |= _details(full)
    view |= _custom(custom, None if full is not None else columns)
    return view


def status(code: str) -> str:
    """A status code that answers may show."""
    return code if code in _CODES else "UNSET"


def _details(full: AgentSpan) -> Json:
    return {
        "reasoning_content": full.reasoning_content or "",
        "tool_description": full.tool_description or "",
        "tool_definitions": full.tool_definitions or "",
        "tool_call_arguments": full.tool_call_arguments or "",
        "tool_call_result": full.tool_call_result or "",
        "compaction_summary": full.compaction_summary or "",
        "input_messages": normalized(full.input_messages),
        "output_messages": normalized(full.output_messages),
        "system_instructions": full.system_instructions,
        "content_refs": full.content_refs,
        "artifact_refs": full.artifact_refs,
        "object_refs": full.object_refs,
        "raw_span_dump": full.raw_span_dump,
    }


def _custom(custom: Json, columns: Iterable[ValueRef] | None) -> Json:
    if columns is None:
        return {source: custom.get(source, {}) for source in CUSTOM}
    shown: Json = {source: {} for source in CUSTOM}
    for column in columns:
        values = custom.get(column.source, {})
        if column.key in values:
            shown[column.source][column.key] = values[column.key]
    return shown
