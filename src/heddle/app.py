"""Builds the application: opens the house, mounts the routers, closes in reverse."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

import heddle
from heddle import failures
from heddle.compat import graphql, pages
from heddle.edge import Edge
from heddle.errors import HeddleError
from heddle.evals import routes as evaluations
from heddle.evals.families import datasets as v2_datasets
from heddle.evals.families import evaluations as v2_evaluations
from heddle.evals.families import models as v2_models
from heddle.evals.families import ops as v2_ops
from heddle.evals.families import predictions as v2_predictions
from heddle.evals.families import runs as v2_runs
from heddle.evals.families import scorers as v2_scorers
from heddle.evals.families import scores as v2_scores
from heddle.evals.monitors import routes as monitors
from heddle.evals.monitors.service import Monitors
from heddle.evals.queues import routes as annotation_queues
from heddle.evals.replay import routes as replays
from heddle.evals.replay.service import Replays
from heddle.evals.replay.work import ReplayWork
from heddle.evals.results import routes as eval_results
from heddle.evals.scoring import Scoring
from heddle.evals.service import Evaluations
from heddle.house import House
from heddle.inference import catalogue, chat, completions, images, information, runtimes
from heddle.inference import usage as inference_usage
from heddle.inference.accounts import Accounts
from heddle.inference.engine.make import make_engine
from heddle.inference.figures import InferenceFigures
from heddle.inference.policies import Policies
from heddle.inference.service import Inference
from heddle.ipc import bounded
from heddle.settings import Settings
from heddle.store.open import opened_store
from heddle.trace import (
    costs,
    dataset_sources,
    file_urls,
    files,
    objects,
    project,
    refs,
    registry,
    service,
    stats,
    tables,
    threads,
    usage,
)
from heddle.trace.agents import routes as agents
from heddle.trace.alerts import routes as alerts
from heddle.trace.alerts.service import AlertService
from heddle.trace.calls import routes as calls
from heddle.trace.feedback import routes as feedback
from heddle.trace.inference_calls import InferenceCalls, InferencePrices
from heddle.trace.otel import routes as otel
from heddle.trace.records import TraceRecords
from heddle.trace.training_calls import TrainingCalls
from heddle.trace.training_data import TrainingData
from heddle.training.queue.figures import TrainingFigures
from heddle.training.queue.promotion import Promotion
from heddle.training.queue.supervisor import Supervisor
from heddle.training.routes import base_models, checkpoints, jobs, logs, models, sft_jobs
from heddle.training.service import Training
from heddle.training.services.rollouts import ReadableRenderer
from heddle.ui import pages as ui_pages
from heddle.ui import session as ui_session
from heddle.ui.reads import calls as ui_calls
from heddle.ui.reads import calls_export as ui_calls_export
from heddle.ui.reads import costs as ui_costs
from heddle.ui.reads import evaluations as ui_evaluations
from heddle.ui.reads import inference as ui_inference
from heddle.ui.reads import ops as ui_ops
from heddle.ui.reads import overview as ui_overview
from heddle.ui.reads import projects as ui_projects
from heddle.ui.reads import settings as ui_settings
from heddle.ui.reads import threads as ui_threads
from heddle.ui.reads import trace as ui_trace
from heddle.ui.reads import training as ui_training
from heddle.ui.reads import trajectories as ui_trajectories

_GROUPS = (
    calls,
    otel,
    agents,
    usage,
    stats,
    threads,
    costs,
    feedback,
    annotation_queues,
    files,
    file_urls,
    objects,
    registry,
    dataset_sources,
    refs,
    tables,
    project,
    alerts,
    monitors,
    replays,
    service,
    chat,
    catalogue,
    inference_usage,
    completions,
    images,
    runtimes,
    information,
    models,
    checkpoints,
    logs,
    jobs,
    sft_jobs,
    base_models,
    v2_ops,
    v2_datasets,
    v2_scorers,
    v2_evaluations,
    v2_models,
    v2_runs,
    v2_predictions,
    v2_scores,
    eval_results,
    evaluations,
    graphql,
    pages,
    ui_session,
    ui_calls,
    ui_calls_export,
    ui_costs,
    ui_ops,
    ui_projects,
    ui_settings,
    ui_overview,
    ui_training,
    ui_inference,
    ui_trajectories,
    ui_threads,
    ui_evaluations,
    ui_trace,
    ui_pages,
)
"""The modules whose `router` is served, one per group of the interface."""

_THREADS = 32
_HOT = (
    "/v2/{entity}/{project}/calls/complete",
    "/call/upsert_batch",
    "/call/start",
    "/call/end",
    "/v2/{entity}/{project}/call/start",
    "/v2/{entity}/{project}/call/end",
    "/obj/create",
    "/file/create",
    "/calls/stream_query",
    "/otel/v1/traces",
    "/agents/otel/v1/traces",
)
"""The routes of the write path are tried first: the framework tries one after the other."""

_NOTE_USE_SECONDS = 10.0


def create_app(settings: Settings, house: House | None = None, only: Collection[str] | None = None) -> FastAPI:
    """The ASGI application, with the routes of `only` these templates; it opens the house itself when none is given."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if house is not None:
            yield
            return
        async with open_house(settings) as opened:
            app.state.house = opened
            yield

    app = FastAPI(
        title="heddle",
        version=heddle.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        strict_content_type=False,
        lifespan=lifespan,
        middleware=[Middleware(Edge)],
    )
    app.state.house = house
    chosen = (route for route in routes() if only is None or route.path in only)
    in_order: list[APIRoute] = sorted(chosen, key=_rank)
    app.router.routes.extend(in_order)
    failures.install(app)
    return app


def routes() -> Iterator[APIRoute]:
    """The routes of every group; the same API answers under /traces, which the edge takes off the path."""
    for module in _GROUPS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            yield route


def _rank(route: APIRoute) -> tuple[int, bool]:
    return (_HOT.index(route.path) if route.path in _HOT else len(_HOT), "{" in route.path)


@asynccontextmanager
async def open_house(settings: Settings) -> AsyncIterator[House]:
    """The services of one server, from the lock on its folder to the last commit; raises HeddleError."""
    # More than asyncio's few per core: threads that wait for a store that hangs must not hold up all others.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "heddle"))
    async with opened_store(settings) as store:
        house = House(settings, store)
        house.records = TraceRecords(house)
        house.prices = InferencePrices(store)
        await _insist_on_keys(house)
        house.inference = _inference(house)
        house.evaluations, house.scoring = _evaluations(house)
        house.training = _training(house)
        house.alerts = AlertService(settings, store)
        house.monitors = Monitors(store, house.scoring.submit)
        house.replays = _replays(house)
        _show_backlogs(house)
        async with AsyncExitStack() as running:
            running.callback(bounded.close_all)
            for service in (house.inference, house.training, house.jobs, house.monitors, house.alerts):
                await service.start()
                running.push_async_callback(service.stop)
            async with _background(house):
                yield house
        await house.gate.note_use()
        await store.leases.give_back()


def _show_backlogs(house: House) -> None:
    """What waits to be done in the background, in /metrics."""
    store, gauge = house.store, house.metrics.gauge
    gauge("evaluation_jobs", "Jobs of evaluation that are not done.", store.eval_jobs.count_open)
    gauge("monitor_calls_waiting", "Ended calls that no monitor has looked at yet.", store.calls.count_endings)
    gauge("alert_messages_waiting", "Messages of alerts that are not delivered yet.", store.alerts.count_waiting)


def _inference(house: House) -> Inference:
    """Inference, given what the other rooms do for it: the trace keeps its calls, /metrics shows its figures."""
    figures = InferenceFigures(house.metrics.registry)
    calls, prices = InferenceCalls(house), InferencePrices(house.store)
    accounts = Accounts(house.settings, house.store, calls, prices, figures)
    inference = Inference(house.settings, house.store.adapters, accounts, make_engine, house.store.changes)
    figures.watch(inference.engines)
    house.metrics.refreshers.append(figures.refresh)
    return inference


def _evaluations(house: House) -> tuple[Evaluations, Scoring]:
    """Server-side evaluation, given what the other rooms do for it: inference answers, the trace keeps the calls."""
    given = (house.store, house.records, completions.ModelCompletions(house), house.jobs)
    evaluations = Evaluations(*given, house.settings.evaluation_parallel)
    scoring = Scoring(*given, house.settings.evaluation_parallel)
    evaluations.register()
    scoring.register()
    return evaluations, scoring


def _training(house: House) -> Training:
    """Training, given what the other rooms do for it: inference serves its policies, the trace shows its jobs."""
    settings, store = house.settings, house.store
    policies, calls = Policies(house.inference), TrainingCalls(house)
    promotion = Promotion(house.evaluations)
    figures = TrainingFigures(house.metrics.registry)
    house.metrics.refreshers.append(figures.refresh)
    supervisor = Supervisor(settings, store.train_models, store.train_jobs, policies, store.blobs.path, figures)
    supervisor.publisher.judge = promotion
    supervisor.publisher.observers.append(calls)
    return Training(
        settings,
        store,
        policies,
        supervisor,
        calls=calls,
        datasets=TrainingData(house),
        promotion=promotion,
        load_renderer=_renderer,
    )


def _renderer(folder: Path) -> ReadableRenderer:
    # What reads tokenizers may not be installed where nothing is trained.
    from heddle.inference.prompt.trajectory_renderer import TrajectoryRenderer

    return TrajectoryRenderer.load(folder)


def _replays(house: House) -> Replays:
    """Replays, given what the other rooms do for them: inference answers again, evaluation scores."""
    models, parallel = completions.ModelCompletions(house), house.settings.evaluation_parallel
    work = ReplayWork(house.store, house.records, models, house.scoring.submit, parallel)
    return Replays(house.store, house.records, house.jobs, work)


async def _insist_on_keys(house: House) -> None:
    """Raise HeddleError when others can reach the server and nothing keeps them out."""
    settings = house.settings
    if not settings.needs_key and not settings.is_loopback:
        raise HeddleError(
            f"auth = 'off' is allowed on a loopback address only, and host is {settings.host!r}; leave auth out"
        )
    if settings.needs_key and not await house.store.keys.any_usable():
        where = f"--data {settings.data}" if settings.control == "sqlite" else "--control postgresql://..."
        raise HeddleError(
            f"Requests to {settings.host} need a key and there is none yet. Make one with:\n"
            f"  heddle keys create {where} --user NAME --scope admin"
        )


@asynccontextmanager
async def _background(house: House) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(house.retention.run()), asyncio.create_task(_note_use(house))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _note_use(house: House) -> None:
    while True:
        await asyncio.sleep(_NOTE_USE_SECONDS)
        with contextlib.suppress(HeddleError):
            await house.gate.note_use()
