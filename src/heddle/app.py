"""Builds the application: opens the house, mounts the routers, closes in reverse."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

import heddle
from heddle import failures
from heddle.compat import graphql, pages
from heddle.edge import Edge
from heddle.errors import HeddleError
from heddle.evals.service import Evaluations
from heddle.house import House
from heddle.inference import catalogue, chat, completions
from heddle.inference import usage as inference_usage
from heddle.inference.accounts import Accounts
from heddle.inference.engine.make import local_engine
from heddle.inference.figures import InferenceFigures
from heddle.inference.policies import Policies
from heddle.inference.service import Inference
from heddle.settings import Settings
from heddle.store import direct
from heddle.store.lock import DataLock
from heddle.store.sqlite.store import DATABASE, open_store
from heddle.trace import costs, files, objects, project, refs, service, stats, tables, threads, usage
from heddle.trace.calls import routes as calls
from heddle.trace.feedback import routes as feedback
from heddle.trace.inference_calls import InferenceCalls, InferencePrices
from heddle.trace.training_calls import TrainingCalls
from heddle.trace.training_data import TrainingData
from heddle.training.queue.figures import TrainingFigures
from heddle.training.queue.promotion import Promotion
from heddle.training.queue.supervisor import Supervisor
from heddle.training.routes import base_models, checkpoints, jobs, logs, models, sft_jobs
from heddle.training.service import Training

_GROUPS = (
    calls,
    usage,
    stats,
    threads,
    costs,
    feedback,
    files,
    objects,
    refs,
    tables,
    project,
    service,
    chat,
    catalogue,
    inference_usage,
    completions,
    models,
    checkpoints,
    logs,
    jobs,
    sft_jobs,
    base_models,
    graphql,
    pages,
)
"""The modules whose `router` is served, one per group of the interface."""

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
)
"""The routes of the write path are tried first: the framework tries one after the other."""

_NOTE_USE_SECONDS = 10.0


def create_app(settings: Settings, house: House | None = None) -> FastAPI:
    """The ASGI application; it opens the house itself when none is given."""

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
        strict_content_type=False,
        lifespan=lifespan,
        middleware=[Middleware(Edge)],
    )
    app.state.house = house
    in_order: list[APIRoute] = sorted(routes(), key=_rank)
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
    with DataLock(Path(settings.data)):
        direct.schema_version(Path(settings.data) / DATABASE)
        store = await open_store(settings)
        try:
            house = House(settings, store)
            await _insist_on_keys(house)
            house.inference = _inference(house)
            house.training = _training(house)
            await house.inference.start()
            try:
                await house.training.start()
                try:
                    async with _background(house):
                        yield house
                finally:
                    await house.training.stop()
            finally:
                await house.inference.stop()
            await house.gate.note_use()
        finally:
            await store.close()


def _inference(house: House) -> Inference:
    """Inference, given what the other rooms do for it: the trace keeps its calls, /metrics shows its figures."""
    figures = InferenceFigures(house.metrics.registry)
    calls, prices = InferenceCalls(house), InferencePrices(house.store)
    accounts = Accounts(house.settings, house.store, calls, prices, figures)
    inference = Inference(house.settings, house.store.adapters, accounts, local_engine)
    figures.watch(inference.engines)
    house.metrics.refreshers.append(figures.refresh)
    return inference


def _training(house: House) -> Training:
    """Training, given what the other rooms do for it: inference serves its policies, the trace shows its jobs."""
    settings, store = house.settings, house.store
    policies, calls = Policies(house.inference), TrainingCalls(house)
    promotion = Promotion(Evaluations(store, house.inference, InferenceCalls(house)))
    figures = TrainingFigures(house.metrics.registry)
    house.metrics.refreshers.append(figures.refresh)
    supervisor = Supervisor(settings, store.train_models, store.train_jobs, policies, store.blobs.path, figures)
    supervisor.publisher.judge = promotion
    supervisor.publisher.observers.append(calls)
    return Training(
        settings, store, policies, supervisor, calls=calls, datasets=TrainingData(house), promotion=promotion
    )


async def _insist_on_keys(house: House) -> None:
    """Raise HeddleError when others can reach the server and nothing keeps them out."""
    settings = house.settings
    if not settings.needs_key and not settings.is_loopback:
        raise HeddleError(
            f"auth = 'off' is allowed on a loopback address only, and host is {settings.host!r}; leave auth out"
        )
    if settings.needs_key and not await house.store.keys.any_usable():
        raise HeddleError(
            f"Requests to {settings.host} need a key and there is none yet. Make one with:\n"
            f"  heddle keys create --data {settings.data} --user NAME --scope admin"
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
