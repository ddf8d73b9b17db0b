"""Calls as OTLP trace exports in protobuf, written by hand: the few fields that are used need no generated code."""

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from benchmarks.payloads import Call


def varint(number: int) -> bytes:
    """A protobuf base-128 number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def piece(number: int, value: bytes | str) -> bytes:
    """A length-delimited field: message, text or bytes."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed64(number: int, value: int) -> bytes:
    """A fixed64 field, as times are."""
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def attribute(name: str, value: str | int) -> bytes:
    """One KeyValue as field content."""
    any_value = piece(1, value) if isinstance(value, str) else varint(3 << 3) + varint(value)
    return piece(1, name) + piece(2, any_value)


def nanoseconds(moment: str) -> int:
    """Unix nanoseconds of a time text."""
    return int(datetime.fromisoformat(moment).timestamp() * 1e6) * 1000


def span(call: Call) -> bytes:
    """One Span message with the attributes of an instrumented chat completion."""
    model, usage = next(iter(call["summary"]["usage"].items()))
    status = varint(3 << 3) + varint(2 if call["exception"] else 1)
    fields: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "llm.model_name": model,
        "input.value": orjson.dumps(call["inputs"]).decode(),
        "input.mime_type": "application/json",
        "output.value": orjson.dumps(call["output"]).decode(),
        "output.mime_type": "application/json",
        "llm.token_count.prompt": usage["prompt_tokens"],
        "llm.token_count.completion": usage["completion_tokens"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
    }
    parts = [piece(1, identity(call["trace_id"], 16)), piece(2, identity(call["id"], 8))]
    if call["parent_id"]:
        parts.append(piece(4, identity(call["parent_id"], 8)))
    parts.append(piece(5, call["op_name"].rpartition("/")[2].partition(":")[0]))
    parts.append(fixed64(7, nanoseconds(call["started_at"])) + fixed64(8, nanoseconds(call["ended_at"])))
    parts += [piece(9, attribute(name, value)) for name, value in fields.items()]
    parts.append(piece(15, status))
    return b"".join(parts)


def identity(uuid: str, size: int) -> bytes:
    """The last `size` bytes of a uuid: its random part where it is cut."""
    return bytes.fromhex(uuid.replace("-", ""))[-size:]


def export_request(calls: Sequence[Call]) -> bytes:
    """An ExportTraceServiceRequest with one resource and one scope."""
    resource = piece(1, piece(1, attribute("service.name", "heddle-benchmark")))
    scope = piece(2, piece(1, piece(1, "benchmarks")) + b"".join(piece(2, span(call)) for call in calls))
    return piece(1, resource + scope)
