"""A request of any interface of completions over HTTP, from its body to the last byte of its answer."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest, Unavailable, ValidationFailed
from heddle.http.routing import off_loop
from heddle.inference.accounts import Ticket, project_of, session_of
from heddle.inference.chat.plan import Arrival
from heddle.inference.chat.wire import Wire
from heddle.inference.service import Inference, Running
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.inference")
T = TypeVar("T")

IGNORED_HEADER = "x-heddle-ignored-fields"
STRICT_HEADER = "x-heddle-strict-fields"
POLICY_HEADER = "x-heddle-policy"
_MOST_IGNORED = 50


async def respond(request: Request, inference: Inference, wire: Wire, body: Json, arrival: Arrival) -> Response:
    """The answer to the parsed body of a request: whole, or as a stream of events. Raises HeddleError."""
    running = await run_while_connected(request.receive, inference.begin(wire, body, arrival))
    headers = describe_run(running.policy, running.ticket, running.plan.ignored)
    if running.plan.wants_stream:
        return EventStream(inference, running, headers)
    whole = await run_while_connected(request.receive, inference.whole(running))
    return Response(orjson.dumps(whole), headers=headers, media_type="application/json")


def describe_run(policy: str, ticket: Ticket, ignored: Sequence[str]) -> dict[str, str]:
    """The headers of an answer: which weights made it, what room the limits leave, and which fields had no effect."""
    return {POLICY_HEADER: _header_text(policy), **ticket.headers, **describe_ignored(ignored)}


def describe_ignored(names: Sequence[str]) -> dict[str, str]:
    """The header that lists fields without effect; none where there are none."""
    if not names:
        return {}
    return {IGNORED_HEADER: _header_text(", ".join(name[:100] for name in names[:_MOST_IGNORED]))}


def read_arrival(request: Request, caller: Caller) -> Arrival:
    """Who asks and what came in headers; raises InvalidRequest for a bad one, Forbidden outside the key's binding."""
    priority = request.headers.get("x-vllm-priority")
    if priority is not None and not re.fullmatch(r"-?[0-9]{1,10}", priority):
        raise InvalidRequest("The header X-Vllm-Priority must be a whole number", param="X-Vllm-Priority")
    strict = request.headers.get(STRICT_HEADER)
    if strict not in (None, "true", "false"):
        raise InvalidRequest(f"The header {STRICT_HEADER} must be true or false", param=STRICT_HEADER)
    return Arrival(
        caller=caller,
        strict_fields=None if strict is None else strict == "true",
        project=project_of(request.headers, caller),
        session=session_of(request.headers),
        request_id=request.headers.get("x-request-id"),
        priority=int(priority) if priority is not None else None,
    )


async def read_request(request: Request, caller: Caller) -> tuple[Any, Arrival]:
    """The parsed body, and what is known beside it; raises as `read_body` and `read_arrival` do."""
    body = await read_body(request)
    return body, replace(read_arrival(request, caller), size=len(await request.body()))


async def read_body(request: Request) -> Any:
    """The parsed body; malformed JSON is 400 here, as clients of this wire know it."""
    try:
        body = await request.body()
        return await off_loop(len(body), lambda: jsontext.loads(body, keep_non_finite=True))
    except ValidationFailed as error:
        error.status = 400
        raise


def _header_text(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client goes away; raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
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


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; a failure in the middle is told by the last ones."""

    def __init__(self, inference: Inference, running: Running, headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        del self.headers["content-length"]
        self._inference = inference
        self._running = running
        self._wire, self._answer = running.wire, running.plan.answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; stops the work at once when the client goes away."""
        try:
            await run_while_connected(receive, self._send(scope, send))
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # the server ends and waits no longer
            await self._send_failure(send, Unavailable("The server is stopping"))
            await self._send_last(send)
        finally:
            # A stream that was cut before its first part has not ended itself.
            await self._inference.end(self._running, asyncio.CancelledError())

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._inference.stream(self._running)) as events:
            try:
                async for together in events:
                    await self._send_events(send, together)
            except HeddleError as error:
                await self._send_failure(send, error)
            except Exception:  # a fault of ours: the log gets the traceback, the client an event
                logger.exception("stream %s failed", scope.get("heddle.request_id"))
                await self._send_failure(send, HeddleError("Internal server error"))
        await self._send_last(send)

    async def _send_failure(self, send: Send, error: HeddleError) -> None:
        await self._send_events(send, self._answer.failure(error))

    async def _send_events(self, send: Send, events: list[Json]) -> None:
        """One write for all that is there: a write costs more than an event does."""
        await send({"type": "http.response.body", "body": self._wire.encode(events), "more_body": True})

    async def _send_last(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._wire.last_event, "more_body": False})
