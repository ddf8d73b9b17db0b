"""The ASGI application over routes: the middleware in front of them, and how failures are answered."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

import heddle
from heddle.http import failures
from heddle.http.middleware import HotRoutes, RequestMiddleware
from heddle.http.routing import Route
from heddle.http.state import ServerState


class LaterRoutes(BaseRoute):
    """Stands behind the first routes: what none of them serves makes it load every route, which takes their place."""

    def __init__(self, load: Callable[[], list[Route]]) -> None:
        """`load` imports and returns every route, the first ones included; it is called from threads."""
        self._load = load

    def matches(self, scope: Scope) -> tuple[Match, Scope]:  # noqa: ARG002
        """Every request matches."""
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request by all routes."""
        app: FastAPI = scope["app"]
        # Others are answered meanwhile.
        app.router.routes[:] = await asyncio.to_thread(self._load)
        await app.router(scope, receive, send)


def build_application(
    routes: Sequence[Route], services: ServerState, *, later: Callable[[], list[Route]] | None = None
) -> FastAPI:
    """The application of these routes, tried in their order; `later` loads every route when none serves a request."""
    app = FastAPI(
        title="heddle",
        version=heddle.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        strict_content_type=False,
        # `http.span_export` has a span of each request; the framework would look for a provider at each.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[Middleware(RequestMiddleware, hot=HotRoutes(routes))],
    )
    app.state.services = services
    app.router.routes.extend(routes)
    if later is not None:
        app.router.routes.append(LaterRoutes(later))
    failures.install(app)
    return app


def order_routes(routers: Iterable[APIRouter]) -> list[Route]:
    """The routes of routers, in the order in which they are tried."""
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    return sorted(routes, key=lambda route: (not route.is_hot, "{" in route.path))
