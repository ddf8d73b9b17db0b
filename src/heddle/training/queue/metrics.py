"""Training in /metrics; models, projects and users are not named."""

from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from heddle.store.control.jobs import OPEN, JobRow

LOWEST_CORRELATION = 0.98
"""Below this, the probabilities of training and of serving are not those of one policy."""
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
_LAST = {
    "offpolicy/ratio_mean": ("ratio_mean", "Mean importance ratio of the last gradient step."),
    "offpolicy/ratio_max": ("ratio_max", "Largest importance ratio of the last gradient step."),
    "offpolicy/clip_fraction": ("clip_fraction", "Share of clipped tokens in the last gradient step."),
    "offpolicy/lag_mean": ("lag_mean", "Mean age, in steps, of the trajectories of the last gradient step."),
    "loss/probs_corr": ("probs_corr", "Correlation of sampled and trained probabilities in the last gradient step."),
    "loss/grad_norm": ("grad_norm", "Norm of the gradient of the last gradient step."),
}
"""Figures of a gradient step, and the gauges that show them."""


class TrainingMetrics:
    """Counts what training does, and shows the last gradient step."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge("heddle_training_jobs", "Jobs that are not done.", ["state"], registry=registry)
        self._ended = Counter("heddle_training_jobs_ended", "Jobs that ended.", ["state"], registry=registry)
        self._lost = Counter(
            "heddle_training_attempts_lost", "Attempts whose process died or fell silent.", registry=registry
        )
        self._steps = Counter("heddle_training_steps", "Gradient steps.", registry=registry)
        self._tokens = Counter("heddle_training_tokens", "Trainable tokens of jobs that started.", registry=registry)
        self._seconds = Histogram(
            "heddle_training_job_seconds",
            "Time from the start of a job to its end.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._last = {
            figure: Gauge(f"heddle_training_{name}", text, registry=registry) for figure, (name, text) in _LAST.items()
        }
        self._alarm = Gauge(
            "heddle_training_mismatch",
            f"1 while probs_corr is below {LOWEST_CORRELATION}: serving and training do not agree.",
            registry=registry,
        )
        self._jobs: Callable[[], Awaitable[Sequence[JobRow]]] | None = None

    def watch(self, jobs: Callable[[], Awaitable[Sequence[JobRow]]]) -> None:
        """Ask this for the open jobs at every look."""
        self._jobs = jobs

    async def refresh(self) -> None:
        """Count the open jobs."""
        if self._jobs is not None:
            found = Tally(job.state for job in await self._jobs())
            for state in OPEN:
                self._open.labels(state).set(found[state])

    def started(self, figures: Mapping[str, float]) -> None:
        """A job began."""
        self._tokens.inc(figures.get("num_trainable_tokens", 0.0))

    def stepped(self, figures: Mapping[str, float]) -> None:
        """A gradient step was done."""
        self._steps.inc()
        for name, gauge in self._last.items():
            if name in figures:
                gauge.set(figures[name])
        if (correlation := figures.get("loss/probs_corr")) is not None:
            self._alarm.set(correlation < LOWEST_CORRELATION)

    def lost(self) -> None:
        """An attempt ended without a result."""
        self._lost.inc()

    def ended(self, job: JobRow) -> None:
        """A job is done."""
        self._ended.labels(job.state).inc()
        if job.started_at is not None and job.ended_at is not None:
            self._seconds.observe((job.ended_at - job.started_at) / 1e6)
