"""A call as a row of the list: small, with lines for input and output in the place of the payloads."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from heddle.call_summary import problem_of
from heddle.ui.reads import calls_preview as preview
from heddle.wire import refs
from heddle.wire.calls import STATUS_WORDS, SUCCESS, CallRow
from heddle.wire.inference import CostOf

_VALUE_LENGTH = 200
_SCORE = "wandb.runnable."
_SCORER = re.compile(r"(^|[._])(score|scorer|judge)$", re.IGNORECASE)
_KINDS = {"agent": "agent", "tool": "tool", "search": "tool", "retriever": "tool", "reranker": "tool", "llm": "llm"}
_KINDS |= {"embedding": "llm", "scorer": "scorer", "guardrail": "scorer"}
_KINDS |= {"chain": "chain", "workflow": "chain", "evaluation": "chain"}


def row(
    call: CallRow, cost: CostOf, columns: Sequence[Sequence[str]], feedback: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the page shows of a call; `columns` are the paths of dynamic columns, taken apart.

    What goes without saying is left out: a root, success, kind fn. `at` and `took` are microseconds.
    """
    inputs, attributes = _loaded(call.inputs), _loaded(call.attributes)
    output, summary = _loaded(call.output), _loaded(call.summary)
    usage, named = _usage(summary), _named_model(inputs)
    model, tokens, dollars = _spent(usage, call.started_at, cost)
    kind = _kind(call, attributes, bool(usage) and named is not None)
    shown: dict[str, Any] = {
        "id": call.id,
        "trace": call.trace_id,
        "child": call.parent_id is not None or None,
        "op": refs.operation_name(call.op_name),
        "name": call.display_name or None,
        "kind": None if kind == "fn" else kind,
        "status": None if call.status == SUCCESS else STATUS_WORDS[call.status],
        "at": call.started_at,
        "took": None if call.ended_at is None else max(0, call.ended_at - call.started_at),
        "user": call.user,
        "thread": call.thread_id or None,
        "model": model or named,
        "tokens": tokens,
        "cost": None if dollars is None else round(dollars, 8),
        "input": preview.of_inputs(inputs) or None,
        "output": preview.of_output(output) or None,
        "error": preview.line(problem_of(call.exception)) if call.exception else None,
        "feedback": len(feedback) or None,
    }
    if columns:
        roots = {"inputs": inputs, "attributes": attributes, "output": output, "summary": summary}
        roots["scores"] = scores_of(feedback)
        shown["values"] = [_value(_at(roots, path)) for path in columns]
    return {name: value for name, value in shown.items() if value is not None}


def by_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rows as a list per field: half as many bytes."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def models_of(call: CallRow) -> list[str]:
    """The models that a call used."""
    return list(_usage(_loaded(call.summary)))


def _named_model(inputs: Any) -> str | None:
    model = inputs.get("model") if isinstance(inputs, dict) else None
    return model if isinstance(model, str) else None


def _loaded(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _usage(summary: Any) -> dict[str, dict[str, Any]]:
    usage = summary.get("usage") if isinstance(summary, dict) else None
    return {name: entry for name, entry in usage.items() if isinstance(entry, dict)} if isinstance(usage, dict) else {}


def _count(entry: Mapping[str, Any], *names: str) -> int:
    return sum(int(value) for name in names if isinstance(value := entry.get(name), (int, float)))


def _tokens(entry: Mapping[str, Any]) -> int:
    parts = _count(entry, "prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
    return parts or _count(entry, "total_tokens")


def _spent(usage: dict[str, dict[str, Any]], at: int, cost: CostOf) -> tuple[str | None, int | None, float | None]:
    """The model used most, all tokens, and dollars (None where no model has a price)."""
    if not usage:
        return None, None, None
    dollars = [
        cost(
            name,
            at,
            requests=_count(entry, "requests"),
            prompt_tokens=_count(entry, "prompt_tokens", "input_tokens"),
            completion_tokens=_count(entry, "completion_tokens", "output_tokens"),
            cached_tokens=_count(entry, "cache_read_input_tokens"),
            created_tokens=_count(entry, "cache_creation_input_tokens"),
        )
        for name, entry in usage.items()
    ]
    priced = [amount for amount in dollars if amount is not None]
    tokens = sum(_tokens(entry) for entry in usage.values())
    most = max(usage, key=lambda name: _tokens(usage[name]))
    return most, tokens or None, sum(priced) if priced else None


def _kind(call: CallRow, attributes: Any, spends: bool) -> str:
    """What the call says it is, else what its name and its usage give away (as lib/spans.js does)."""
    said = attributes if isinstance(attributes, dict) else {}
    weave = said.get("weave")
    for value in (weave.get("kind") if isinstance(weave, dict) else None, said.get("kind")):
        if isinstance(value, str) and (known := _KINDS.get(value.lower())):
            return known
    name = refs.operation_name(call.op_name)
    if spends:
        return "llm"
    if name.startswith("Evaluation.") or name.endswith(".predict_and_score"):
        return "chain"
    return "scorer" if _SCORER.search(name) else "fn"


def scores_of(feedback: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest result of every scorer."""
    found: dict[str, Any] = {}
    for entry in feedback:
        name = entry["feedback_type"]
        if name.startswith(_SCORE):
            payload = orjson.loads(orjson.dumps(entry["payload"]))
            found[name.removeprefix(_SCORE)] = payload.get("output") if isinstance(payload, dict) else payload
    return found


def _at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 10 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else preview.line(value, _VALUE_LENGTH)
