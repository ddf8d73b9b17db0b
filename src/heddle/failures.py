"""Every failure becomes an answer here: the one place that knows how bodies look on which routes."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from heddle.errors import HeddleError, ValidationFailed
from heddle.wire import jsontext

MOST_DETAILS = 100


def render(error: HeddleError) -> Response:
    """The answer of a failure. Inference and training routes get their `{"error": ...}` body here."""
    return _json(error.status, error.body(), error.headers)


def _json(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(jsontext.dumps_bytes(body), status, dict(headers or {}), media_type="application/json")


def unexpected(request_id: str) -> Response:
    """The answer of a fault of ours; the log has the rest under the same id."""
    return _json(500, {"reason": "Internal server error", "request_id": request_id})


def details(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `detail` items of a validation failure: where, what, which kind; nothing of the input."""
    return [
        {
            "loc": [part if isinstance(part, int) else str(part) for part in item["loc"]],
            "msg": item["msg"],
            "type": item["type"],
        }
        for _, item in zip(range(MOST_DETAILS), errors, strict=False)
    ]


async def _on_heddle_error(_: Request, error: Exception) -> Response:
    return render(cast(HeddleError, error))


async def _on_validation_error(_: Request, error: Exception) -> Response:
    return render(ValidationFailed(details(cast(RequestValidationError, error).errors())))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    exception = cast(HTTPException, error)
    # The framework turns whatever is raised while it reads a body into a bare 400; ours says more.
    if isinstance(exception.__cause__, HeddleError):
        return render(exception.__cause__)
    reason = str(exception.detail)
    if exception.status_code in (404, 405):
        reason = f"{reason}: {request.method} {request.url.path[:200]}"
    return _json(exception.status_code, {"reason": reason}, exception.headers)


def install(app: FastAPI) -> None:
    """Give the application its handlers."""
    app.add_exception_handler(HeddleError, _on_heddle_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
