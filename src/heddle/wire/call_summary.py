"""What people read of a call that came from the API: its name, tokens, cost and failure."""

import json
from collections.abc import Mapping
from typing import Any

from heddle.wire.refs import operation_name

Call = Mapping[str, Any]
_COSTS = (
    "prompt_tokens_total_cost",
    "completion_tokens_total_cost",
    "cache_read_input_tokens_total_cost",
    "cache_creation_input_tokens_total_cost",
)
_PARTS = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")


def name_of(call: Call) -> str:
    """The name that the call is shown under."""
    weave = call["summary"].get("weave") or {}
    return str(call.get("display_name") or weave.get("trace_name") or operation_name(call["op_name"]))


def tokens_of(call: Call) -> int:
    """Tokens of all models, 0 where none are reported."""
    return sum(map(_total, (call["summary"].get("usage") or {}).values()))


def _total(usage: Mapping[str, Any]) -> int:
    parts = sum(usage.get(name) or 0 for name in _PARTS)
    return int(usage.get("total_tokens") or parts)


def cost_of(costs: Mapping[str, Mapping[str, Any]] | None) -> float | None:
    """US dollars of `summary.weave.costs`, all models together; None where none has a price."""
    found = [entry.get(name) for entry in (costs or {}).values() for name in _COSTS]
    return sum(value for value in found if value is not None) if costs else None


def problem_of(exception: str) -> str:
    """The message of an exception; SDKs send it as JSON text or as a traceback whose last line says what happened."""
    try:
        body = json.loads(exception)
    except ValueError:
        lines = exception.strip().splitlines()
        return lines[-1] if lines and lines[0].startswith("Traceback") else exception
    if not isinstance(body, dict) or "message" not in body:
        return exception
    return f"{body['type']}: {body['message']}" if body.get("type") else str(body["message"])
