"""Inference in /metrics and GET /v1/engine; models are named, projects, users, keys and adapters are not."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from heddle.inference.engine.base import Engine, EngineFailed, EngineStats
from heddle.metrics import ROWS, make_counter, make_family, make_histogram
from heddle.wire.inference import Completion

_RATE_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
_PREFIX = "heddle_engine_"
_ENGINE_ROWS = tuple(name for name in ROWS if name.startswith(_PREFIX))
_NAMES = {"kv_blocks": "kv_blocks_total", "resident_memory_bytes": "resident_bytes"}
"""What EngineStats calls a figure differently."""


EnginesOf = Callable[[], Mapping[str, Engine]]
"""The engines by the public id of their base model."""


class InferenceMetrics(Collector):
    """Counts completions, and shows what engines say about themselves."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = make_counter(registry, "heddle_inference_requests_total")
        self._tokens = make_counter(registry, "heddle_inference_tokens_total")
        self._refused = make_counter(registry, "heddle_inference_limited_total")
        self._failures = make_counter(registry, "heddle_inference_bookkeeping_failures_total")
        for what in ("usage", "trace"):
            self._failures.labels(what)
        self._seconds = make_histogram(registry, "heddle_inference_seconds")
        self._first = make_histogram(registry, "heddle_inference_first_token_seconds")
        self._between = make_histogram(registry, "heddle_inference_inter_token_seconds")
        self._engines: EnginesOf = dict
        self._stats: dict[str, EngineStats] = {}
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._clock = clock
        registry.register(self)

    def watch(self, engines: EnginesOf) -> None:
        """Ask these engines from now on; the function is called at every look."""
        self._engines = engines

    def count_completion(self, completion: Completion) -> None:
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

    def count_refusal(self) -> None:
        """Count one completion that a limit kept out."""
        self._refused.inc()

    def count_failure(self, what: str) -> None:
        """Count one `usage` row or `trace` call that could not be stored."""
        self._failures.labels(what).inc()

    async def refresh(self) -> None:
        """Ask every engine for its stats."""
        self._stats = {model: await self._ask(model, engine) for model, engine in self._engines().items()}
        now = self._clock()
        for model, stats in self._stats.items():
            samples = self._samples.setdefault(model, deque())
            if samples and samples[-1][1] > stats.generated_tokens:
                samples.clear()
            samples.append((now, stats.generated_tokens))
            while len(samples) > 2 and samples[1][0] <= now - _RATE_SECONDS:
                samples.popleft()

    async def _ask(self, model: str, engine: Engine) -> EngineStats:
        """An engine's stats; the last known ones when it does not answer."""
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
        """The body of GET /v1/engine: every engine's stats now, with ratios that people ask for."""
        await self.refresh()
        return {"object": "list", "data": [self._report(model, stats) for model, stats in self._stats.items()]}

    def _report(self, model: str, stats: EngineStats) -> dict[str, Any]:
        values = asdict(stats)
        values["adapters"] = len(stats.adapters)
        return {
            "object": "engine",
            "model": model,
            **values,
            "kv_use": _ratio(stats.kv_blocks_used, stats.kv_blocks_total),
            "prefix_hit_rate": _ratio(stats.prefix_hit_tokens, stats.prefix_query_tokens),
            "tokens_per_second": self.tokens_per_second(model),
        }

    def collect(self) -> Iterator[Metric]:
        """One family per figure, labelled by base model."""
        for name in _ENGINE_ROWS:
            yield make_family(name, {(model,): _figure(name, stats) for model, stats in self._stats.items()})


def _figure(row: str, stats: EngineStats) -> float:
    name = row.removeprefix(_PREFIX).removesuffix("_total")
    if name == "ready":
        return float(stats.state == "ready")
    if name == "adapters":
        return len(stats.adapters)
    return float(getattr(stats, _NAMES.get(name, name)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
