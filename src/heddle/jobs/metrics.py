"""Jobs in /metrics: those that are open, by kind and state, and how those that ended did."""

from prometheus_client import CollectorRegistry

from heddle.metrics import make_counter, make_histogram


class JobMetrics:
    """Counts jobs that end at this server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = make_counter(registry, "heddle_jobs_ended_total")
        self._seconds = make_histogram(registry, "heddle_job_duration_seconds")

    def count_ended(self, kind: str, state: str, started_at: int | None, ended_at: int | None) -> None:
        """Count one job; instants in microseconds."""
        self._ended.labels(kind, state).inc()
        if started_at is not None and ended_at is not None:
            self._seconds.labels(kind).observe((ended_at - started_at) / 1e6)
