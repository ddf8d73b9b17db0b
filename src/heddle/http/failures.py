"""Every failure becomes an answer here: the one place that knows how bodies look on which routes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from heddle.errors import HeddleError, Unavailable, ValidationFailed
from heddle.wire import jsontext
from heddle.wire.otlp import PROTOBUF, encode_status, is_otlp, status_code

MOST_DETAILS, LONGEST_PLACE = 100, 200
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

_TRANSIENT = {408: 1, 507: 30}
"""Failures that pass, which exporters would take for final, and after how many seconds to try again."""


def render(error: HeddleError, scope: Scope) -> Response:
    """The answer of a failure; routes under /v1 have the `{"error": ...}` body that their clients read.

    Training routes say the reason as `detail` too, where a validation failure has its list; exporters of OpenTelemetry
    read a Status in the encoding of their request.
    """
    path: str = scope["path"]
    scope["heddle.refusal"] = error.reason
    if is_otlp(path):
        return _otlp_answer(error, next((value for name, value in scope["headers"] if name == b"content-type"), b""))
    if path.startswith(_TRAINING_PREFIX) and error.status == 422 and not isinstance(error, ValidationFailed):
        # A query of `source` names a field that calls do not have.
        error = ValidationFailed([{"loc": ["body", "source"], "msg": error.reason, "type": "value_error"}])
    if path.startswith(_LANGFUSE_PREFIX) and error.status == 422:
        error.status = 400  # the word of this interface for a request of a wrong shape
    body = _body(error, path)
    if path.startswith(_TRAINING_PREFIX):
        body = {"detail": error.reason, **body}
    if body.get("type") == "error":
        body["request_id"] = scope.get("heddle.request_id")
    return _json(error.status, body, error.headers)


def _otlp_answer(error: HeddleError, content_type: bytes) -> Response:
    """A failure for an exporter, which tries again after 429, 502, 503 and 504 alone."""
    if error.status in _TRANSIENT:
        error = Unavailable(error.reason, retry_after=_TRANSIENT[error.status])
    if b"protobuf" in content_type:
        return Response(encode_status(error), error.status, dict(error.headers), media_type=PROTOBUF)
    return _json(error.status, {"code": status_code(error), "message": error.reason, **error.body()}, error.headers)


def _body(error: HeddleError, path: str) -> dict[str, Any]:
    """The body in the shape of the interface that a path belongs to."""
    for prefix, make in _SHAPES:
        if path.startswith(prefix):
            return make(error)
    return error.body()


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


_RESPONSES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def responses_body(error: HeddleError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}` with the types of the Responses interface; the code is a word."""
    inner: dict[str, Any] = openai_body(error)["error"]
    param = str(inner["param"]).removeprefix("body.") if inner["param"] is not None else None
    kind = _RESPONSES_TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
    code = error.extra.get("code") or (kind if error.status in _RESPONSES_TYPES or error.status >= 500 else None)
    return {"error": {"message": inner["message"], "type": kind, "param": param, "code": code}}


_ANTHROPIC_TYPES = _RESPONSES_TYPES | {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}


def anthropic_body(error: HeddleError) -> dict[str, Any]:
    """`{"type": "error", "error": {type, message}}`, as clients of messages read it."""
    kind = _ANTHROPIC_TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    details = {"details": error.extra["details"]} if "details" in error.extra else {}
    return {"type": "error", "error": {"type": kind, "message": error.reason, **details}}


_LANGFUSE_PREFIX = "/api/public/"
_LANGFUSE_ERRORS = {401: "UnauthorizedError", 403: "ForbiddenError", 404: "LangfuseNotFoundError"}

_LANGFUSE_CODES = {
    401: "authentication_failed",
    403: "access_denied",
    404: "resource_not_found",
    405: "method_not_allowed",
    409: "conflict",
    429: "rate_limited",
}
"""SDKs cannot read the errors of some newer interfaces without such a code."""


def langfuse_body(error: HeddleError) -> dict[str, Any]:
    """`{"message", "error", "code"}`; for a request of a wrong shape `error` has the places."""
    code = _LANGFUSE_CODES.get(error.status, "internal_error" if error.status >= 500 else "invalid_request")
    if isinstance(error, ValidationFailed):
        places = [{"path": item["loc"][1:], "message": item["msg"], "code": item["type"]} for item in error.detail]
        return {"message": f"Invalid request data: {error.reason}", "error": places, "code": code}
    kind = "InternalServerError" if error.status >= 500 else "InvalidRequestError"
    return {"message": error.reason, "error": _LANGFUSE_ERRORS.get(error.status, kind), "code": code}


_SHAPES: tuple[tuple[str, Callable[[HeddleError], dict[str, Any]]], ...] = (
    ("/v1/responses", responses_body),
    ("/v1/conversations", responses_body),
    ("/v1/messages", anthropic_body),
    (_OPENAI_PREFIX, openai_body),
    ("/tokenize", openai_body),
    ("/detokenize", openai_body),
    (_LANGFUSE_PREFIX, langfuse_body),
)
"""The bodies of failures by prefix of the path; the first that fits."""


def _json(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(jsontext.dumps_bytes(body), status, dict(headers or {}), media_type="application/json")


def unexpected(request_id: str, path: str) -> Response:
    """The answer of a fault of ours; the log has the rest under the same id."""
    fault = HeddleError("Internal server error")
    return _json(500, {**_body(fault, path), "request_id": request_id})


def details(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `detail` items of a validation failure: where, what, which kind; nothing of the input."""
    return [
        {
            "loc": [part if isinstance(part, int) else str(part)[:LONGEST_PLACE] for part in item["loc"]],
            "msg": item["msg"],
            "type": item["type"],
        }
        for _, item in zip(range(MOST_DETAILS), errors, strict=False)
    ]


async def _on_heddle_error(request: Request, error: Exception) -> Response:
    forget_frames(error)
    return render(cast(HeddleError, error), request.scope)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    forget_frames(error)
    failure = ValidationFailed(details(cast(RequestValidationError, error).errors()))
    return render(failure, request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    exception = cast(HTTPException, error)
    forget_frames(error)
    # The framework turns whatever is raised while it reads a body into a bare 400; ours says more.
    if isinstance(exception.__cause__, HeddleError):
        return render(exception.__cause__, request.scope)
    reason = str(exception.detail)
    if exception.status_code in (404, 405):
        reason = f"{reason}: {request.method} {request.url.path[:200]}"
        if (instead := describe_instead(request.scope["path"], exception.status_code)) is not None:
            reason = f"{reason}. Instead: {instead}"
    request.scope["heddle.refusal"] = reason
    failure = HeddleError(reason)
    failure.status = exception.status_code
    body = _body(failure, request.scope["path"])
    if request.scope["path"].startswith(_OPENAI_PREFIX):
        body = {"detail": str(exception.detail), **body}
    return _json(exception.status_code, body, exception.headers)


def install(app: FastAPI) -> None:
    """Give the application its handlers."""
    app.add_exception_handler(HeddleError, _on_heddle_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


_CHAT = "POST /v1/chat/completions"
_NEAR = "compare vectors of POST /v1/embeddings"
_OWN_STATE = "POST /v1/responses keeps conversations (store, previous_response_id)"
_SPANS = "POST /v1/traces stores spans of OpenTelemetry"
_PHOENIX = f"Phoenix's own interface is not served; {_SPANS}, and POST /calls/stream_query reads calls"
_TEXT_ONLY = f"the served models read and write text ({_CHAT})"
_NO_AGENTS = f"agents and their tools run in the client ({_CHAT} and POST /v1/responses with `tools`)"
_ACCESS = "`heddle keys` manages keys and what they may do, `heddle limits` their limits; costs are POST /calls/usage"
_WEBHOOKS = "alerts call webhooks, POST /alerts/create"
_JUDGE = f"{_CHAT} with response_format lets a model judge a text, POST /calls/score a scorer"
_INSTEAD = {
    "assistants": _OWN_STATE,
    "threads": _OWN_STATE,
    "audio": _TEXT_ONLY,
    "realtime": _TEXT_ONLY,
    "live": _TEXT_ONLY,
    "videos": _TEXT_ONLY,
    "agents": _NO_AGENTS,
    "chatkit": _NO_AGENTS,
    "containers": _NO_AGENTS,
    "skills": _NO_AGENTS,
    "environments": _NO_AGENTS,
    "deployments": _NO_AGENTS,
    "deployment_runs": _NO_AGENTS,
    "dreams": _NO_AGENTS,
    "memory_stores": _NO_AGENTS,
    "tunnels": _NO_AGENTS,
    "sessions": _NO_AGENTS,
    "vaults": _NO_AGENTS,
    "organization": _ACCESS,
    "organizations": _ACCESS,
    "projects": f"{_ACCESS}. {_PHOENIX}",
    "user_profiles": _ACCESS,
    "webhook_endpoints": _WEBHOOKS,
    "webhook_event_types": _WEBHOOKS,
    "images": "POST /image/create asks a provider of the settings for an image",
    "moderations": _JUDGE,
    "decisions": _JUDGE,
    "content_provenance_checks": _JUDGE,
    "safety": _JUDGE,
    "compliance": _JUDGE,
    "batches": f"send the requests to {_CHAT} at the same time; the engine answers them together",
    "chat/completions": f"{_CHAT} creates a completion; it is stored as a call, which POST /calls/stream_query finds",
    "messages/batches": "send the requests to POST /v1/messages at the same time; the engine answers them together",
    "files": "POST /file/create keeps a file of a project, POST /v1/preview/sft-training-jobs trains on one",
    "uploads": "POST /file/create keeps a file of a project",
    "fine_tuning": "POST /v1/preview/sft-training-jobs trains a model, POST /v1/preview/training-jobs with rewards",
    "evals": "evaluations are /v2/{entity}/{project}/evaluation_runs and the SDK's weave.Evaluation",
    "vector_stores": "POST /v1/embeddings makes vectors; they are kept elsewhere",
    "rerank": _NEAR,
    "score": _NEAR,
    "classify": f"{_CHAT} with structured_outputs.choice names one of several classes",
    "pooling": "POST /v1/embeddings gives pooled states",
    "edits": _CHAT,
    "engines": "GET /v1/models lists the models; the field `model` names one",
    "complete": "POST /v1/messages",
    "models": f"GET /v1/models lists the models, {_CHAT} asks one, POST /v1/unload_lora_adapter removes an adapter",
    "responses": "POST /v1/responses creates a response, with `stream` as events; there are no list and no WebSocket",
    "responses/compact": "POST /v1/responses with the items to keep; this server does not compact conversations",
    "conversations": "POST /v1/conversations creates a conversation; there is no list",
    "private": f"Opik's own interface is not served; {_SPANS}",
    **dict.fromkeys(("spans", "prompts", "datasets"), _PHOENIX),
}
"""By the first two parts of the path after `/v1`, or the first alone."""
_OTHERS = {
    **{
        f"api/{name}": f"Ollama's own interface is not served; clients of OpenAI's take the address with /v1 ({_CHAT})"
        for name in ("chat", "generate", "embed", "embeddings", "tags", "show", "ps", "pull", "version")
    },
    **{
        f"v2/{name}": f"Cohere's interface is not served; clients of OpenAI's take the address with /v1 ({other})"
        for name, other in (("chat", _CHAT), ("embed", "POST /v1/embeddings"), ("rerank", "POST /v1/embeddings"))
    },
    "v1beta/models": f"Gemini's interface is not served; clients of OpenAI's take the address with /v1 ({_CHAT})",
    "openai/deployments": f"clients of OpenAI's interface without Azure take the address with /v1 ({_CHAT})",
    **dict.fromkeys(
        ("runs", "runs/batch", "runs/multipart"),
        f"LangSmith's own interface is not served; {_SPANS} (LANGSMITH_OTEL_ENABLED=true)",
    ),
    **dict.fromkeys(
        ("api/2.0", "api/3.0"),
        f"MLflow's own interface is not served; {_SPANS} (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, docs/clients.md)",
    ),
}
"""By the first two parts of a path: interfaces of other servers."""
_OF_V1 = frozenset(("chat", "completions", "embeddings", "messages", "models", "responses"))
"""First parts of paths that are asked for by clients whose address lacks `/v1`."""
_WITHOUT_VERSION = frozenset(("classify", "pooling", "rerank", "score"))
"""Those that other servers offer without `/v1` too."""


def describe_instead(path: str, status: int) -> str | None:
    """What to use instead of an operation that does not exist; None where nobody could have expected it."""
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and parts[0] == "v1" and parts[1] == "v1":
        return "the address that the client is given must not end in /v1"
    if len(parts) > 1 and parts[0] == "v1":
        return _INSTEAD.get("/".join(parts[1:3]), _INSTEAD.get(parts[1]))
    if status != 404:
        return None
    if parts and parts[0] in _OF_V1:
        return "the address that the client is given must end in /v1"
    if parts and parts[0] in _WITHOUT_VERSION:
        return _INSTEAD[parts[0]]
    return _OTHERS.get("/".join(parts[:2]))
