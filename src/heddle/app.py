"""Builds the application of the whole server: every route over its services."""

from fastapi import FastAPI

from heddle.first_routes import first_routes
from heddle.http.application import build_application, order_routes
from heddle.http.routing import Route
from heddle.http.state import ServerState
from heddle.quotas import check_groups, parse_quotas
from heddle.settings import BadSetting, Settings


def create_app(settings: Settings, services: ServerState) -> FastAPI:
    """The application; raises BadSetting."""
    for name in ("project_quotas", "key_quotas"):
        if quotas := parse_quotas(getattr(settings, name)):
            try:
                check_groups(quotas, {route.group for route in served_routes()})
            except ValueError as problem:
                raise BadSetting(f"{name} cannot be used: {problem}") from None
    return build_application(first_routes(), services, later=served_routes)


def served_routes() -> list[Route]:
    """The routes of every group, in the order in which they are tried.

    The same API answers under /traces, which the middleware takes off the path.
    """
    # Half of the features of a server are never asked for: a tenth of its start and of its memory.
    from heddle import archives, purge
    from heddle.compat.routers import ROUTERS as COMPAT
    from heddle.evals.routers import ROUTERS as EVALS
    from heddle.improve.routes import ROUTERS as IMPROVE
    from heddle.inference.routers import ROUTERS as INFERENCE
    from heddle.trace.routers import ROUTERS as TRACE
    from heddle.training.routes import ROUTERS as TRAINING
    from heddle.training.tinker.routes import ROUTERS as TINKER
    from heddle.ui.routers import ROUTERS as UI

    routers = (*TRACE, *INFERENCE, *TRAINING, *TINKER, *EVALS, *IMPROVE, archives.router, purge.router, *COMPAT, *UI)
    return order_routes(routers)
