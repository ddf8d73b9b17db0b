"""The services of one server: what there is, built once, and given to each other here and nowhere else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from heddle.errors import HeddleError
from heddle.evals.jobs.service import Jobs
from heddle.evals.monitors.service import Monitors
from heddle.evals.replay.service import Replays
from heddle.evals.replay.work import ReplayWork
from heddle.evals.scoring import Scoring
from heddle.evals.service import Evaluations
from heddle.inference.api.completions import ModelCompletions
from heddle.inference.limits.accounts import Accounts
from heddle.inference.metrics import InferenceMetrics
from heddle.inference.models.engine_factory import make_engine
from heddle.inference.policies import Policies
from heddle.inference.service import Inference
from heddle.ipc import bounded
from heddle.metrics import Metrics
from heddle.retention import Retention
from heddle.server_state import ServerState
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.open import opened_store
from heddle.trace.alerts.service import AlertService
from heddle.trace.inference_calls import InferenceCalls, InferencePrices
from heddle.trace.records import TraceRecords
from heddle.trace.training_calls import TrainingCalls
from heddle.trace.training_data import TrainingData
from heddle.training.queue.metrics import TrainingMetrics
from heddle.training.queue.promotion import Promotion
from heddle.training.queue.supervisor import Supervisor
from heddle.training.service import Training
from heddle.training.services.rollouts import ReadableRenderer

_THREADS = 32
_NOTE_USE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Services(ServerState):
    """The services of the process that does everything; a worker has a ServerState alone."""

    retention: Retention
    inference: Inference
    training: Training
    jobs: Jobs
    evaluations: Evaluations
    scoring: Scoring
    monitors: Monitors
    alerts: AlertService
    replays: Replays

    async def why_not_ready(self) -> str | None:
        """As before, or what keeps the model from answering."""
        return await ServerState.why_not_ready(self) or self.inference.problem


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The services of one server, from the lock on its folder to the last commit; raises HeddleError."""
    # More than asyncio's few per core: threads that wait for a store that hangs must not hold up all others.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "heddle"))
    async with opened_store(settings) as store:
        await _require_key(settings, store)
        services = _build(settings, store)
        async with AsyncExitStack() as running:
            running.callback(bounded.close_all)
            started = (services.inference, services.training, services.jobs, services.monitors, services.alerts)
            for service in started:
                await service.start()
                running.push_async_callback(service.stop)
            async with _background(services):
                yield services
        await services.authenticator.note_use()
        await store.leases.give_back()


def _build(settings: Settings, store: Store) -> Services:
    """Each service, given what the others do for it."""
    metrics = _metrics(store)
    records, prices = TraceRecords(settings, store), InferencePrices(store)
    inference = _inference(settings, store, prices, metrics)
    models, parallel = ModelCompletions(settings, store, inference), settings.evaluation_parallel
    jobs = Jobs(settings, store.eval_jobs)
    evaluations = Evaluations(store, records, models, jobs, parallel)
    scoring = Scoring(store, records, models, jobs, parallel)
    evaluations.register()
    scoring.register()
    replay_work = ReplayWork(store, records, models, scoring.submit, parallel)
    return Services(
        settings,
        store,
        records,
        prices,
        metrics,
        retention=Retention(store, settings.retention_interval),
        inference=inference,
        training=_training(settings, store, inference, evaluations, metrics),
        jobs=jobs,
        evaluations=evaluations,
        scoring=scoring,
        monitors=Monitors(store, scoring.submit),
        alerts=AlertService(settings, store),
        replays=Replays(store, records, jobs, replay_work),
    )


def _metrics(store: Store) -> Metrics:
    """The metrics, with what the store did and what waits to be done in the background."""
    metrics = Metrics(
        lambda: {
            "store_commits_total": store.figures.groups,
            "store_writes_total": store.figures.items,
            "store_queue_bytes": store.figures.waiting_bytes,
        }
    )
    metrics.gauge("evaluation_jobs", "Jobs of evaluation that are not done.", store.eval_jobs.count_open)
    metrics.gauge("monitor_calls_waiting", "Ended calls that no monitor has looked at yet.", store.calls.count_endings)
    metrics.gauge(
        "alert_messages_waiting", "Messages of alerts that are not delivered yet.", store.alerts.count_waiting
    )
    return metrics


def _inference(settings: Settings, store: Store, prices: InferencePrices, metrics: Metrics) -> Inference:
    """Inference, given what the others do for it: the trace keeps its calls, /metrics shows its figures."""
    figures = InferenceMetrics(metrics.registry)
    accounts = Accounts(settings, store, InferenceCalls(settings, store), prices, figures)
    inference = Inference(settings, store.adapters, accounts, make_engine, store.changes)
    figures.watch(inference.engines)
    metrics.refreshers.append(figures.refresh)
    return inference


def _training(
    settings: Settings, store: Store, inference: Inference, evaluations: Evaluations, metrics: Metrics
) -> Training:
    """Training, given what the others do for it: inference serves its policies, the trace shows its jobs."""
    policies, calls, promotion = Policies(inference), TrainingCalls(settings, store), Promotion(evaluations)
    figures = TrainingMetrics(metrics.registry)
    metrics.refreshers.append(figures.refresh)
    supervisor = Supervisor(settings, store.train_models, store.train_jobs, policies, store.blobs.path, figures)
    supervisor.publisher.judge = promotion
    supervisor.publisher.observers.append(calls)
    return Training(
        settings,
        store,
        policies,
        supervisor,
        calls=calls,
        datasets=TrainingData(settings, store),
        promotion=promotion,
        load_renderer=_renderer,
    )


def _renderer(folder: Path) -> ReadableRenderer:
    # What reads tokenizers may not be installed where nothing is trained.
    from heddle.inference.trajectory_renderer import TrajectoryRenderer

    return TrajectoryRenderer.load(folder)


async def _require_key(settings: Settings, store: Store) -> None:
    """Raise HeddleError when others can reach the server and nothing keeps them out."""
    if not settings.needs_key and not settings.is_loopback:
        raise HeddleError(
            f"auth = 'off' is allowed on a loopback address only, and host is {settings.host!r}; leave auth out"
        )
    if settings.needs_key and not await store.keys.any_usable():
        where = f"--data {settings.data}" if settings.control == "sqlite" else "--control postgresql://..."
        raise HeddleError(
            f"Requests to {settings.host} need a key and there is none yet. Make one with:\n"
            f"  heddle keys create {where} --user NAME --scope admin"
        )


@asynccontextmanager
async def _background(services: Services) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(services.retention.run()), asyncio.create_task(_note_use(services))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _note_use(services: Services) -> None:
    while True:
        await asyncio.sleep(_NOTE_USE_SECONDS)
        with contextlib.suppress(HeddleError):
            await services.authenticator.note_use()
