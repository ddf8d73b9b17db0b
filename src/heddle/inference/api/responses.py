"""The Responses interface: responses, and conversations, whose items several responses share and add to."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.http.description import body_schema
from heddle.http.routing import (
    BearerDeleter,
    BearerReader,
    BearerWriter,
    EventStreamsDep,
    ResponseModel,
    StoreDep,
    group,
)
from heddle.inference.api.respond import describe_run, read_arrival, read_body, read_request, respond
from heddle.inference.chat.request import parse_fields
from heddle.inference.responses.answer import ResponsesWire
from heddle.inference.responses.items import (
    InputItem,
    ItemReference,
    MessageBuilder,
    check_types,
    new_key,
    normal_items,
)
from heddle.inference.responses.request import ResponsesRequest, check_metadata
from heddle.inference.responses.service import (
    Background,
    ResponsesDep,
    check_length,
    find_conversation,
    owner_of,
    unknown_conversation,
)
from heddle.inference.service import InferenceDep
from heddle.store.base import Store
from heddle.store.control.responses import ConversationRow
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel

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
            raise InvalidRequest(f"after: item '{after[:100]}' not found", param="after")
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
    request: Request, caller: BearerWriter, inference: InferenceDep, responses: ResponsesDep, streams: EventStreamsDep
) -> Response:
    """Create a response: whole, as a stream of events, or in the background."""
    body, arrival = await read_request(request, caller)
    parsed, wire, row = await responses.prepare(body, arrival)
    if not parsed.background or row is None:
        return await respond(request, inference, wire, body, arrival)
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
    body, arrival = await read_request(request, caller)
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
    if starting_after is not None:
        raise InvalidRequest("starting_after requires stream", param="starting_after")
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


_MOST_AT_ONCE = 20
M = TypeVar("M", bound=BaseModel)


class _Body(LazyModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class CreateConversation(_Body):
    """The first items of a conversation."""

    metadata: dict[str, str] | None = None
    items: list[InputItem] | None = None


class UpdateConversation(_Body):
    """The new metadata."""

    metadata: dict[str, str] | None


class AddItems(_Body):
    """Items for the end of a conversation."""

    items: list[InputItem] = Field(min_length=1)


class ConversationObject(ResponseModel):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(ResponseModel):
    """What was removed."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


@router.post("/v1/conversations", response_model=None, openapi_extra=body_schema(CreateConversation))
async def create_conversation(request: Request, caller: BearerWriter, store: StoreDep) -> Response:
    """Create a conversation."""
    body = await _parsed(CreateConversation, request)
    check_metadata(body.metadata)
    name, owner, now = f"conv_{new_key()}", _owner(request, caller), times.now()
    row = ConversationRow(id=name, owner=owner, metadata=body.metadata or {}, created_at=now, changed_at=now)
    await store.conversations.add(row, _normal(body.items or []))
    return plain_answer(_shown(row))


@router.get("/v1/conversations/{conversation_id}", response_model=ConversationObject)
async def retrieve_conversation(
    request: Request, conversation_id: str, caller: BearerReader, store: StoreDep
) -> Response:
    """Retrieve a conversation."""
    return plain_answer(_shown(await _find(request, caller, store, conversation_id)))


@router.post("/v1/conversations/{conversation_id}", response_model=None, openapi_extra=body_schema(UpdateConversation))
async def update_conversation(
    request: Request, conversation_id: str, caller: BearerWriter, store: StoreDep
) -> Response:
    """Replace the metadata of a conversation."""
    body = await _parsed(UpdateConversation, request)
    check_metadata(body.metadata)
    row = await _find(request, caller, store, conversation_id)
    metadata = body.metadata or {}
    if not await store.conversations.update(row.owner, row.id, metadata):
        raise unknown_conversation(row.id, "conversation_id")
    return plain_answer(_shown(replace(row, metadata=metadata)))


@router.delete("/v1/conversations/{conversation_id}", response_model=DeletedConversation)
async def delete_conversation(
    request: Request, conversation_id: str, caller: BearerDeleter, store: StoreDep
) -> Response:
    """Delete a conversation with its items; responses that were made in it stay."""
    row = await _find(request, caller, store, conversation_id)
    if not await store.conversations.delete(row.owner, row.id, caller.user):
        raise unknown_conversation(row.id, "conversation_id")
    return plain_answer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/v1/conversations/{conversation_id}/items", response_model=None, openapi_extra=body_schema(AddItems))
async def create_conversation_items(
    request: Request, conversation_id: str, caller: BearerWriter, store: StoreDep
) -> Response:
    """Add items at the end of a conversation; returns them with their ids."""
    body = await _parsed(AddItems, request)
    if len(body.items) > _MOST_AT_ONCE:
        raise InvalidRequest(
            f"items has {len(body.items)} entries; at most {_MOST_AT_ONCE} can be added at once", param="items"
        )
    row = await _find(request, caller, store, conversation_id)
    items = _normal(body.items)
    check_length(await store.conversations.chars(row.id), "conversation")
    await store.conversations.append(row.owner, row.id, items, times.now())
    return plain_answer(item_page(items, len(items), "asc", None))


@router.get("/v1/conversations/{conversation_id}/items", response_model=ItemList)
async def list_conversation_items(
    request: Request,
    conversation_id: str,
    caller: BearerReader,
    store: StoreDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """List the items of a conversation."""
    row = await _find(request, caller, store, conversation_id)
    return plain_answer(item_page(await store.conversations.items(row.id), limit, order, after))


@router.get("/v1/conversations/{conversation_id}/items/{conversation_item_id}", response_model=Json)
async def retrieve_conversation_item(
    request: Request, conversation_id: str, conversation_item_id: str, caller: BearerReader, store: StoreDep
) -> Response:
    """Retrieve one item of a conversation."""
    row = await _find(request, caller, store, conversation_id)
    for item in await store.conversations.items(row.id):
        if item["id"] == conversation_item_id:
            return plain_answer(item)
    raise _unknown_item(conversation_item_id)


@router.delete("/v1/conversations/{conversation_id}/items/{conversation_item_id}", response_model=ConversationObject)
async def delete_conversation_item(
    request: Request, conversation_id: str, conversation_item_id: str, caller: BearerDeleter, store: StoreDep
) -> Response:
    """Remove one item from a conversation; returns the conversation."""
    caller = caller.require(Scope.READ)
    row = await _find(request, caller, store, conversation_id)
    if not await store.conversations.remove_item(row.owner, row.id, conversation_item_id, caller.user):
        raise _unknown_item(conversation_item_id)
    return plain_answer(_shown(row))


async def _parsed(model: type[M], request: Request) -> M:
    body = await read_body(request)
    if isinstance(body, dict):
        check_types(body.get("items"), "items")
    return parse_fields(model, body, status=400)


def _normal(items: list[InputItem]) -> list[Json]:
    for number, item in enumerate(items):
        if isinstance(item, ItemReference):
            place = f"items.{number}"
            raise InvalidRequest(f"{place}: references to other items are not supported", param=place)
    # What cannot be read would be refused in every response of the conversation.
    MessageBuilder().add(items, "items")
    return normal_items(items, new_key())


async def _find(request: Request, caller: Caller, store: Store, conversation_id: str) -> ConversationRow:
    return await find_conversation(store, _owner(request, caller), conversation_id, "conversation_id")


def _shown(row: ConversationRow) -> Json:
    created = row.created_at // 1_000_000
    return {"id": row.id, "object": "conversation", "created_at": created, "metadata": row.metadata}


def _unknown_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:100]}' not found.", param="item_id")
