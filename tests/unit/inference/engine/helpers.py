"""Requests in one line, and cores run to the end."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle.inference.engine.base import AdapterRef, Sampling, TokenRequest
from heddle.inference.engine.local.engine import EngineCore
from heddle.inference.structured.guidance import Constraint


def request(
    prompt: list[int] | tuple[int, ...],
    *,
    adapter: Path | None = None,
    constraint: Constraint | None = None,
    priority: int = 0,
    salt: str | None = None,
    **sampling: Any,
) -> TokenRequest:
    """A greedy request of 16 tokens unless said otherwise."""
    values = {"max_tokens": 16, "seed": 7, "temperature": 0.0} | sampling
    return TokenRequest(
        id="request",
        prompt=tuple(prompt),
        sampling=Sampling(**values),
        adapter=AdapterRef(adapter.name, adapter) if adapter else None,
        constraint=constraint,
        priority=priority,
        cache_salt=salt,
    )


@dataclass
class Result:
    """All events of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    cached: int | None = None
    prompt_logprobs: list[Any] | None = None
    end: tuple[str, Any] | None = None
    failure: Exception | None = None
    events: int = 0
    state: bytes | None = None


def collect(results: dict[int, Result], core: EngineCore) -> None:
    """One step."""
    for event in core.step():
        result = results.setdefault(event.number, Result())
        assert result.end is None and result.failure is None, "an event after the last one"
        assert (event.first is not None) == (result.events == 0)
        result.events += 1
        if event.failure is not None:
            result.failure = event.failure
            continue
        if event.token is not None:
            result.tokens.append(event.token)
        if event.logprobs is not None:
            result.logprobs.append(event.logprobs)
        if event.first is not None:
            result.cached, result.prompt_logprobs = event.first
        result.end, result.state = event.end, event.state


def run(core: EngineCore, *requests: TokenRequest, steps: int = 10_000) -> list[Result]:
    """The results of requests that are added together, in their order."""
    first = max([0, *core._sequences]) + 1
    results: dict[int, Result] = {}
    for number, each in enumerate(requests, first):
        core.add(number, each)
    while core.has_work:
        collect(results, core)
        steps -= 1
        assert steps, "the engine does not come to an end"
    return [results[number] for number in range(first, first + len(requests))]
