"""What every router shares: request models, scopes, who is calling, and answers."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi._compat import ModelField
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from heddle.auth import Caller, Scope
from heddle.cookies import is_own_page
from heddle.errors import InvalidRequest, NotAuthenticated, TooLarge
from heddle.request_body import OFF_LOOP_BYTES, BodyRequest, caller_of, off_loop, validated
from heddle.wire import jsontext, refs

if TYPE_CHECKING:
    from heddle.house import House

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
    """A route whose handler sees a `BodyRequest`."""

    _shown: Any = None
    _extra: Any = None
    _shown_field: ModelField | None = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        answers_itself = _answers_itself(endpoint)
        # Only the description needs the model of an answer that is made already: building them all takes as long as
        # all the rest of the start.
        shown = options.get("response_model")
        shown = None if isinstance(shown, DefaultPlaceholder) else shown
        super().__init__(path, endpoint, **(options | {"response_model": None} if answers_itself else options))
        if answers_itself:
            self.response_model = self._shown = shown
        if answers_itself and _takes_only_the_caller(self.dependant):
            self.app = _direct(self)

    @property
    def response_field(self) -> ModelField | None:
        """The field of the answer's model, built when the description is asked for."""
        if self._shown_field is None and self._shown is not None:
            name = f"Response_{self.unique_id}"
            self._shown_field = create_model_field(name=name, type_=self._shown, mode="serialization")
        return self._shown_field

    @response_field.setter
    def response_field(self, field: ModelField | None) -> None:
        self._shown_field = field

    @property
    def openapi_extra(self) -> dict[str, Any] | None:
        """What the description says beside what the framework finds out."""
        extra: dict[str, Any] | None = self._extra() if callable(self._extra) else self._extra
        return extra

    @openapi_extra.setter
    def openapi_extra(self, extra: Any) -> None:
        self._extra = extra

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, given our request class."""
        handler = super().get_route_handler()
        declared = self._declared_body()

        async def run(request: Request) -> Response:
            return await handler(BodyRequest(request.scope, request.receive, declared))

        return run

    def _declared_body(self) -> type[BaseModel] | None:
        """The model of the body where the framework checks it."""
        declared = [field.field_info.annotation for field in self.dependant.body_params]
        only = declared[0] if len(declared) == 1 else None
        return only if isinstance(only, type) and issubclass(only, BaseModel) else None


def _answers_itself(endpoint: Callable[..., Any]) -> bool:
    returned = endpoint.__annotations__.get("return")
    return iscoroutinefunction(endpoint) and isinstance(returned, type) and issubclass(returned, Response)


def _takes_only_the_caller(dependant: Dependant) -> bool:
    """True for an endpoint of request, caller, services and plain path parts, which decodes its body itself."""
    inputs = (dependant.query_params, dependant.header_params, dependant.cookie_params, dependant.body_params)
    known = all(needed.call is house_of or isinstance(needed.call, Needs) for needed in dependant.dependencies)
    return known and not any(inputs) and all(part.field_info.annotation is str for part in dependant.path_params)


def _direct(route: APIRoute) -> ASGIApp:
    """The ASGI application of such an endpoint, without the framework's resolving of dependencies.

    That costs more than storing a call does.
    """
    dependant, endpoint = route.dependant, route.endpoint
    needs = [(needed.name or "", needed.call) for needed in dependant.dependencies if needed.call is not None]
    parts = [part.name for part in dependant.path_params]
    request_name = dependant.request_param_name

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        request = BodyRequest(scope, receive)
        values: dict[str, Any] = {name: await call(request) for name, call in needs}
        path = scope["path_params"]
        for name in parts:
            values[name] = path[name]
        if request_name is not None:
            values[request_name] = request
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


async def house_of(request: Request) -> "House":
    """The services of this server; a coroutine, as the framework runs plain functions in a thread of their own."""
    return cast("House", request.app.state.house)


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
Services = Annotated["House", Depends(house_of)]


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


def page_limit(house: "House", limit: int | None) -> int | None:
    """The limit of a list; raises TooLarge beyond the setting max_page_rows. None is no limit."""
    most = house.settings.max_page_rows
    if limit is not None and limit > most:
        raise TooLarge(
            f"Request too large: a page has at most {most} rows (limit max_page_rows), {limit} were asked for"
        )
    return limit
