"""POST /v1/chat/completions: one answer, or a stream of server-sent events."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from heddle import failures
from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest, Unavailable, ValidationFailed
from heddle.http import BearerWriter, group, inlined_body
from heddle.inference.chat import request as fields
from heddle.inference.chat.plan import Arrival
from heddle.inference.dependencies import InferenceDep
from heddle.inference.limits.accounts import project_of
from heddle.inference.service import Inference, Running
from heddle.request_body import off_loop
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.inference")
router = group("Inference")
T = TypeVar("T")

IGNORED_HEADER = "x-heddle-ignored-fields"
POLICY_HEADER = "x-heddle-policy"
_LAST = b"data: [DONE]\n\n"
_MOST_IGNORED = 50


@router.post("/v1/chat/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/chat/completions", response_model=None, openapi_extra=inlined_body(fields.ChatRequest))
async def create_chat_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Create a chat completion."""
    body = await _body(request)
    arrival = replace(arrival_of(request, caller), size=len(await request.body()))
    running = await while_connected(request, inference.begin(body, arrival))
    headers = _headers(body, running)
    if running.plan.wants_stream:
        return EventStream(inference, running, headers)
    whole = await while_connected(request, inference.whole(running))
    return Response(orjson.dumps(whole), headers=headers, media_type="application/json")


def arrival_of(request: Request, caller: Caller) -> Arrival:
    """Who asks and what came in headers; raises InvalidRequest for a bad one, Forbidden outside the key's binding."""
    priority = request.headers.get("x-vllm-priority")
    if priority is not None and not re.fullmatch(r"-?[0-9]{1,10}", priority):
        raise InvalidRequest("The header X-Vllm-Priority must be a whole number", param="X-Vllm-Priority")
    return Arrival(
        caller=caller,
        project=project_of(request.headers, caller),
        request_id=request.headers.get("x-request-id"),
        priority=int(priority) if priority is not None else None,
    )


async def _body(request: Request) -> Any:
    """The parsed body; malformed JSON is 400 here, as clients of this wire know it."""
    try:
        body = await request.body()
        return await off_loop(len(body), lambda: jsontext.loads(body, keep_non_finite=True))
    except ValidationFailed as error:
        error.status = 400
        raise


def _headers(body: Json, running: Running) -> dict[str, str]:
    headers = {POLICY_HEADER: _header_text(running.policy), **running.ticket.headers}
    ignored = [*fields.ignored_keys(body), *running.plan.ignored]
    if ignored:
        headers[IGNORED_HEADER] = _header_text(", ".join(key[:100] for key in ignored[:_MOST_IGNORED]))
    return headers


def _header_text(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client goes away; raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()
        with contextlib.suppress(BaseException):
            await working


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Chunks as server-sent events; a failure in the middle is one more event, and the last."""

    def __init__(self, inference: Inference, running: Running, headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        del self.headers["content-length"]
        self._inference = inference
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; stops the work at once when the client goes away."""
        sending = asyncio.ensure_future(self._send(scope, send))
        watching = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except asyncio.CancelledError:  # the server ends and waits no longer
            sending.cancel()
            with contextlib.suppress(BaseException):
                await sending
            await _events(send, [failures.openai_body(Unavailable("The server is stopping"))])
            await send({"type": "http.response.body", "body": _LAST, "more_body": False})
        finally:
            for task in (sending, watching):
                task.cancel()
            with contextlib.suppress(BaseException):
                await sending
            # A stream that was cut before its first part has not ended itself.
            await self._inference.end(self._running, asyncio.CancelledError())

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._inference.stream(self._running)) as chunks:
            try:
                async for together in chunks:
                    await _events(send, together)
            except HeddleError as error:
                await _events(send, [failures.openai_body(error)])
            except Exception:  # a fault of ours: the log gets the traceback, the client an event
                logger.exception("stream %s failed", scope.get("heddle.request_id"))
                await _events(send, [failures.openai_body(HeddleError("Internal server error"))])
        await send({"type": "http.response.body", "body": _LAST, "more_body": False})


async def _events(send: Send, values: list[Json]) -> None:
    """One write for all that is there: a write costs more than an event does."""
    body = b"".join(b"data: " + orjson.dumps(value) + b"\n\n" for value in values)
    await send({"type": "http.response.body", "body": body, "more_body": True})
