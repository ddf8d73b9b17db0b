"""What this server counts about itself, in Prometheus' text form; nothing of it names users, projects or contents."""

from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heddle.ipc import bounded

_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]

Figures = Callable[[], dict[str, float]]


class Metrics:
    """Counters of one server; `figures` gives the store's numbers at the moment of asking."""

    def __init__(self, figures: Figures) -> None:
        self.registry = CollectorRegistry()
        self.refreshers: list[Callable[[], Awaitable[None]]] = []
        """Run before the figures are written, for those that must be asked for."""
        routes = ["route", "method", "status"]
        self._requests = Counter("heddle_requests", "Requests answered.", routes, registry=self.registry)
        self._seconds = Histogram(
            "heddle_request_seconds",
            "Time to the end of the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._lags = Histogram(
            "heddle_event_loop_lag_seconds",
            "How late the event loop ran what was due, 20 times a second.",
            buckets=_LAGS,
            registry=self.registry,
        )
        self._received = Counter("heddle_received_bytes", "Bytes of request bodies.", registry=self.registry)
        self._sent = Counter("heddle_sent_bytes", "Bytes of answer bodies.", registry=self.registry)
        self._refused = Counter(
            "heddle_refused",
            "What was refused or given up at a limit, by its setting.",
            ["limit"],
            registry=self.registry,
        )
        self._requests_of: dict[tuple[str, str, int], Counter] = {}
        self._seconds_of: dict[str, Histogram] = {}
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_StatsCollector("the store", figures))
        self.registry.register(_StatsCollector("the processes that run what clients wrote", bounded.figures))

    def gauge(self, name: str, text: str, ask: Callable[[], Awaitable[float]]) -> None:
        """Show a figure that is asked for at every look."""
        shown = Gauge(f"heddle_{name}", text, registry=self.registry)

        async def refresh() -> None:
            shown.set(await ask())

        self.refreshers.append(refresh)

    def answered(self, route: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count one answer; `route` is its template, bodies in bytes."""
        key = (route, method, status)
        counter = self._requests_of.get(key)
        if counter is None:
            counter = self._requests_of[key] = self._requests.labels(route, method, str(status))
        histogram = self._seconds_of.get(route)
        if histogram is None:
            histogram = self._seconds_of[route] = self._seconds.labels(route)
        counter.inc()
        histogram.observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def lagged(self, seconds: float) -> None:
        """Count how late the event loop was."""
        self._lags.observe(seconds)

    def refused(self, limit: str) -> None:
        """Count what was refused or given up; `limit` is the setting that was met."""
        self._refused.labels(limit).inc()

    async def text(self) -> bytes:
        """All figures."""
        for refresh in self.refreshers:
            await refresh()
        return generate_latest(self.registry)


class _StatsCollector(Collector):
    """The figures of a part of the server, read when they are asked for."""

    def __init__(self, part: str, figures: Figures) -> None:
        self._part, self._figures = part, figures

    def collect(self) -> Iterator[Metric]:
        """The families; a name that ends in `_total` counts, any other is a gauge."""
        for name, value in self._figures().items():
            if name.endswith("_total"):
                yield CounterMetricFamily(
                    f"heddle_{name.removesuffix('_total')}", f"A count of {self._part}.", value=value
                )
            else:
                yield GaugeMetricFamily(f"heddle_{name}", f"A figure of {self._part}.", value=value)
