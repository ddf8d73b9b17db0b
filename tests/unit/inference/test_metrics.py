"""Inference in /metrics and in the engine's report."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from heddle.auth import LOCAL
from heddle.inference import metrics as module
from heddle.inference.engine.base import EngineFailed, EngineStats
from heddle.inference.metrics import InferenceMetrics
from heddle.wire.inference import Completion


class StillEngine:
    """An engine whose figures the test sets."""

    def __init__(self) -> None:
        self.figures = EngineStats()

    async def stats(self) -> EngineStats:
        """What was set."""
        return self.figures


class SilentEngine(StillEngine):
    """An engine that stops to answer."""

    error: Exception | None = None
    asked = 0

    async def stats(self) -> EngineStats:
        """What was set, an error, or nothing ever."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return await super().stats() if self.asked == 1 else await asyncio.get_running_loop().create_future()


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def text(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_the_engines_figures_are_shown_by_model() -> None:
    registry = CollectorRegistry()
    figures, engine = InferenceMetrics(registry), StillEngine()
    figures.watch(lambda: {"tiny": engine})
    engine.figures = EngineStats(
        state="ready", running=3, waiting=2, kv_blocks_used=5, kv_blocks_total=20, prefix_query_tokens=100,
        prefix_hit_tokens=25, preemptions=1, adapters=("team/p/secret@1", "team/p/secret@2"),
    )  # fmt: skip
    asyncio.run(figures.refresh())
    lines = text(registry)
    for line in (
        'heddle_engine_running{model="tiny"} 3.0',
        'heddle_engine_waiting{model="tiny"} 2.0',
        'heddle_engine_kv_blocks_used{model="tiny"} 5.0',
        'heddle_engine_prefix_hit_tokens_total{model="tiny"} 25.0',
        'heddle_engine_preemptions_total{model="tiny"} 1.0',
        'heddle_engine_ready{model="tiny"} 1.0',
        'heddle_engine_adapters{model="tiny"} 2.0',
    ):
        assert line in lines
    report = asyncio.run(figures.report())["data"][0]
    assert (report["object"], report["model"], report["state"]) == ("engine", "tiny", "ready")
    assert (report["kv_use"], report["prefix_hit_rate"], report["adapters"]) == (0.25, 0.25, 2)
    assert "secret" not in str(report) + "".join(lines)


def test_no_private_name_reaches_the_metrics() -> None:
    registry = CollectorRegistry()
    figures = InferenceMetrics(registry)
    values: dict[str, Any] = {"request": {}, "started_at": datetime.now(UTC), "caller": LOCAL, "request_id": "r"}
    figures.count_completion(
        Completion(project="team/hush", model="hush-1", served="team/hush/a", base="tiny", user="hush", **values)
    )
    figures.count_refusal()
    figures.count_failure("trace")
    assert "hush" not in "".join(text(registry))
    assert 'heddle_inference_requests_total{model="tiny",status="200"} 1.0' in text(registry)


def test_tokens_per_second_are_those_of_the_last_minute() -> None:
    clock = Clock()
    figures, engine = InferenceMetrics(CollectorRegistry(), clock), StillEngine()
    figures.watch(lambda: {"tiny": engine})

    def look(at: float, generated: int) -> float:
        clock.now, engine.figures.generated_tokens = at, generated
        asyncio.run(figures.refresh())
        return figures.tokens_per_second("tiny")

    assert look(0, 0) == 0.0
    assert look(10, 100) == 10.0
    assert look(60, 100) == pytest.approx(100 / 60)
    assert look(80, 800) == 10.0, "since second 10, the newest look that is a minute old"
    assert look(500, 1220) == 1.0, "since the look before, when that is older"
    assert look(510, 0) == 0.0, "a restarted engine counts anew"
    assert look(520, 30) == 3.0
    assert figures.tokens_per_second("unknown") == 0.0


@pytest.mark.parametrize("error", [None, EngineFailed("gone")])
def test_an_engine_that_does_not_answer_keeps_its_last_figures(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    figures, engine = InferenceMetrics(CollectorRegistry()), SilentEngine()
    engine.figures.steps = 7
    figures.watch(lambda: {"tiny": engine})
    asyncio.run(figures.refresh())
    engine.error = error
    asyncio.run(figures.refresh())
    assert (engine.asked, figures.stats()["tiny"].steps) == (2, 7)
