"""The services of one server: what there is, built once, and given to each other here and nowhere else."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heddle.archives import Archives
from heddle.errors import HeddleError
from heddle.evals.jobs import Jobs
from heddle.evals.monitors import Monitors
from heddle.evals.predictions import Asker, Counted
from heddle.evals.replay.job import ReplayJobs
from heddle.evals.scoring import Scoring
from heddle.evals.service import Evaluations
from heddle.http.metrics import MESSAGES, REJECTED, Metrics, Values
from heddle.http.state import ServerState
from heddle.improve.job import Improvements
from heddle.inference.accounts import Accounts
from heddle.inference.api.completions import ModelCompletions
from heddle.inference.metrics import InferenceMetrics
from heddle.inference.policies import Policies
from heddle.inference.responses.service import Responses
from heddle.inference.served_model import make_engine
from heddle.inference.service import Inference
from heddle.ipc import bounded
from heddle.jobs.metrics import JobMetrics
from heddle.purge import Purges
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.data_folder import BackupState, Measured
from heddle.store.open import opened_store
from heddle.trace.alerts.service import AlertService
from heddle.trace.otel.export import Cause
from heddle.trace.otel.reading import from_dump
from heddle.trace.project import Retention
from heddle.trace.records import InferencePrices, TraceRecords
from heddle.trace.training_data import TrainingData
from heddle.training.queue.events import KIND_PREFIX, TrainingMetrics
from heddle.training.queue.publish import Promotion
from heddle.training.queue.supervisor import Supervisor
from heddle.training.rollouts import ReadableRenderer
from heddle.training.ruler import Ruler
from heddle.training.service import Training
from heddle.training.tinker.runner import TinkerWork
from heddle.training.tinker.service import Tinker
from heddle.ui.reads.calls_change import CallChanges
from heddle.wire import times
from heddle.wire.keys import ROLES, Grant
from heddle.wire.otlp import SIGNALS

logger = logging.getLogger("heddle.services")

_THREADS = 32
_NOTE_USE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Services(ServerState):
    """The services of the process that does everything; a worker has a ServerState alone."""

    retention: Retention
    inference: Inference
    responses: Responses
    training: Training
    tinker: Tinker
    tinker_work: TinkerWork
    jobs: Jobs
    evaluations: Evaluations
    scoring: Scoring
    monitors: Monitors
    alerts: AlertService
    replays: ReplayJobs
    improvements: Improvements
    disk: Measured

    async def why_not_ready(self) -> str | None:
        """As before, or what keeps the model from answering."""
        return await ServerState.why_not_ready(self) or self.inference.problem


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The services of one server, from the lock on its folder to the last commit; raises HeddleError."""
    # More than asyncio's few per core: threads that wait for a store that hangs must not hold up all others.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "heddle"))
    async with opened_store(settings) as store:
        await _prepare_keys(settings, store)
        services = _build(settings, store)
        services.quotas.show(services.metrics)
        async with AsyncExitStack() as running:
            running.callback(bounded.close_all)
            started = (
                services.inference,
                services.responses,
                services.training,
                services.tinker_work,
                services.jobs,
                services.monitors,
                services.alerts,
            )
            for service in started:
                await service.start()
                running.push_async_callback(service.stop)
            async with _background(services), services.span_export.running(), services.quotas.running():
                yield services
        await services.note(is_end=True)
        await store.leases.give_back()


def _build(settings: Settings, store: Store) -> Services:
    """Each service, given what the others do for it."""
    disk = Measured(store.sizes)
    metrics = _metrics(settings, store, disk)
    records, prices = TraceRecords(settings, store), InferencePrices(store)
    inference = _inference(settings, store, prices, metrics)
    models, parallel = ModelCompletions(settings, store, inference), settings.evaluation_parallel
    ended = JobMetrics(metrics.registry)
    jobs = Jobs(settings, store.eval_jobs, ended)
    evaluations = Evaluations(store, records, models, jobs, parallel)
    scoring = Scoring(store, records, models, jobs, parallel)
    evaluations.register()
    scoring.register()
    replays = ReplayJobs(store, records, models, scoring, jobs, parallel)
    replays.register()
    CallChanges(store, records, prices).register(jobs)
    jobs.find_problems = store.keys.problems
    Archives(settings, store).register(jobs)
    training = _training(settings, store, inference, models, evaluations, metrics, ended)
    improvements = Improvements(store, records, models, jobs, evaluations, training, parallel)
    improvements.register()
    Purges(settings, store, jobs, training)
    tinker = Tinker(settings, store, training, training.policies)
    services = Services(
        settings,
        store,
        records,
        prices,
        from_dump,
        metrics,
        retention=Retention(store, settings.retention_interval, settings.audit_days),
        inference=inference,
        responses=Responses(settings, store, inference),
        training=training,
        tinker=tinker,
        tinker_work=TinkerWork(tinker, training.supervisor),
        jobs=jobs,
        evaluations=evaluations,
        scoring=scoring,
        monitors=Monitors(store, scoring.submit),
        alerts=AlertService(settings, store, partial(metrics.count, MESSAGES)),
        replays=replays,
        improvements=improvements,
        disk=disk,
    )
    models.count, jobs.check_room = services.quotas.count_of_job, services.quotas.check_room_of
    return services


def _metrics(settings: Settings, store: Store, disk: Measured) -> Metrics:
    """The metrics, with what the store did, how large it is, and what waits to be done in the background."""
    metrics = Metrics()
    for name, read in (
        ("calls_stored_total", lambda: store.stats.calls),
        ("store_commits_total", lambda: store.stats.groups),
        ("store_commit_seconds_total", lambda: store.stats.seconds),
        ("store_writes_total", lambda: store.stats.items),
        ("store_written_bytes_total", lambda: store.stats.written_bytes),
        ("store_queue_bytes", lambda: store.stats.waiting_bytes),
        ("store_queue_limit_bytes", lambda: settings.write_queue_bytes),
        ("database_limit_bytes", lambda: settings.max_database_bytes),
    ):
        metrics.show_value(f"heddle_{name}", read)
    # A series that begins with its first rejection has no increase for an alert to see.
    for signal in SIGNALS:
        for cause in Cause:
            metrics.count(REJECTED, signal, cause, by=0)
    metrics.refreshers.append(disk.refresh)

    def parts() -> Values:
        return {(name,): size for name, size in disk.sizes.parts.items()} if disk.sizes else {}

    def backups() -> Values:
        state = BackupState.read(Path(settings.data))
        found = {("made",): state.made_at, ("restored",): state.restored_at, ("failed",): state.failed_at}
        return {outcome: at / times.SECOND for outcome, at in found.items() if at}

    metrics.show("heddle_disk_used_bytes", parts)
    metrics.show("heddle_backup_timestamp_seconds", backups)
    metrics.show("heddle_disk_free_bytes", lambda: {(): disk.sizes.disk_free} if disk.sizes else {})
    metrics.show("heddle_disk_size_bytes", lambda: {(): disk.sizes.disk} if disk.sizes else {})

    async def open_jobs() -> Values:
        training = await store.train_jobs.count_open()
        renamed = {(f"{KIND_PREFIX}{kind}", state): count for (kind, state), count in training.items()}
        return await store.eval_jobs.count_open() | renamed

    async def redacted() -> Values:
        return {(kind,): count for kind, count in (await store.redaction.counts()).items()}

    metrics.ask("heddle_redacted_values_total", redacted)
    metrics.ask("heddle_jobs", open_jobs)
    metrics.ask("heddle_alert_rules", store.alerts.count_states)
    metrics.ask_value("heddle_monitor_calls_waiting", store.calls.count_endings)
    metrics.ask_value("heddle_alert_messages_waiting", store.alert_deliveries.count_waiting)
    return metrics


def _inference(settings: Settings, store: Store, prices: InferencePrices, metrics: Metrics) -> Inference:
    """Inference, given what the others do for it: the trace keeps its calls, /metrics shows its figures."""
    figures = InferenceMetrics(metrics.registry)
    accounts = Accounts(settings, store, TraceRecords(settings, store), prices, figures)
    inference = Inference(settings, store.adapters, accounts, make_engine, store.changes)
    figures.watch(inference.engines)
    metrics.refreshers.append(figures.refresh)
    return inference


def _training(
    settings: Settings,
    store: Store,
    inference: Inference,
    models: ModelCompletions,
    evaluations: Evaluations,
    metrics: Metrics,
    ended: JobMetrics,
) -> Training:
    """Training, given what the others do for it: inference serves its policies, the trace shows its jobs."""
    policies, calls, promotion = Policies(inference), TraceRecords(settings, store), Promotion(evaluations)
    figures = TrainingMetrics(metrics.registry, ended)
    supervisor = Supervisor(settings, store.train_models, store.train_jobs, policies, store.blobs.path, figures)
    supervisor.find_problems = store.keys.problems
    supervisor.ruler = ruler = Ruler(
        Path(settings.data),
        store.blobs,
        models.check,
        lambda caller, project: Counted(Asker(models, caller, project)),
        calls.store,
        settings.evaluation_parallel,
    )
    supervisor.publisher.judge = promotion.judge
    supervisor.publisher.observers.append(calls.ended)
    return Training(
        settings,
        store,
        policies,
        supervisor,
        calls=calls,
        datasets=TrainingData(settings, store),
        promotion=promotion,
        ruler=ruler,
        count_refusal=metrics.count_refusal,
        load_renderer=_renderer,
    )


def _renderer(folder: Path) -> ReadableRenderer:
    # What reads tokenizers may not be installed where nothing is trained.
    from heddle.inference.trajectory_renderer import TrajectoryRenderer

    return TrajectoryRenderer.load(folder)


async def _prepare_keys(settings: Settings, store: Store) -> None:
    """Make the first key where one is given; raises HeddleError when others can come in and nothing keeps them out."""
    if not settings.needs_key and not settings.is_loopback:
        raise HeddleError(
            f"auth = 'off' is allowed only on a loopback address, but host is {settings.host!r}; remove the "
            "setting auth"
        )
    if key := settings.first_key():
        await store.keys.ensure(key, "admin", (Grant("", ROLES["admin"]),), "bootstrap key")
    if settings.needs_key and not await store.keys.any_usable():
        where = f"--data {settings.data}" if settings.control == "sqlite" else "--control postgresql://..."
        logger.warning("there are no keys yet, so every request returns 401; create the first key with:")
        logger.warning("  heddle keys create %s --user NAME --role admin", where)
        logger.warning("or start with HEDDLE_BOOTSTRAP_KEY or --bootstrap-key-file")


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
            await services.note()
