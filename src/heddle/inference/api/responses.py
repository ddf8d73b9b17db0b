"""The Responses interface: create, stream, retrieve, list input items, cancel, delete, count tokens."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query, Request, Response

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.http.routing import (
    BearerDeleter,
    BearerReader,
    BearerWriter,
    EventStreamsDep,
    ResponseModel,
    body_schema,
    group,
)
from heddle.inference.api.respond import describe_run, read_arrival, read_body, respond
from heddle.inference.responses.request import ResponsesRequest
from heddle.inference.responses.service import Background, ResponsesDep, owner_of
from heddle.inference.responses.wire import ResponsesWire
from heddle.inference.service import InferenceDep
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

router = group("Responses")
Order = Literal["asc", "desc"]
Limit = Annotated[int, Query(ge=1, le=100)]


class ResponseObject(ResponseModel):
    """A response; `output` holds its items."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[Json]
    usage: Json | None
    error: Json | None
    incomplete_details: Json | None


class DeletedResponse(ResponseModel):
    """What was removed."""

    id: str
    object: Literal["response"]
    deleted: bool


class ItemList(ResponseModel):
    """One page of items."""

    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


def item_page(items: Sequence[Json], limit: int, order: Order, after: str | None) -> Json:
    """A page of items behind the one with the id `after`; raises InvalidRequest where there is none."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise InvalidRequest(f"after: there is no item '{after[:100]}'", param="after")
        ordered = ordered[places[-1] + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }


def plain_answer(value: Json) -> Response:
    """A JSON answer whose texts are the client's own."""
    return Response(jsontext.dumps_bytes(value), media_type="application/json")


@router.post("/v1/responses", response_model=None, openapi_extra=body_schema(ResponsesRequest))
async def create_response(
    request: Request,
    caller: BearerWriter,
    inference: InferenceDep,
    responses: ResponsesDep,
    streams: EventStreamsDep,
) -> Response:
    """Create a response: whole, as a stream of events, or in the background."""
    body = await read_body(request)
    arrival = replace(read_arrival(request, caller), size=len(await request.body()))
    parsed, wire, row = await responses.prepare(body, arrival)
    if not parsed.background or row is None:
        return await respond(request, caller, inference, wire, body)
    started = await responses.begin_in_background(wire, row, body, arrival)
    answer = streams.answer(caller, _events(wire, started, -1)) if parsed.stream else plain_answer(started.row.body)
    running = started.running
    answer.headers.update(describe_run(running.policy, running.ticket, running.plan.ignored))
    return answer


async def _events(wire: ResponsesWire, background: Background, after: int) -> AsyncIterator[bytes]:
    async for together in background.follow(after):
        yield wire.encode(together)
    yield wire.last_event


@router.post("/v1/responses/input_tokens", response_model=None, openapi_extra=body_schema(ResponsesRequest))
async def count_input_tokens(
    request: Request, caller: BearerWriter, inference: InferenceDep, responses: ResponsesDep
) -> Response:
    """Count the tokens of what a request would be made of; nothing runs."""
    body = await read_body(request)
    arrival = replace(read_arrival(request, caller), size=len(await request.body()))
    _, wire, _ = await responses.prepare(body, arrival)
    count = await inference.count_prompt(wire, body, arrival)
    return plain_answer({"object": "response.input_tokens", "input_tokens": count})


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def retrieve_response(
    request: Request,
    response_id: str,
    caller: BearerReader,
    responses: ResponsesDep,
    streams: EventStreamsDep,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=0)] | None = None,
) -> Response:
    """Retrieve a stored response; with `stream` the events of one that was created in the background."""
    owner = _owner(request, caller)
    if stream:
        found = await responses.stream_of(owner, response_id)
        wire = found.running.wire
        assert isinstance(wire, ResponsesWire)
        return streams.answer(caller, _events(wire, found, -1 if starting_after is None else starting_after))
    return plain_answer((await responses.find(owner, response_id)).body)


@router.get("/v1/responses/{response_id}/input_items", response_model=ItemList)
async def list_input_items(
    request: Request,
    response_id: str,
    caller: BearerReader,
    responses: ResponsesDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """List the items that a response was made from, those of earlier responses of its chain included."""
    items = await responses.input_items(_owner(request, caller), response_id)
    return plain_answer(item_page(items, limit, order, after))


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(
    request: Request, response_id: str, caller: BearerWriter, responses: ResponsesDep
) -> Response:
    """End a response that is at work in the background."""
    caller = caller.require(Scope.READ)
    return plain_answer((await responses.cancel(_owner(request, caller), response_id)).body)


@router.delete("/v1/responses/{response_id}", response_model=DeletedResponse)
async def delete_response(
    request: Request, response_id: str, caller: BearerDeleter, responses: ResponsesDep
) -> Response:
    """Delete a stored response."""
    await responses.delete(_owner(request, caller), response_id, caller.user)
    return plain_answer({"id": response_id, "object": "response", "deleted": True})


def _owner(request: Request, caller: Caller) -> str:
    return owner_of(caller, read_arrival(request, caller).project)
