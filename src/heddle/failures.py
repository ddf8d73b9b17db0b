"""Every failure becomes an answer here: the one place that knows how bodies look on which routes."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from heddle.errors import HeddleError, ValidationFailed
from heddle.wire import jsontext

MOST_DETAILS = 100
_LONGEST_CHAIN = 10

_OPENAI_PREFIX = "/v1/"
_TRAINING_PREFIX = "/v1/preview/"
_OPENAI_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "Bad Request",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
"""`error.type` on inference and training routes, as servers of this wire name it."""


def render(error: HeddleError, path: str) -> Response:
    """The answer of a failure; routes under /v1 have the `{"error": ...}` body that their clients read.

    Training routes say the reason as `detail` too, where a validation failure has its list.
    """
    if path.startswith(_TRAINING_PREFIX) and error.status == 422 and not isinstance(error, ValidationFailed):
        # A query of `source` names a field that calls do not have.
        error = ValidationFailed([{"loc": ["body", "source"], "msg": error.reason, "type": "value_error"}])
    body = openai_body(error) if path.startswith(_OPENAI_PREFIX) else error.body()
    if path.startswith(_TRAINING_PREFIX):
        body = {"detail": error.reason, **body}
    return _json(error.status, body, error.headers)


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of a failure hold, such as the body that was too large.

    The framework keeps failures of bodies in cycles, which are looked for seldom.
    """
    chain: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if chain is None:
            return
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__


def openai_body(error: HeddleError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`; a validation failure carries the `detail` list beside it."""
    param = error.param
    if isinstance(error, ValidationFailed) and param is None and error.detail:
        param = ".".join(str(part) for part in error.detail[0]["loc"])
    kind = "Bad Request" if isinstance(error, ValidationFailed) else _OPENAI_TYPES.get(error.status)
    return {
        **({"detail": error.detail} if isinstance(error, ValidationFailed) and error.status == 422 else {}),
        "error": {"message": error.reason, "type": kind or "InternalServerError", "param": param, "code": error.status},
    }


def _json(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(jsontext.dumps_bytes(body), status, dict(headers or {}), media_type="application/json")


def unexpected(request_id: str, path: str) -> Response:
    """The answer of a fault of ours; the log has the rest under the same id."""
    fault = HeddleError("Internal server error")
    body = openai_body(fault) if path.startswith(_OPENAI_PREFIX) else fault.body()
    return _json(500, {**body, "request_id": request_id})


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


async def _on_heddle_error(request: Request, error: Exception) -> Response:
    forget_frames(error)
    return render(cast(HeddleError, error), request.scope["path"])


async def _on_validation_error(request: Request, error: Exception) -> Response:
    forget_frames(error)
    failure = ValidationFailed(details(cast(RequestValidationError, error).errors()))
    return render(failure, request.scope["path"])


async def _on_http_exception(request: Request, error: Exception) -> Response:
    exception = cast(HTTPException, error)
    forget_frames(error)
    # The framework turns whatever is raised while it reads a body into a bare 400; ours says more.
    if isinstance(exception.__cause__, HeddleError):
        return render(exception.__cause__, request.scope["path"])
    reason = str(exception.detail)
    if exception.status_code in (404, 405):
        reason = f"{reason}: {request.method} {request.url.path[:200]}"
    failure = HeddleError(reason)
    failure.status = exception.status_code
    body = failure.body()
    if request.scope["path"].startswith(_OPENAI_PREFIX):
        body = {"detail": str(exception.detail), **openai_body(failure)}
    return _json(exception.status_code, body, exception.headers)


def install(app: FastAPI) -> None:
    """Give the application its handlers."""
    app.add_exception_handler(HeddleError, _on_heddle_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
