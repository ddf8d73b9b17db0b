"""Builds the ASGI application over the services: middleware, routes, and the OpenAPI description."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware

import heddle
from heddle import archives, purge
from heddle.compat.routers import ROUTERS as COMPAT
from heddle.evals.routers import ROUTERS as EVALS
from heddle.http import failures
from heddle.http.middleware import RequestMiddleware
from heddle.http.routing import HotRoutes, Route
from heddle.http.state import ServerState
from heddle.improve.routes import ROUTERS as IMPROVE
from heddle.inference.routers import ROUTERS as INFERENCE
from heddle.quotas import check_groups, parse_quotas
from heddle.services import open_services
from heddle.settings import BadSetting, Settings
from heddle.trace.routers import ROUTERS as TRACE
from heddle.training.routes import ROUTERS as TRAINING
from heddle.training.tinker.routes import ROUTERS as TINKER
from heddle.ui.routers import ROUTERS as UI


class Application(FastAPI):
    """The application, whose description tells of each route what is left out of serving it."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description; making it takes seconds, see `heddle.describe`."""
        if not self.openapi_schema:
            routes = [route.with_description() for route in self.routes if isinstance(route, Route)]
            self.openapi_schema = get_openapi(title=self.title, version=self.version, routes=routes)
        return self.openapi_schema


def create_app(settings: Settings, services: ServerState | None = None, *, only_local: bool = False) -> Application:
    """The application; it opens the services itself when none are given. `only_local`: with what a worker serves."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if services is not None:
            yield
            return
        async with open_services(settings) as opened:
            app.state.services = opened
            yield

    served = served_routes()
    for name in ("project_quotas", "key_quotas"):
        try:
            check_groups(parse_quotas(getattr(settings, name)), {route.group for route in served})
        except ValueError as problem:
            raise BadSetting(f"{name} cannot be used: {problem}") from None
    routes = [route for route in served if route.is_local or not only_local]
    app = Application(
        title="heddle",
        version=heddle.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        strict_content_type=False,
        # `http.span_export` has a span of each request; the framework would look for a provider at each.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=lifespan,
        middleware=[Middleware(RequestMiddleware, hot=HotRoutes(routes))],
    )
    app.state.services = services
    app.router.routes.extend(routes)
    failures.install(app)
    return app


def served_routes() -> list[Route]:
    """The routes of every group, in the order in which they are tried.

    The same API answers under /traces, which the middleware takes off the path.
    """
    routers = (*TRACE, *INFERENCE, *TRAINING, *TINKER, *EVALS, *IMPROVE, archives.router, purge.router, *COMPAT, *UI)
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    return sorted(routes, key=lambda route: (not route.is_hot, "{" in route.path))
