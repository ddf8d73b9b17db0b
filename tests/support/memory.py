"""The control tables on a database in memory, and a small app over them, for tests without a server."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from heddle.auth import LOCAL, Caller
from heddle.errors import HeddleError
from heddle.store.control.repository import metadata
from heddle.wire import refs

T = TypeVar("T")


def memory_engine() -> sa.Engine:
    """An empty SQLite database in memory with every control table that is imported."""
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool, connect_args={"check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _functions(connection: Any, _record: Any) -> None:
        connection.create_function("unicode_lower", 1, lambda text: text.lower() if isinstance(text, str) else text)

    metadata.create_all(engine)
    return engine


class MemoryExecutor:
    """An Executor that runs at once, on the caller's thread."""

    def __init__(self, engine: sa.Engine | None = None) -> None:
        self.engine = engine or memory_engine()

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` in a transaction."""
        with self.engine.begin() as connection:
            return work(connection)

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        """Run `work`."""
        with self.engine.connect() as connection:
            return work(connection)


def small_app(store: Any, *routers: APIRouter, caller: Caller = LOCAL) -> FastAPI:
    """An app with these routers over `store`, where everybody is `caller`."""
    app = FastAPI(strict_content_type=False)
    app.state.services = SimpleNamespace(store=store)

    @app.middleware("http")
    async def _recognise(request: Request, call_next: Any) -> Response:
        request.scope["heddle.caller"] = caller
        answer: Response = await call_next(request)
        return answer

    @app.exception_handler(HeddleError)
    async def _failed(_request: Request, error: HeddleError) -> Response:
        content = refs.convert_out(JSONResponse(error.body()).body)
        return Response(content, error.status, error.headers, "application/json")

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        detail = [{key: item[key] for key in ("loc", "msg", "type")} for item in error.errors()]
        return JSONResponse({"detail": detail}, 422)

    for router in routers:
        app.router.routes.extend(router.routes)
    return app
