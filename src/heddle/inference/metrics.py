"""Inference in /metrics and GET /v1/engine; models are named, projects, users, keys and adapters are not."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heddle.inference.engine.base import EngineFailed, EngineStats
from heddle.wire.inference import Completion

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_RATE_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
_COUNTED = {
    "preemptions": "Sequences that gave up their memory and were computed again.",
    "prefix_query_tokens": "Prompt tokens looked up in the prefix cache.",
    "prefix_hit_tokens": "Prompt tokens taken from the prefix cache.",
    "prompt_tokens": "Prompt tokens that the engine took.",
    "generated_tokens": "Tokens that the engine generated.",
    "aborted": "Sequences that were given up.",
    "steps": "Steps of the engine.",
    "step_seconds": "Time in steps of the engine.",
}
_NOW = {
    "running": "Sequences that are being generated.",
    "waiting": "Sequences that wait for the engine.",
    "kv_blocks_used": "Blocks of keys and values that sequences hold.",
    "kv_blocks_cached": "Blocks of keys and values kept for prefix reuse.",
    "kv_blocks_total": "Blocks of keys and values there can be.",
    "resident_bytes": "Memory of the engine's process.",
    "load_seconds": "What loading the model took.",
}


class HasStats(Protocol):
    """An engine, as far as figures go."""

    async def stats(self) -> EngineStats:
        """Figures now."""
        ...


EnginesOf = Callable[[], Mapping[str, HasStats]]
"""The engines by the public id of their base model."""


class InferenceMetrics:
    """Counts completions, and shows what engines say about themselves."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = Counter(
            "heddle_inference_requests", "Completions answered.", ["model", "status"], registry=registry
        )
        self._tokens = Counter("heddle_inference_tokens", "Tokens by kind.", ["model", "kind"], registry=registry)
        self._refused = Counter(
            "heddle_inference_limited", "Completions refused by a limit of a project or key.", registry=registry
        )
        self._failures = Counter(
            "heddle_inference_bookkeeping_failures",
            "Usage rows or calls that were not stored.",
            ["what"],
            registry=registry,
        )
        self._seconds = _histogram("seconds", "Time to the end of a completion.", _SECONDS, registry)
        self._first = _histogram("first_token_seconds", "Time to the first token.", _SECONDS, registry)
        self._between = _histogram(
            "inter_token_seconds", "Mean time between tokens of a completion.", _BETWEEN, registry
        )
        self._engines: EnginesOf = dict
        self._stats: dict[str, EngineStats] = {}
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._clock = clock
        registry.register(_EngineCollector(self))

    def watch(self, engines: EnginesOf) -> None:
        """Ask these engines from now on; the function is called at every look."""
        self._engines = engines

    def answered(self, completion: Completion) -> None:
        """Count one completion."""
        model = completion.base or "(none)"
        self._requests.labels(model, str(completion.status)).inc()
        for kind in ("prompt", "completion", "cached", "reasoning"):
            self._tokens.labels(model, kind).inc(getattr(completion, f"{kind}_tokens"))
        self._seconds.labels(model).observe(completion.seconds)
        first = completion.first_token_seconds
        if first is not None:
            self._first.labels(model).observe(first)
            if completion.completion_tokens > 1:
                self._between.labels(model).observe((completion.seconds - first) / (completion.completion_tokens - 1))

    def refused(self) -> None:
        """Count one completion that a limit kept out."""
        self._refused.inc()

    def not_stored(self, what: str) -> None:
        """Count one `usage` row or `trace` call that could not be stored."""
        self._failures.labels(what).inc()

    async def refresh(self) -> None:
        """Ask every engine for its figures."""
        self._stats = {model: await self._ask(model, engine) for model, engine in self._engines().items()}
        now = self._clock()
        for model, stats in self._stats.items():
            samples = self._samples.setdefault(model, deque())
            if samples and samples[-1][1] > stats.generated_tokens:
                samples.clear()
            samples.append((now, stats.generated_tokens))
            while len(samples) > 2 and samples[1][0] <= now - _RATE_SECONDS:
                samples.popleft()

    async def _ask(self, model: str, engine: HasStats) -> EngineStats:
        """An engine's figures; the last known ones when it does not answer."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await engine.stats()
        except (TimeoutError, EngineFailed):
            return self._stats.get(model) or EngineStats(state="failed")

    def tokens_per_second(self, model: str) -> float:
        """Generated tokens per second, over the last minute or since the look before."""
        samples = self._samples.get(model)
        if not samples or samples[-1][0] <= samples[0][0]:
            return 0.0
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])

    def stats(self) -> Mapping[str, EngineStats]:
        """What the engines said last."""
        return self._stats

    async def report(self) -> dict[str, Any]:
        """The body of GET /v1/engine: every engine's figures now, with ratios that people ask for."""
        await self.refresh()
        return {"object": "list", "data": [self._report(model, stats) for model, stats in self._stats.items()]}

    def _report(self, model: str, stats: EngineStats) -> dict[str, Any]:
        figures = asdict(stats)
        figures["adapters"] = len(stats.adapters)
        return {
            "object": "engine",
            "model": model,
            **figures,
            "kv_use": _ratio(stats.kv_blocks_used, stats.kv_blocks_total),
            "prefix_hit_rate": _ratio(stats.prefix_hit_tokens, stats.prefix_query_tokens),
            "tokens_per_second": self.tokens_per_second(model),
        }


def _histogram(name: str, help_text: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"heddle_inference_{name}", help_text, ["model"], buckets=buckets, registry=registry)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class _EngineCollector(Collector):
    """The engines' figures, as they were at the last refresh."""

    def __init__(self, figures: InferenceMetrics) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """One family per figure, labelled by base model."""
        stats = self._figures.stats()
        for name, help_text in _COUNTED.items():
            counter = CounterMetricFamily(f"heddle_engine_{name}", help_text, labels=["model"])
            for model, found in stats.items():
                counter.add_metric([model], getattr(found, name))
            yield counter
        for name, help_text in _NOW.items():
            yield _gauge(name, help_text, {model: getattr(found, name) for model, found in stats.items()})
        ready = {model: float(found.state == "ready") for model, found in stats.items()}
        yield _gauge("ready", "1 while the model is loaded.", ready)
        yield _gauge("adapters", "Adapter versions that are loaded.", {m: len(s.adapters) for m, s in stats.items()})
        rates = {model: self._figures.tokens_per_second(model) for model in stats}
        yield _gauge("tokens_per_second", "Generated tokens per second of late.", rates)


def _gauge(name: str, help_text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"heddle_engine_{name}", help_text, labels=["model"])
    for model, value in values.items():
        gauge.add_metric([model], value)
    return gauge
