"""Request bodies: parsed and checked off the event loop where they are large, and bounded in what they hold."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from pydantic import (
    BaseModel,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from starlette.types import Receive
from starlette.types import Scope as ASGIScope

from heddle.auth import Caller
from heddle.errors import NotAuthenticated, TooLarge, ValidationFailed
from heddle.failures import details
from heddle.server_state import ServerState
from heddle.settings import Settings
from heddle.wire import jsonpieces, jsontext, query, refs

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
    """Do work on so many bytes: at once where they are few, else in a thread."""
    if size <= OFF_LOOP_BYTES:
        return work()
    executor = _large if size > _LARGE_BYTES else None
    return await asyncio.get_running_loop().run_in_executor(executor, work)


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
                await off_loop(len(body), lambda: self._bound(body))
            self._whole = body
        return self._whole

    async def json(self) -> Any:
        """The parsed body, checked already where it is large and its model is declared.

        Raises ValidationFailed when it is wrong, InvalidRequest for a malformed ref.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await off_loop(len(body), lambda: self._read(body))
        return self._json

    def _read(self, body: bytes) -> Any:
        value = parse_body(body, caller_of(self))
        if self._declared is None or len(body) <= OFF_LOOP_BYTES:
            return value
        return validated(TypeAdapter(self._declared), value)

    def _is_binary(self) -> bool:
        kind = self.headers.get("content-type", "")
        return "protobuf" in kind or "multipart" in kind

    def _bound(self, body: bytes) -> None:
        state: ServerState = self.app.state.services
        named, most = self._limit(state.settings)
        if self._declared is not None:
            query.check_text(body)
        if jsonpieces.may_exceed(body, most + 1) and jsonpieces.count_nodes(body) > most:
            state.metrics.refused("max_json_nodes")
            raise TooLarge(f"Request too large: more JSON values than {named} = {most}")

    def _limit(self, settings: Settings) -> tuple[str, int]:
        """The most values of this request's body, and what they are called; bodies of a declared model hold no data."""
        if self.scope["path"].endswith("/table/create_from_digests"):
            return f"the limit max_table_body / {_DIGEST_BYTES}", settings.max_table_body // _DIGEST_BYTES
        if self._declared is None and not self.scope["path"].startswith("/v1/"):
            return "the limit max_json_nodes", settings.max_json_nodes
        return f"the limit max_json_nodes / {_DECLARED_SHARE}", settings.max_json_nodes // _DECLARED_SHARE


def parse_body(body: bytes, caller: Caller, keep_non_finite: bool = False) -> Any:
    """Parse a JSON body and convert its refs to internal form."""
    value = jsontext.loads(body, keep_non_finite)
    return refs.convert_in(value, caller.may_read) if b"weave" in body else value


def validated(adapter: TypeAdapter[M], value: object) -> M:
    """The typed request; raises ValidationFailed with the first places that are wrong."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise invalid(error, ["body"]) from None


def invalid(error: ValidationError, place: list[str | int]) -> ValidationFailed:
    """The answer for what is wrong; `place` is where the value stands that was checked."""
    if error.error_count() > MOST_ERRORS:
        return ValidationFailed.at(place, f"{error.error_count()} places are wrong, too many to list")
    found = details(error.errors(include_url=False, include_context=False, include_input=False))
    return ValidationFailed([{**item, "loc": [*place, *item["loc"]]} for item in found])


def sliced(*place: str) -> WrapValidator:
    """Check a list a slice at a time, so that others go on meanwhile; `place` is where in the body it stands."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, list) or len(value) <= _SLICE:
            return handler(value)
        checked: list[Any] = []
        for start in range(0, len(value), _SLICE):
            try:
                checked += handler(value[start : start + _SLICE])
            except ValidationError as error:
                failure = invalid(error, ["body", *place])
                for item in failure.detail:
                    if len(item["loc"]) > len(place) + 1:
                        item["loc"][len(place) + 1] += start
                raise failure from None
        return checked

    return WrapValidator(check)


def caller_of(request: Request) -> Caller:
    """Who is calling, as the outermost layer recognised them; raises NotAuthenticated."""
    caller = request.scope.get("heddle.caller")
    if isinstance(caller, Caller):
        return caller
    problem = request.scope.get("heddle.caller_problem")
    raise problem if isinstance(problem, NotAuthenticated) else NotAuthenticated("an API key is required")
