"""The ASGI application over routes: the middleware in front of them, and how failures are answered."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware

import heddle
from heddle.http import failures
from heddle.http.middleware import RequestMiddleware
from heddle.http.routing import HotRoutes, Route
from heddle.http.state import ServerState


class Application(FastAPI):
    """The application, whose description tells of each route what is left out of serving it."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description; making it takes seconds, see `heddle.describe`."""
        if not self.openapi_schema:
            routes = [route.with_description() for route in self.routes if isinstance(route, Route)]
            self.openapi_schema = get_openapi(title=self.title, version=self.version, routes=routes)
        return self.openapi_schema


def build_application(
    routes: Sequence[Route],
    services: ServerState | None,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> Application:
    """The application of these routes, tried in their order; `lifespan` opens the services where there are none yet."""
    app = Application(
        title="heddle",
        version=heddle.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        strict_content_type=False,
        lifespan=lifespan,
        middleware=[Middleware(RequestMiddleware, hot=HotRoutes(routes))],
    )
    app.state.services = services
    app.router.routes.extend(routes)
    failures.install(app)
    return app


def order_routes(routers: Iterable[APIRouter]) -> list[Route]:
    """The routes of routers, in the order in which they are tried."""
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    return sorted(routes, key=lambda route: (not route.is_hot, "{" in route.path))
