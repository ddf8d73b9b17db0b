"""What this server counts about itself, in Prometheus' text form; nothing of it names users, projects or contents."""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

import heddle
from heddle.errors import HeddleError
from heddle.ipc import bounded
from heddle.metrics import make_counter, make_family, make_histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_GROUP, NO_ROUTE = "none", "(none)"
MESSAGES, EXPORTED = "heddle_alert_messages_total", "heddle_exported_spans_total"
OVER_QUOTA = "heddle_quota_refused_total"
STORED, REJECTED = "heddle_otlp_stored_total", "heddle_otlp_rejected_total"
_COUNTERS = (OVER_QUOTA, STORED, REJECTED, EXPORTED, MESSAGES)
_PATIENCE_SECONDS = 5.0
"""How long a look waits for an answer; Prometheus gives up after ten seconds."""

disable_created_metrics()  # type: ignore[no-untyped-call]

Values = Mapping[tuple[str, ...], float]
"""The values of a family by those of its labels; one without labels has the key `()`."""
_Key = tuple[str, str, tuple[tuple[str, str], ...]]
Increases = dict[_Key, float]
"""By how much samples grew: family, sample and labels of each."""


class _Answers(NamedTuple):
    """What one kind of answer is counted in."""

    requests: Counter
    seconds: Histogram
    received: Counter
    sent: Counter


class Metrics(Collector):
    """The metrics of one process. Those of the process that answers /metrics hold what its workers counted, too."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.refreshers: list[Callable[[], Awaitable[None]]] = []
        """Run before the metrics are written, for those that must be asked for."""
        self._counted: list[Collector] = []
        self._told: Increases = {}
        self._of_workers: dict[str, Increases] = {}
        self._answers: dict[tuple[str, str, int], _Answers] = {}
        self._requests = self._counter("heddle_http_requests_total")
        self._seconds = self._histogram("heddle_http_request_duration_seconds")
        self._received = self._counter("heddle_http_received_bytes_total")
        self._sent = self._counter("heddle_http_sent_bytes_total")
        self._lags = self._histogram("heddle_event_loop_lag_seconds")
        self._refused = self._counter("heddle_refused_total")
        self._counters = {name: self._counter(name) for name in _COUNTERS}
        for figure in ("processes", "refusals"):
            read = partial(_read_bounded, figure)
            self._counted.append(_Read(self.registry, f"heddle_bounded_{figure}_total", read))
        ProcessCollector(registry=self.registry)
        self.show("heddle_build_info", lambda: {(heddle.__version__, platform.python_version()): 1.0})

    def _counter(self, name: str) -> Counter:
        counter = make_counter(self.registry, name)
        self._counted.append(counter)
        return counter

    def _histogram(self, name: str) -> Histogram:
        histogram = make_histogram(self.registry, name)
        self._counted.append(histogram)
        return histogram

    def show(self, name: str, read: Callable[[], Values]) -> None:
        """Show values that are read at every look."""
        _Read(self.registry, name, read)

    def ask(self, name: str, ask: Callable[[], Awaitable[Values]]) -> None:
        """Show values that are asked for before every look; none while there is no answer."""
        found: Values = {}

        async def refresh() -> None:
            nonlocal found
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    found = await ask()
            except (HeddleError, TimeoutError):
                found = {}

        self.refreshers.append(refresh)
        self.show(name, lambda: found)

    def show_value(self, name: str, read: Callable[[], float]) -> None:
        """The same for a family without labels."""
        self.show(name, lambda: {(): read()})

    def ask_value(self, name: str, ask: Callable[[], Awaitable[float]]) -> None:
        """The same for a family without labels."""

        async def values() -> Values:
            return {(): await ask()}

        self.ask(name, values)

    def count_answer(self, route: Any, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count one answer; `route` is what matched (None: nothing), bodies in bytes."""
        path = getattr(route, "path", NO_ROUTE)
        answers = self._answers.get((path, method, status))
        if answers is None:
            group = getattr(route, "group", NO_GROUP)
            answers = self._answers[path, method, status] = _Answers(
                self._requests.labels(group, path, method, str(status)),
                self._seconds.labels(group, f"{status // 100}xx"),
                self._received.labels(group),
                self._sent.labels(group),
            )
        answers.requests.inc()
        answers.seconds.observe(seconds)
        answers.received.inc(received)
        answers.sent.inc(sent)

    def observe_lag(self, seconds: float) -> None:
        """Count how late the event loop was."""
        self._lags.observe(seconds)

    def count_refusal(self, limit: str) -> None:
        """Count what was refused or given up; `limit` is the setting that was met."""
        self._refused.labels(limit).inc()

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Count in one of `_COUNTERS`, under the values of its labels."""
        self._counters[name].labels(*labels).inc(by)

    def take_increases(self) -> Increases:
        """What was counted since this was called before, for the process that answers /metrics."""
        now = {
            (family.name, sample.name, tuple(sample.labels.items())): sample.value
            for collector in self._counted
            for family in collector.collect()
            for sample in family.samples
        }
        # What is new is told even where it is 0: a histogram lacks no bucket.
        increases = {
            key: value - self._told.get(key, 0.0) for key, value in now.items() if value != self._told.get(key)
        }
        self._told = now
        return increases

    def add(self, increases: Increases) -> None:
        """Add what a worker counted."""
        for key, grown in increases.items():
            of_family = self._of_workers.setdefault(key[0], {})
            of_family[key] = of_family.get(key, 0.0) + grown

    def collect(self) -> Iterator[Metric]:
        """All families, with the sums of all processes."""
        for family in self.registry.collect():
            if added := self._of_workers.get(family.name):
                family.samples = list(_with(family, added))
            yield family

    async def text(self) -> bytes:
        """All metrics."""
        await asyncio.gather(*(refresh() for refresh in self.refreshers))
        return generate_latest(self)


def _with(family: Metric, added: Increases) -> Iterable[Sample]:
    """The samples of a family, together with those of workers, which may have labels of their own."""
    values = {(family.name, sample.name, tuple(sample.labels.items())): sample.value for sample in family.samples}
    for key, value in added.items():
        values[key] = values.get(key, 0.0) + value
    return (Sample(name, dict(labels), value) for (_, name, labels), value in values.items())


def _read_bounded(figure: str) -> Values:
    return {(): bounded.figures()[figure]}


class _Read(Collector):
    """A family of values that are read when they are asked for."""

    def __init__(self, registry: CollectorRegistry, name: str, read: Callable[[], Values]) -> None:
        self._name, self._read = name, read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The family."""
        yield make_family(self._name, self._read())
