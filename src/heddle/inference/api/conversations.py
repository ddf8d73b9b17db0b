"""Conversations of the Responses interface: items that several responses share and add to."""

from dataclasses import replace
from typing import Literal, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import BearerDeleter, BearerReader, BearerWriter, ResponseModel, StoreDep, body_schema, group
from heddle.inference.api.respond import read_arrival, read_body
from heddle.inference.api.responses import ItemList, Limit, Order, item_page, plain_answer
from heddle.inference.chat.request import parse_fields
from heddle.inference.responses.items import InputItem, check_types, is_made_here, new_key, normal_items
from heddle.inference.responses.request import check_metadata
from heddle.inference.responses.service import owner_of
from heddle.store.base import Store
from heddle.store.control.responses import ConversationRow
from heddle.wire import times
from heddle.wire.jsontypes import Json

router = group("Responses")
_MOST_AT_ONCE = 20
M = TypeVar("M", bound=BaseModel)


class _Body(BaseModel):
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
    key, now = new_key(), times.now()
    owner = _owner(request, caller)
    row = ConversationRow(id=f"conv_{key}", owner=owner, metadata=body.metadata or {}, created_at=now, changed_at=now)
    await store.conversations.add(row, _normal(body.items or []))
    return plain_answer(_shown(row))


@router.get("/v1/conversations/{conversation_id}", response_model=ConversationObject)
async def retrieve_conversation(
    request: Request, conversation_id: str, caller: BearerReader, store: StoreDep
) -> Response:
    """Retrieve a conversation."""
    return plain_answer(_shown(await _find(store, _owner(request, caller), conversation_id)))


@router.post("/v1/conversations/{conversation_id}", response_model=None, openapi_extra=body_schema(UpdateConversation))
async def update_conversation(
    request: Request, conversation_id: str, caller: BearerWriter, store: StoreDep
) -> Response:
    """Replace the metadata of a conversation."""
    body = await _parsed(UpdateConversation, request)
    check_metadata(body.metadata)
    row = await _find(store, _owner(request, caller), conversation_id)
    metadata = body.metadata or {}
    await store.conversations.update(row.owner, row.id, metadata)
    return plain_answer(_shown(replace(row, metadata=metadata)))


@router.delete("/v1/conversations/{conversation_id}", response_model=DeletedConversation)
async def delete_conversation(
    request: Request, conversation_id: str, caller: BearerDeleter, store: StoreDep
) -> Response:
    """Delete a conversation with its items; responses that were made in it stay."""
    row = await _find(store, _owner(request, caller), conversation_id)
    await store.conversations.delete(row.owner, row.id, caller.user)
    return plain_answer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/v1/conversations/{conversation_id}/items", response_model=None, openapi_extra=body_schema(AddItems))
async def create_conversation_items(
    request: Request, conversation_id: str, caller: BearerWriter, store: StoreDep
) -> Response:
    """Add items at the end of a conversation; returns them with their ids."""
    body = await _parsed(AddItems, request)
    if len(body.items) > _MOST_AT_ONCE:
        raise InvalidRequest(
            f"items has {len(body.items)} entries; at most {_MOST_AT_ONCE} can be added at a time", param="items"
        )
    row = await _find(store, _owner(request, caller), conversation_id)
    items = _normal(body.items)
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
    row = await _find(store, _owner(request, caller), conversation_id)
    return plain_answer(item_page(await store.conversations.items(row.id), limit, order, after))


@router.get("/v1/conversations/{conversation_id}/items/{conversation_item_id}", response_model=Json)
async def retrieve_conversation_item(
    request: Request, conversation_id: str, conversation_item_id: str, caller: BearerReader, store: StoreDep
) -> Response:
    """Retrieve one item of a conversation."""
    row = await _find(store, _owner(request, caller), conversation_id)
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
    row = await _find(store, _owner(request, caller), conversation_id)
    known = {item["id"] for item in await store.conversations.items(row.id)}
    place = (row.owner, row.id, conversation_item_id)
    if conversation_item_id not in known or not await store.conversations.remove_item(*place, caller.user):
        raise _unknown_item(conversation_item_id)
    return plain_answer(_shown(row))


async def _parsed(model: type[M], request: Request) -> M:
    body = await read_body(request)
    if isinstance(body, dict):
        check_types(body.get("items"), "items")
    return parse_fields(model, body, status=400)


def _normal(items: list[InputItem]) -> list[Json]:
    if any(item.type == "item_reference" for item in items):
        raise InvalidRequest("items: references to other items are not supported here", param="items")
    return normal_items(items, new_key())


def _owner(request: Request, caller: Caller) -> str:
    return owner_of(caller, read_arrival(request, caller).project)


async def _find(store: Store, owner: str, conversation_id: str) -> ConversationRow:
    row = await store.conversations.find(owner, conversation_id) if is_made_here("conv", conversation_id) else None
    if row is None:
        raise NotFound(f"Conversation with id '{conversation_id[:100]}' not found.", param="conversation_id")
    return row


def _shown(row: ConversationRow) -> Json:
    created = row.created_at // 1_000_000
    return {"id": row.id, "object": "conversation", "created_at": created, "metadata": row.metadata}


def _unknown_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:100]}' not found.", param="item_id")
