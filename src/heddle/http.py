"""What every router shares: request models, scopes, who is calling, and answers."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from functools import cache
from inspect import iscoroutinefunction
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import orjson
from fastapi import APIRouter, Depends, Request, Response, params
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from heddle.auth import Authenticator, Caller, Scope
from heddle.cookies import is_own_page
from heddle.errors import InvalidRequest, NotAuthenticated, TooLarge
from heddle.event_streams import EventStreams
from heddle.metrics import Metrics
from heddle.request_body import OFF_LOOP_BYTES, BodyRequest, caller_of, off_loop, validated
from heddle.server_state import ServerState
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import jsontext, refs
from heddle.wire.inference import PricesOf
from heddle.wire.records import Records

logger = logging.getLogger("heddle.http")
B = TypeVar("B", bound=BaseModel)


class RequestModel(BaseModel):
    """A request body; keys that it does not know are ignored, and logged once each."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True, protected_namespaces=())
    _named: ClassVar[set[tuple[str, str]]] = set()

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and not cls._known_keys().issuperset(data):
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


class ResponseModel(BaseModel):
    """A response body, declared for the OpenAPI description; what checks it is built when that is asked for."""

    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class Empty(ResponseModel):
    """The answer `{}`."""


class Route(APIRoute):
    """A route whose handler sees a `BodyRequest`.

    An endpoint that answers itself, a coroutine that returns a Response, needs its model for the description only:
    `described` is the route with that model. Building them all takes as long as all the rest of the start.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.is_hot, self.is_local = (endpoint in marked for marked in (_HOT, _LOCAL))
        self._options = options
        hints = get_type_hints(endpoint, include_extras=True)
        returned = hints.pop("return", None)
        answers_itself = iscoroutinefunction(endpoint) and isinstance(returned, type) and issubclass(returned, Response)
        models = [hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, BaseModel)]
        self._body_model = models[0] if len(models) == 1 else None
        left = {"response_model": None, "openapi_extra": None} if answers_itself else {}
        super().__init__(path, endpoint, **{**options, **left})
        if answers_itself and all(_is_simple(name, hint, self.param_convertors) for name, hint in hints.items()):
            self.app = _direct(endpoint, hints)

    def described(self) -> APIRoute:
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
E = TypeVar("E", bound=Callable[..., Any])


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
    return is_ours or hint is Request or (name in path_parts and _plain_type(hint) is str)


def _plain_type(hint: Any) -> Any:
    return getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint


def _direct(endpoint: Callable[..., Awaitable[Response]], hints: Mapping[str, Any]) -> ASGIApp:
    """The ASGI application of an endpoint of request, services and plain path parts, which decodes its body itself.

    The framework's resolving of dependencies costs more than storing a call does.
    """
    needs = [(name, call) for name, hint in hints.items() if (call := dependency(hint)) is not None]
    requests = [name for name, hint in hints.items() if hint is Request]
    parts = [name for name, hint in hints.items() if _plain_type(hint) is str]

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        request = BodyRequest(scope, receive)
        values: dict[str, Any] = {name: await call(request) for name, call in needs}
        values |= {name: scope["path_params"][name] for name in parts}
        values |= dict.fromkeys(requests, request)
        response = await endpoint(**values)
        await response(scope, receive, send)

    return app


async def validated_body(model: type[B], request: Request) -> B:
    """The typed body of a route that decodes it itself; raises ValidationFailed."""
    body = await request.body()
    return await off_loop(len(body), lambda: validated(TypeAdapter(model), jsontext.loads(body)))


def inlined_body(model: type[BaseModel]) -> Any:
    """The OpenAPI request body of a route that decodes its body itself, made when the description is asked for."""

    @cache
    def described() -> dict[str, Any]:
        schema = model.model_json_schema()
        schema = _inlined(schema, schema.get("$defs", {}))
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    return described


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(item, definitions) for key, item in schema.items() if key not in ("$defs", "discriminator")}


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
        """The caller; raises Forbidden when its key lacks the scope."""
        caller = caller_of(request)
        caller.require(self.scope)
        return caller


class NeedsBearer(Needs):
    """Lets only callers with `Authorization: Bearer` pass, also where no key is checked (interface, section 5.1)."""

    async def __call__(self, request: Request) -> Caller:
        """The caller; raises NotAuthenticated without a bearer token, Forbidden when its key lacks the scope."""
        scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
        # The pages of this server have a session, or need none.
        is_page = is_own_page(request.scope["headers"])
        if not is_page and (scheme.lower() != "bearer" or not token.strip()):
            raise NotAuthenticated("This needs the header 'Authorization: Bearer <API key>'", scheme="Bearer")
        return await super().__call__(request)


Reader = Annotated[Caller, Depends(Needs(Scope.READ))]
Writer = Annotated[Caller, Depends(Needs(Scope.WRITE))]
Admin = Annotated[Caller, Depends(Needs(Scope.ADMIN))]
BearerReader = Annotated[Caller, Depends(NeedsBearer(Scope.READ))]
BearerWriter = Annotated[Caller, Depends(NeedsBearer(Scope.WRITE))]
BearerAdmin = Annotated[Caller, Depends(NeedsBearer(Scope.ADMIN))]
StateDep = Annotated[ServerState, Depends(state_of)]
SettingsDep = Annotated[Settings, Depends(Service("settings"))]
StoreDep = Annotated[Store, Depends(Service("store"))]
RecordsDep = Annotated[Records, Depends(Service("records"))]
PricesDep = Annotated[PricesOf, Depends(Service("prices"))]
MetricsDep = Annotated[Metrics, Depends(Service("metrics"))]
AuthenticatorDep = Annotated[Authenticator, Depends(Service("authenticator"))]
EventStreamsDep = Annotated[EventStreams, Depends(Service("event_streams"))]


def answer(value: Any) -> Response:
    """A JSON answer of plain values (fragments of ready JSON text included) with refs in external form."""
    text = jsontext.dumps_bytes(value)
    if len(text) > OFF_LOOP_BYTES:
        return _LargeAnswer(text)
    return Response(refs.convert_out(text), media_type="application/json")


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


def line(value: Any) -> bytes:
    """One JSON line with refs in external form."""
    return refs.convert_out(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


def not_negative(value: int | None, name: str) -> int | None:
    """The value; raises InvalidRequest when it is negative."""
    if value is not None and value < 0:
        raise InvalidRequest(f"{name} must not be negative")
    return None if value is None else min(value, 2**62)


def page_limit(settings: Settings, limit: int | None) -> int | None:
    """The limit of a list; raises TooLarge beyond the setting max_page_rows. None is no limit."""
    most = settings.max_page_rows
    if limit is not None and limit > most:
        raise TooLarge(
            f"Request too large: a page has at most {most} rows (limit max_page_rows), {limit} were asked for"
        )
    return limit
