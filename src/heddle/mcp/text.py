"""Answers as short text: values cut to a size, with the size and the way to the rest said."""

import json
from collections.abc import Iterable
from typing import Any

from heddle.errors import HeddleError
from heddle.wire import jsontext
from heddle.wire.call_summary import Call, cost_of, name_of, problem_of
from heddle.wire.calls import tokens_of
from heddle.wire.jsontypes import is_index

MOST_CHARACTERS = 24_000
"""Of one answer; every tool keeps within it, whatever its arguments."""
PREVIEW = 160


def text_of(value: Any) -> str:
    """A text as it is, anything else as JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(value: Any, most: int = PREVIEW) -> str:
    """The beginning of a value on one line, and how many characters are left out."""
    text = " ".join(text_of(value).split())
    return text if len(text) <= most else f"{text[:most]}… (+{len(text) - most:,} characters)"


def cut_part(value: Any, offset: int, most: int) -> str:
    """A stretch of a value's text, with its place when it is not the whole."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    most = max(1, min(most, MOST_CHARACTERS - 1000))
    shown = text[offset : offset + most]
    if len(shown) == len(text):
        return shown
    end = offset + len(shown)
    rest = f"; offset={end} shows what follows" if end < len(text) else ""
    return f"{shown}\n[characters {offset:,} to {end:,} of {len(text):,}{rest}]"


def join_lines(lines: Iterable[str]) -> str:
    """The lines as one answer; raises nothing, says how many lines did not fit."""
    kept, size, left = list[str](), 0, 0
    for line in lines:
        size += len(line) + 1
        if left or size > MOST_CHARACTERS - 100:
            left += 1
        else:
            kept.append(line)
    if left:
        kept.append(f"[{left} more lines left out: the answer would be over {MOST_CHARACTERS:,} characters]")
    return "\n".join(kept)


def follow_path(value: Any, path: str) -> Any:
    """What a dotted path leads to; numbers are places in lists, JSON texts are looked into. Raises HeddleError."""
    here, walked = value, "the call"
    for step in (step for step in path.split(".") if step):
        if isinstance(here, str):
            here = _parsed(here)
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and is_index(step) and int(step) < len(here):
            here = here[int(step)]
        else:
            raise HeddleError(f"{walked} has no {step!r}; it has {_keys(here)}")
        walked = step
    return here


def _parsed(text: str) -> Any:
    try:
        return jsontext.loads_text(text)
    except ValueError:
        return text


def _keys(value: Any) -> str:
    if isinstance(value, dict):
        return cut(", ".join(map(str, value)) or "no fields", 500)
    return f"{len(value)} items" if isinstance(value, list) else "no fields, it is a plain value"


def call_metrics(call: Call) -> str:
    """Status, latency, tokens and cost of a call, on one line."""
    weave = call["summary"].get("weave") or {}
    parts = [str(weave.get("status", "?"))]
    if weave.get("latency_ms") is not None:
        parts.append(f"{weave['latency_ms']} ms")
    if tokens := tokens_of(call["summary"]):
        parts.append(f"{tokens} tokens")
    if (cost := cost_of(weave.get("costs"))) is not None:
        parts.append(f"${cost:.6g}")
    return " · ".join(parts)


def headline(call: Call) -> str:
    """One line about a call: name, call_metrics, id, and the message of its failure."""
    failed = f" · {cut(problem_of(call['exception']))}" if call.get("exception") else ""
    return f"{name_of(call)} [{call_metrics(call)}] id={call['id']}{failed}"
