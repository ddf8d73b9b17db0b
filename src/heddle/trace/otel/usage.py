"""The tokens that a span reports, as the entry of a call's `summary.usage`."""

from typing import Any

from heddle.trace.otel.expand import pick
from heddle.trace.otel.table import Named
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_SPELLINGS = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_SUMS = frozenset(("invoke_agent", "create_agent", "invoke_workflow"))
"""Operations whose tokens are those of the model calls below them, which report their own."""
_SUMMANDS = (
    ("prompt_tokens", "completion_tokens"),
    ("input_tokens", "output_tokens"),
    ("prompt_tokens", "output_tokens"),
    ("input_tokens", "completion_tokens"),
)


def usage_of(tree: Json, rows: Named, agent: AgentSpan | None) -> Json:
    """What is known of the tokens; empty for a span that reports none.

    `prompt_tokens` and `input_tokens` are two spellings of one count and are summed where they are priced, so a span
    that says the same count in both is stored with the first only; likewise for the answer's tokens. Cached tokens lie
    within the prompt's where the conventions say so for the library that reported them.
    """
    found: Json = {}
    for name, keys in rows:
        for _, path in keys:
            if value := pick(tree, path):
                if (number := _number(value)) is not None:
                    found[name] = number
                break
    for first, second in _SPELLINGS:
        if second in found and found.get(first) == found[second]:
            del found[second]
    if agent is not None:
        _complete(found, agent)
    _add_total(found)
    return found


def _number(value: Any) -> int | None:
    """A count; None for anything else, and for what is below nothing."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else -1
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 else None


def _complete(found: Json, agent: AgentSpan) -> None:
    """Counts that only the conventions know."""
    is_sum = agent.operation_name in _SUMS
    if is_sum and not found:
        return
    for name, tokens in (
        ("cache_read_input_tokens", agent.cache_read_input_tokens),
        ("cache_creation_input_tokens", agent.cache_creation_input_tokens),
        ("reasoning_tokens", agent.reasoning_tokens),
    ):
        if tokens and name not in found:
            found[name] = tokens
    for (first, second), tokens in zip(_SPELLINGS, (agent.input_tokens, agent.output_tokens), strict=True):
        if tokens and not is_sum and first not in found and second not in found:
            found[second] = tokens
    held = [name for name in _SPELLINGS[0] if name in found]
    cached = found.get("cache_read_input_tokens", 0) + found.get("cache_creation_input_tokens", 0)
    if len(held) == 1 and agent.input_tokens and cached <= found[held[0]] < agent.input_tokens:
        # This library counts cached tokens beside the others. Where the price could not tell, they are added.
        found[held[0]] = agent.input_tokens


def _add_total(found: Json) -> None:
    if "total_tokens" in found:
        return
    for prompt, completion in _SUMMANDS:
        if prompt in found and completion in found:
            found["total_tokens"] = found[prompt] + found[completion]
            return
