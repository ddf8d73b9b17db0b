"""Responses that are stored for their owners, alone or as chains, and conversations that collect items of several."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Busy, InvalidRequest, NotFound
from heddle.store.control.audit import audit
from heddle.store.control.coordination import SECOND, database_time
from heddle.store.control.redaction import RedactedRepository
from heddle.store.control.repository import Integer, Key, Mapped, Prepared, writes
from heddle.wire import jsontext, refs, times
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json

QUEUED, IN_PROGRESS = "queued", "in_progress"
OPEN = (QUEUED, IN_PROGRESS)
LEASE_SECONDS = 30.0
MOST_ANCESTORS = 10_000
MOST_CHARS = 64 << 20
"""Of what a chain or a conversation holds, to be continued: all of it is read then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """One response. Times are microseconds."""

    id: Key[str]
    owner: str
    """The internal id of its project, or what stands for callers without one."""
    previous_id: str | None = None
    thread_id: str
    """Shared by all responses of a chain."""
    status: str
    body: Json
    input: list[Json]
    """The items of this request alone, without those before them."""
    created_at: int
    cancel_asked: bool = False
    lease_owner: str | None = None
    """The server that works on it in the background."""
    lease_until: int | None = None


_responses = Mapped(
    ResponseRow,
    "responses",
    sa.Index("responses_thread", "thread_id", "created_at"),
    sa.Index("responses_status", "status"),
    sa.Index("responses_created", "created_at"),
)
responses = _responses.table
_c = responses.c
_insert_response = Prepared(responses.insert())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """One conversation; `changed_at` is when an item was added last (microseconds)."""

    id: Key[str]
    owner: str
    metadata: Json
    created_at: int
    changed_at: int


_conversations = Mapped(ConversationRow, "conversations", sa.Index("conversations_changed", "changed_at"))
conversations = _conversations.table
_v = conversations.c


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """One item of a conversation."""

    conversation_id: Key[str]
    place: Key[Integer]
    item_id: str
    item: Json


_items = Mapped(ConversationItem, "conversation_items")
conversation_items = _items.table
_i = conversation_items.c
RESPONSE_TABLES = (responses, conversations, conversation_items)


class Responses(RedactedRepository):
    """The tables of responses and conversations; what the rules of a project redact is not stored."""

    async def _redacted(self, row: ResponseRow) -> ResponseRow:
        body, items = await self._redaction.value(row.owner, [row.body, row.input])
        return replace(row, body=body, input=items)

    async def add(self, row: ResponseRow, most: int) -> bool:
        """Store a response that is to be worked on by this server; False where its owner has `most` open ones.

        Raises NotFound where the response that it continues is gone by now.
        """
        row = await self._redacted(row)
        leased = {"lease_owner": self.instance.owner, "lease_until": _lease_end()}

        def work(connection: sa.Connection) -> bool:
            if connection.execute(_count_open(row.owner)).scalar_one() >= most:
                return False
            _check_previous(connection, row)
            connection.execute(responses.insert().values(_responses.values(row) | leased))
            return True

        return await self._executor.write(work, _size(row))

    async def store(self, row: ResponseRow, conversation_id: str | None, size: int = 0) -> None:
        """Store a response that has ended; its items become part of its conversation in the same transaction.

        `size` is about as many bytes as it takes. Raises NotFound where what it continues is gone by now,
        InvalidRequest for an item that the conversation has already.
        """
        row = await self._redacted(row)

        def work(connection: sa.Connection) -> None:
            # As text, and prepared: binding through the toolkit takes longer than all the rest of a short answer.
            texts = {"body": jsontext.dumps(row.body), "input": jsontext.dumps(row.input), "cancel_asked": 0}
            _check_previous(connection, row)
            _insert_response(connection, **_responses.values(row) | texts)
            _append_response(connection, row, conversation_id)

        await self._executor.write(work, size)

    async def finish(self, row: ResponseRow, conversation_id: str | None = None) -> None:
        """The same for one that was added before; it stays deleted where that was done meanwhile."""
        row = await self._redacted(row)
        ended = {"status": row.status, "body": row.body, "lease_owner": None, "lease_until": None}

        def work(connection: sa.Connection) -> None:
            if connection.execute(responses.update().where(_c.id == row.id).values(ended)).rowcount:
                _append_response(connection, row, conversation_id)

        await self._executor.write(work, _size(row))

    async def find(self, owner: str, response_id: str) -> ResponseRow | None:
        """The response of an owner with an id."""
        return await self._first(_responses, _c.id == response_id, _c.owner == owner)

    async def chain(self, owner: str, response_id: str) -> list[ResponseRow]:
        """A response behind all that it continues, oldest first; the first has a `previous_id` where that is gone."""
        chain = _chain(owner, response_id)
        query = _responses.select().select_from(responses.join(chain, chain.c.id == _c.id))
        return await self._all(_responses, query.order_by(chain.c.depth.desc()))

    async def chain_chars(self, owner: str, response_id: str) -> int:
        """How long the texts of that chain are."""
        chain = _chain(owner, response_id)
        chars = sa.func.sum(_chars(_c.input) + _chars(_c.body))
        return await self._scalar(sa.select(chars).select_from(responses.join(chain, chain.c.id == _c.id))) or 0

    @writes
    def delete(self, connection: sa.Connection, owner: str, response_id: str, user: str) -> bool:
        """Remove a response; False for an unknown one."""
        mine = responses.delete().where(_c.id == response_id, _c.owner == owner)
        return _remove(connection, mine, user, "response.delete", owner, {"id": response_id})

    async def begin(self, row: ResponseRow) -> None:
        """Say that work on a queued response has begun."""
        started = {"status": IN_PROGRESS, "body": await self._redaction.value(row.owner, row.body)}
        await self._execute(responses.update().where(_c.id == row.id, _c.status == QUEUED).values(started))

    async def ask_to_cancel(self, owner: str, response_id: str) -> None:
        """Ask the server that works on a response to end that."""
        mine = sa.and_(_c.id == response_id, _c.owner == owner, _c.status.in_(OPEN))
        await self._execute(responses.update().where(mine).values(cancel_asked=True))

    @writes
    def renew(self, connection: sa.Connection, ids: Collection[str]) -> set[str]:
        """Keep responses at work at this server for a while longer; returns those of them that are still wanted."""
        mine = sa.and_(_c.id.in_(list(ids)), _c.lease_owner == self.instance.owner)
        connection.execute(responses.update().where(mine).values(lease_until=_lease_end()))
        return set(connection.execute(sa.select(_c.id).where(mine, _c.cancel_asked == 0)).scalars())

    async def cut(self) -> list[ResponseRow]:
        """The responses that no server works on any more, though they have not ended."""
        gone = _c.lease_until < database_time() if self.instance.is_shared else _c.lease_owner != self.instance.owner
        return await self._all(_responses, _responses.select(_c.status.in_(OPEN), gone).limit(1000))

    async def count_open(self, owner: str) -> int:
        """How many responses of an owner are queued or at work in the background."""
        return await self._scalar(_count_open(owner)) or 0

    @writes
    def forget_older(self, connection: sa.Connection, before: int) -> int:
        """Remove chains and conversations that nothing was added to since an instant; returns how many responses."""
        recent = sa.select(_c.thread_id).where(_c.created_at >= before)
        old = sa.select(_v.id).where(_v.changed_at < before)
        connection.execute(conversation_items.delete().where(_i.conversation_id.in_(old)))
        connection.execute(conversations.delete().where(_v.changed_at < before))
        return connection.execute(
            responses.delete().where(_c.created_at < before, _c.thread_id.not_in(recent))
        ).rowcount


class Conversations(RedactedRepository):
    """The tables of conversations; what the rules of a project redact is not stored."""

    async def add(self, row: ConversationRow, items: Sequence[Json]) -> None:
        """Store a conversation with its first items; raises InvalidRequest for two with the same id."""
        told, items = await self._redaction.value(row.owner, [row.metadata, list(items)])
        row = replace(row, metadata=told)

        def work(connection: sa.Connection) -> None:
            _conversations.insert(connection, row)
            _append(connection, row.id, items, row.created_at)

        await self._executor.write(work, sum(len(orjson.dumps(item)) for item in items))

    async def find(self, owner: str, conversation_id: str) -> ConversationRow | None:
        """The conversation of an owner with an id."""
        return await self._first(_conversations, _v.id == conversation_id, _v.owner == owner)

    async def update(self, owner: str, conversation_id: str, metadata: Json) -> bool:
        """Replace the metadata; False for an unknown conversation."""
        mine = sa.and_(_v.id == conversation_id, _v.owner == owner)
        metadata = await self._redaction.value(owner, metadata)
        return await self._execute(conversations.update().where(mine).values(metadata=metadata)) > 0

    @writes
    def delete(self, connection: sa.Connection, owner: str, conversation_id: str, user: str) -> bool:
        """Remove a conversation with its items; False for an unknown one."""
        mine = conversations.delete().where(_v.id == conversation_id, _v.owner == owner)
        is_known = _remove(connection, mine, user, "conversation.delete", owner, {"id": conversation_id})
        if is_known:
            connection.execute(conversation_items.delete().where(_i.conversation_id == conversation_id))
        return is_known

    async def items(self, conversation_id: str) -> list[Json]:
        """The items in order."""
        rows = await self._all(_items, _items.select(_i.conversation_id == conversation_id).order_by(_i.place))
        return [row.item for row in rows]

    async def chars(self, conversation_id: str) -> int:
        """How long the texts of the items are."""
        mine = _i.conversation_id == conversation_id
        return await self._scalar(sa.select(sa.func.sum(_chars(_i.item))).where(mine)) or 0

    async def append(self, owner: str, conversation_id: str, items: Sequence[Json], at: int) -> None:
        """Add items at the end.

        Raises NotFound for a conversation that is gone by now, InvalidRequest for an id that it has already.
        """
        items = await self._redaction.value(owner, list(items))
        size = sum(len(orjson.dumps(item)) for item in items)

        await self._executor.write(lambda connection: _append(connection, conversation_id, items, at), size)

    @writes
    def remove_item(self, connection: sa.Connection, owner: str, conversation_id: str, item_id: str, user: str) -> bool:
        """Remove one item of an owner's conversation; False for an unknown one."""
        mine = conversation_items.delete().where(_i.conversation_id == conversation_id, _i.item_id == item_id)
        what = {"id": conversation_id, "item": item_id}
        return _remove(connection, mine, user, "conversation_item.delete", owner, what)


def _chars(column: "sa.Column[Any]") -> sa.ColumnElement[int]:
    return sa.func.length(sa.cast(column, sa.Text))


def _chain(owner: str, response_id: str) -> sa.CTE:
    """The ids of a response and of all that it continues."""
    chain = (
        sa.select(_c.id, _c.previous_id, sa.literal(0).label("depth"))
        .where(_c.id == response_id, _c.owner == owner)
        .cte("chain", recursive=True)
    )
    before = responses.alias()
    return chain.union_all(
        sa.select(before.c.id, before.c.previous_id, chain.c.depth + 1)
        .join(chain, before.c.id == chain.c.previous_id)
        .where(before.c.owner == owner, chain.c.depth < MOST_ANCESTORS)
    )


def _remove(connection: sa.Connection, mine: sa.Delete, user: str, action: str, owner: str, what: Json) -> bool:
    """Remove rows and say so in the audit log, of the owner's project where that is one; False where none was there."""
    if not connection.execute(mine).rowcount:
        return False
    audit(connection, times.now(), user, action, owner if refs.external_project(owner) else None, what)
    return True


def _check_previous(connection: sa.Connection, row: ResponseRow) -> None:
    """Raise NotFound for a response that continues one that was removed meanwhile: it is made of what that held."""
    if row.previous_id is not None:
        mine = sa.select(_c.id).where(_c.id == row.previous_id, _c.owner == row.owner)
        if connection.execute(mine).first() is None:
            raise NotFound(
                f"Previous response with id '{row.previous_id[:100]}' not found.", param="previous_response_id"
            )


def _append_response(connection: sa.Connection, row: ResponseRow, conversation_id: str | None) -> None:
    """Let the items of a response become part of a conversation, unless it failed; raises as `_append` does."""
    if conversation_id is not None and row.status != "failed":
        _append(connection, conversation_id, [*row.input, *row.body["output"]], row.created_at, "input")


def _check_ids(connection: sa.Connection, conversation_id: str, items: Sequence[Json], field: str) -> None:
    """Raise InvalidRequest for an id that a conversation has already: it would name two items."""
    mine = sa.select(_i.item_id).where(_i.conversation_id == conversation_id)
    known = set(connection.execute(mine).scalars())
    for number, item in enumerate(items):
        if item["id"] in known:
            raise InvalidRequest(
                f"{field}.{number}.id: the conversation already has an item '{item['id'][:100]}'",
                param=f"{field}.{number}.id",
            )
        known.add(item["id"])


def _append(
    connection: sa.Connection, conversation_id: str, items: Sequence[Json], at: int, field: str = "items"
) -> None:
    """Add items behind those of a conversation; `field` names them in errors.

    Raises NotFound where it is gone, InvalidRequest for an id that it has already, Busy when another server adds items
    at the same moment.
    """
    # Touching the row first makes writers of the same conversation wait for each other.
    touched = conversations.update().where(_v.id == conversation_id).values(changed_at=at)
    if not connection.execute(touched).rowcount:
        raise NotFound(f"Conversation with id '{conversation_id[:100]}' not found.")
    if not items:
        return
    _check_ids(connection, conversation_id, items, field)
    last = connection.execute(sa.select(sa.func.max(_i.place)).where(_i.conversation_id == conversation_id)).scalar()
    first = 0 if last is None else last + 1
    rows = [
        _items.values(ConversationItem(conversation_id, place, item["id"], item))
        for place, item in enumerate(items, first)
    ]
    try:
        for part in batched(rows, 1_000):
            connection.execute(conversation_items.insert(), part)
    except sa.exc.IntegrityError:
        raise Busy(f"Another request is adding to the conversation {conversation_id}") from None


def _lease_end() -> Any:
    return database_time() + int(LEASE_SECONDS * SECOND)


def _count_open(owner: str) -> "sa.Select[int]":
    return sa.select(sa.func.count()).select_from(responses).where(_c.owner == owner, _c.status.in_(OPEN))


def _size(row: ResponseRow) -> int:
    return len(orjson.dumps(row.body)) + len(orjson.dumps(row.input))
