"""What every router shares: request models, bodies parsed off the event loop where they are large, scopes, answers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from inspect import iscoroutinefunction
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from fastapi import APIRouter, Depends, Request, Response, params
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from heddle.auth import Authenticator, Caller, Scope, is_own_page
from heddle.errors import NotAuthenticated, TooLarge, ValidationFailed
from heddle.http import convertors
from heddle.http.failures import details
from heddle.http.metrics import NO_GROUP, Metrics
from heddle.http.quotas import METER, Quotas
from heddle.http.state import EventStreams, ServerState
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import jsontext, query, refs, times
from heddle.wire.inference import PricesOf
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel
from heddle.wire.otlp import OTLP_PATHS
from heddle.wire.records import Records
from heddle.wire.spans import SpanReader

convertors.register()
logger = logging.getLogger("heddle.http.routing")
B = TypeVar("B", bound=BaseModel)
E = TypeVar("E", bound=Callable[..., Any])
M = TypeVar("M")
T = TypeVar("T")
OFF_LOOP_BYTES = 32 * 1024
"""Bytes of a body above which a thread works on it; to parse and check this many takes some milliseconds."""
_LARGE_BYTES = 1 << 20
_LARGE_AT_ONCE = 2
_DIGEST_BYTES = 46
_DECLARED_SHARE = 20
_SLICE = 1000
MOST_ERRORS = 1000
_large = ThreadPoolExecutor(_LARGE_AT_ONCE, "heddle-large")
"""Each thread that computes makes the event loop wait for its turn; so few of them work on what takes long."""


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do work on so many bytes: at once where they are few, else in a thread, with the quotas of the request."""
    if size <= OFF_LOOP_BYTES:
        return work()
    executor = _large if size > _LARGE_BYTES else None
    return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, work)


class BodyRequest(Request):
    """A request whose JSON body is bounded, and read once, forgivingly, with external refs made internal.

    `declared` is the model of the body where the framework is to check it.
    """

    def __init__(self, scope: ASGIScope, receive: Receive, declared: type[BaseModel] | None = None) -> None:
        super().__init__(scope, receive)
        self._declared = declared
        self._whole: bytes | None = None

    async def body(self) -> bytes:
        """The body; raises TooLarge when its JSON has more values than max_json_nodes, and as its reader does."""
        if self._whole is None:
            reader = self.scope.get("heddle.body")
            body: bytes = await (super().body() if reader is None else reader.read())
            if len(body) > OFF_LOOP_BYTES and not self._is_binary():
                await off_loop(len(body), lambda: self._check_nodes(body))
            self._whole = body
        return self._whole

    async def json(self) -> Any:
        """The parsed body, checked already where it is large and its model is declared.

        Raises ValidationFailed when it is wrong, InvalidRequest for a malformed ref.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await off_loop(len(body), lambda: self._parse(body))
        return self._json

    async def checked(self, adapter: TypeAdapter[M]) -> M:
        """The body as its model; raises as `json`."""
        body = await self.body()
        if not body:
            raise ValidationFailed.at(["body"], "Field required", "missing")
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = not kind or (kind.startswith("application/") and kind.endswith(("/json", "+json")))

        def check() -> M:
            value = parse_body(body, caller_of(self)) if is_json else body
            return validate(adapter, value, from_attributes=True)

        return await off_loop(len(body), check)

    def _parse(self, body: bytes) -> Any:
        value = parse_body(body, caller_of(self))
        if self._declared is None or len(body) <= OFF_LOOP_BYTES:
            return value
        return validate(TypeAdapter(self._declared), value)

    def _is_binary(self) -> bool:
        kind = self.headers.get("content-type", "")
        return "protobuf" in kind or "multipart" in kind

    def _check_nodes(self, body: bytes) -> None:
        state: ServerState = self.app.state.services
        named, most = self._node_limit(state.settings)
        if self._declared is not None:
            query.check_text(body)
        if jsontext.may_exceed(body, most + 1) and jsontext.count_nodes(body) > most:
            state.metrics.count_refusal("max_json_nodes")
            raise TooLarge(f"Request too large: more JSON values than {named} = {most}")

    def _node_limit(self, settings: Settings) -> tuple[str, int]:
        """The most values of this request's body, and what they are called; bodies of a declared model hold no data."""
        path = self.scope["path"]
        if path.endswith("/table/create_from_digests"):
            return f"the limit max_table_body / {_DIGEST_BYTES}", settings.max_table_body // _DIGEST_BYTES
        if self._declared is None and (path in OTLP_PATHS or not path.startswith("/v1/")):
            return "the limit max_json_nodes", settings.max_json_nodes
        return f"the limit max_json_nodes / {_DECLARED_SHARE}", settings.max_json_nodes // _DECLARED_SHARE


def parse_body(body: bytes, caller: Caller, keep_non_finite: bool = False, max_depth: int = jsontext.MAX_DEPTH) -> Any:
    """Parse a JSON body and convert its refs to internal form; raises as `jsontext.loads` and `refs.convert_in` do."""
    text = refs.convert_in(body, caller.may_read) if b"weave" in body else body
    try:
        return jsontext.loads(text, keep_non_finite, max_depth)
    except ValidationFailed:
        # Places are told as they are in what was sent.
        jsontext.loads(body, keep_non_finite, max_depth)
        raise


def validate(adapter: TypeAdapter[M], value: object, *, from_attributes: bool = False) -> M:
    """The typed request; raises ValidationFailed with the first places that are wrong.

    The framework checks with `from_attributes`, which says something else of what is no object.
    """
    try:
        return adapter.validate_python(value, from_attributes=from_attributes)
    except ValidationError as error:
        raise validation_failure(error, ["body"]) from None


def validation_failure(error: ValidationError, place: list[str | int]) -> ValidationFailed:
    """The answer for what is wrong; `place` is where the value stands that was checked."""
    if error.error_count() > MOST_ERRORS:
        return ValidationFailed.at(place, f"{error.error_count()} places are wrong, too many to list")
    found = details(error.errors(include_url=False, include_context=False, include_input=False))
    return ValidationFailed([{**item, "loc": [*place, *item["loc"]]} for item in found])


def _move_places(failure: ValidationFailed, depth: int, start: int) -> ValidationFailed:
    for item in failure.detail:
        if len(item["loc"]) > depth:
            item["loc"][depth] += start
    return failure


def check_in_slices(*place: str) -> WrapValidator:
    """Check a list a slice at a time, so that others go on meanwhile; `place` is where in the body it stands."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, list) or len(value) <= _SLICE:
            return handler(value)
        checked: list[Any] = []
        for start in range(0, len(value), _SLICE):
            try:
                checked += handler(value[start : start + _SLICE])
            except ValidationError as error:
                raise _move_places(validation_failure(error, ["body", *place]), len(place) + 1, start) from None
        return checked

    return WrapValidator(check)


def caller_of(request: Request) -> Caller:
    """Who is calling, as the outermost layer recognised them; raises NotAuthenticated."""
    caller = request.scope.get("heddle.caller")
    if isinstance(caller, Caller):
        return caller
    problem = request.scope.get("heddle.caller_problem")
    raise problem if isinstance(problem, NotAuthenticated) else NotAuthenticated("an API key is required")


class RequestModel(LazyModel):
    """A request body; keys that it does not know are ignored, and logged once each.

    Bodies of heddle's own routes refuse them (`own_bodies`), and so do others that clear or delete what is not named.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=True, protected_namespaces=())
    _named: ClassVar[set[tuple[str, str]]] = set()

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: Any) -> Any:
        is_open = cls.model_config.get("extra") == "ignore"
        if is_open and isinstance(data, dict) and not cls._known_keys().issuperset(data):
            for key in data.keys() - cls._known_keys():
                place = (cls.__name__, str(key)[:100])
                if place not in RequestModel._named and len(RequestModel._named) < 1000:
                    RequestModel._named.add(place)
                    logger.info("ignored unknown key %r of %s", place[1], place[0])
        return data

    @classmethod
    @cache
    def _known_keys(cls) -> frozenset[str]:
        return frozenset(name for key, field in cls.model_fields.items() for name in (key, field.alias or key))


class ProjectReq(RequestModel):
    """A request body about one project (`entity/project`)."""

    project_id: str


class ResponseModel(LazyModel):
    """A response body, declared for the OpenAPI description."""

    model_config = ConfigDict(protected_namespaces=())


class Empty(ResponseModel):
    """The answer `{}`."""


class Route(APIRoute):
    """A route whose handler sees a `BodyRequest`, read by the framework when it is first asked for.

    Reading all of them takes longer than all the rest of the start. An endpoint that answers itself, a coroutine that
    returns a Response, needs its model for the description only: `with_description` is the route with that model.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.is_hot, self.is_local = (endpoint in marked for marked in (_HOT, _LOCAL))
        self.is_direct = False
        """Its application needs none of the framework's layers; known once it was asked for."""
        self._options = options
        names = {name: options[name] for name in ("name", "include_in_schema") if name in options}
        StarletteRoute.__init__(self, path, endpoint, **names)
        self.methods = set(options.get("methods") or ["GET"])
        self.tags = list(options.get("tags") or [])
        self.group = str(self.tags[0]).lower().replace(" ", "_") if self.tags else NO_GROUP
        """What metrics and quotas call its group."""
        self.app = self._answer_first

    async def handle(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Serve a request that matches, within the quotas."""
        if (meter := scope.get(METER)) is not None:
            meter.begin_request(scope, self.group)
        await super().handle(scope, receive, send)

    async def _answer_first(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        self._read()
        await self.app(scope, receive, send)

    def _read(self) -> None:
        """Let the framework read what the endpoint takes and returns."""
        hints = get_type_hints(self.endpoint, include_extras=True)
        returned = hints.pop("return", None)
        answers_itself = iscoroutinefunction(self.endpoint) and (
            isinstance(returned, type) and issubclass(returned, Response)
        )
        models = [hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, BaseModel)]
        self._body_model = models[0] if len(models) == 1 else None
        left = {"response_model": None, "openapi_extra": None} if answers_itself else {}
        APIRoute.__init__(self, self.path, self.endpoint, **{**self._options, **left})
        model, parts = self._body_model, self.param_convertors
        is_alone = answers_itself and not self.dependencies
        if is_alone and all(hint is model or _is_simple(name, hint, parts) for name, hint in hints.items()):
            self.app, self.is_direct = _direct_app(self.endpoint, hints, model), True

    def with_description(self) -> APIRoute:
        """The same with everything that the OpenAPI description tells."""
        extra = self._options.get("openapi_extra")
        return APIRoute(
            self.path, self.endpoint, **{**self._options, "openapi_extra": extra() if callable(extra) else extra}
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, given our request class."""
        handler = super().get_route_handler()

        async def run(request: Request) -> Response:
            return await handler(BodyRequest(request.scope, request.receive, self._body_model))

        return run


_HOT: set[Callable[..., Any]] = set()
_LOCAL: set[Callable[..., Any]] = set()


def hot(endpoint: E) -> E:
    """Mark an endpoint of the write path: its route is tried first, as the framework tries one after the other."""
    _HOT.add(endpoint)
    return endpoint


def local(endpoint: E) -> E:
    """Mark an endpoint that a worker serves itself: it uses no service but those of `ServerState`."""
    _LOCAL.add(endpoint)
    return endpoint


def dependency(hint: Any) -> Callable[..., Any] | None:
    """What an annotation asks the framework for: the function of its `Depends`."""
    found = [item.dependency for item in getattr(hint, "__metadata__", ()) if isinstance(item, params.Depends)]
    return found[0] if found else None


def _is_simple(name: str, hint: Any, path_parts: Collection[str]) -> bool:
    call = dependency(hint)
    is_ours = call is state_of or isinstance(call, (Service, Needs))
    checks = any(getattr(part, "metadata", True) for part in getattr(hint, "__metadata__", ()))
    is_text = name in path_parts and _unwrap_annotation(hint) is str and not checks
    return is_ours or hint is Request or is_text


def _unwrap_annotation(hint: Any) -> Any:
    return getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint


def _direct_app(
    endpoint: Callable[..., Awaitable[Response]], hints: Mapping[str, Any], model: type[BaseModel] | None
) -> ASGIApp:
    """The ASGI application of an endpoint of request, services, plain path parts and a body of a model.

    The framework's resolving of dependencies costs more than storing a call does.
    """
    needs = [(name, call) for name, hint in hints.items() if (call := dependency(hint)) is not None]
    requests = [name for name, hint in hints.items() if hint is Request]
    parts = [name for name, hint in hints.items() if _unwrap_annotation(hint) is str]
    bodies = [(name, TypeAdapter(hint)) for name, hint in hints.items() if hint is model]

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        request = BodyRequest(scope, receive, model)
        values: dict[str, Any] = {name: await call(request) for name, call in needs}
        values |= {name: scope["path_params"][name] for name in parts}
        values |= dict.fromkeys(requests, request)
        values |= {name: await request.checked(adapter) for name, adapter in bodies}
        response = await endpoint(**values)
        await response(scope, receive, send)

    return app


async def validate_body(model: type[B], request: Request) -> B:
    """The typed body of a route that decodes it itself; raises ValidationFailed."""
    body = await request.body()
    return await off_loop(len(body), lambda: validate(TypeAdapter(model), jsontext.loads(body)))


def group(tag: str) -> APIRouter:
    """A router for one group of the interface."""
    # Old SDKs send JSON without a Content-Type.
    return APIRouter(route_class=Route, tags=[tag], strict_content_type=False)


async def state_of(request: Request) -> ServerState:
    """The services of this server; a coroutine, as the framework runs plain functions in a thread of their own."""
    state: ServerState = request.app.state.services
    return state


class Service:
    """A dependency on one service of this server, by its name among them."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, request: Request) -> Any:
        """The service."""
        return getattr(request.app.state.services, self.name)


class Needs:
    """A dependency that lets only callers with one scope pass; `scope` feeds the table of docs/operating.md."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Caller:
        """The caller as one who reaches only where its key has the scope; raises Forbidden where that is nowhere."""
        return caller_of(request).require(self.scope)


class NeedsBearer(Needs):
    """Lets only callers with a Bearer token or `x-api-key` pass, also where no key is checked."""

    async def __call__(self, request: Request) -> Caller:
        """The caller; raises NotAuthenticated without a bearer token, Forbidden when its key lacks the scope."""
        scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
        # The pages of this server have a session, or need none.
        is_page = is_own_page(request.scope["headers"])
        has_key = bool(request.headers.get("x-api-key", "").strip()) and not scheme
        if not is_page and not has_key and (scheme.lower() != "bearer" or not token.strip()):
            raise NotAuthenticated("This requires the header 'Authorization: Bearer <API key>'", scheme="Bearer")
        return await super().__call__(request)


Reader = Annotated[Caller, Depends(Needs(Scope.READ))]
Annotator = Annotated[Caller, Depends(Needs(Scope.ANNOTATE))]
Writer = Annotated[Caller, Depends(Needs(Scope.WRITE))]
Deleter = Annotated[Caller, Depends(Needs(Scope.DELETE))]
Admin = Annotated[Caller, Depends(Needs(Scope.ADMIN))]
BearerReader = Annotated[Caller, Depends(NeedsBearer(Scope.READ))]
BearerWriter = Annotated[Caller, Depends(NeedsBearer(Scope.WRITE))]
BearerDeleter = Annotated[Caller, Depends(NeedsBearer(Scope.DELETE))]
BearerAdmin = Annotated[Caller, Depends(NeedsBearer(Scope.ADMIN))]
StateDep = Annotated[ServerState, Depends(state_of)]
SettingsDep = Annotated[Settings, Depends(Service("settings"))]
QuotasDep = Annotated[Quotas, Depends(Service("quotas"))]
StoreDep = Annotated[Store, Depends(Service("store"))]
RecordsDep = Annotated[Records, Depends(Service("records"))]
PricesDep = Annotated[PricesOf, Depends(Service("prices"))]
SpanReaderDep = Annotated[SpanReader, Depends(Service("read_span"))]
MetricsDep = Annotated[Metrics, Depends(Service("metrics"))]
AuthenticatorDep = Annotated[Authenticator, Depends(Service("authenticator"))]
EventStreamsDep = Annotated[EventStreams, Depends(Service("event_streams"))]


def answer(value: Any) -> Response:
    """A JSON answer of plain values (fragments of ready JSON text included) with refs in external form."""
    text = jsontext.dumps_bytes(value)
    if len(text) > OFF_LOOP_BYTES:
        return _LargeAnswer(text)
    return Response(refs.convert_out(text) if refs.INTERNAL_IN_JSON in text else text, media_type="application/json")


class _LargeAnswer(Response):
    """JSON text whose refs are brought into external form off the event loop."""

    media_type = "application/json"

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self._text = text

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Send it."""
        self.body = await off_loop(len(self._text), lambda: refs.convert_out(self._text))
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


class Lines(JSONResponse):
    """Stands for a line stream in the OpenAPI description, where the response model is that of one line."""

    media_type = "application/jsonl"


class NdLines(Lines):
    """The same under the other name that line streams have."""

    media_type = "application/x-ndjson"


def lines(chunks: AsyncIterator[bytes], kind: type[Lines] = Lines) -> StreamingResponse:
    """A stream of JSON lines; each chunk holds whole lines with refs in external form."""
    return StreamingResponse(chunks, media_type=kind.media_type)


def json_lines(values: Iterable[Any]) -> bytes:
    """Values as JSON lines with refs in external form."""
    return refs.convert_out(b"\n".join((*map(jsontext.dumps_bytes, values), b"")))


def describe_row(model: type[ResponseModel], row: object, **values: Any) -> Json:
    """The fields of an answer: these values, all others out of a stored row, whose instants become ISO text."""
    found = {name: values[name] if name in values else getattr(row, name) for name in model.model_fields}
    instants = {name: times.to_iso(found[name]) for name in found if name.endswith("_at") and type(found[name]) is int}
    return found | instants
