"""Responses as one service: what a request refers to, what is stored, and work in the background."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Depends

from heddle.auth import Caller, Scope
from heddle.errors import Busy, HeddleError, InvalidRequest, NotFound
from heddle.http.routing import Service, off_loop
from heddle.inference.chat.plan import Arrival
from heddle.inference.chat.wire import Keep
from heddle.inference.responses.answer import ResponsesAnswer, ResponsesWire, response_error
from heddle.inference.responses.items import (
    ITEMS,
    InputItem,
    ItemReference,
    is_made_here,
    key_of,
    new_key,
    normal_items,
)
from heddle.inference.responses.request import ResponsesRequest, parse_request
from heddle.inference.service import Inference, Running
from heddle.jobs.runner import Loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.responses import LEASE_SECONDS, MOST_CHARS, OPEN, ConversationRow, ResponseRow
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.keys import Authority

logger = logging.getLogger("heddle.inference")
_RENEW_SECONDS = LEASE_SECONDS / 3
_TIDY_ROUNDS = 360
_MOST_BACKGROUND = 100
_FINISHED_STREAMS = 16
CUT = "The server was restarted before the response was complete"


def owner_of(caller: Caller, project: str | None) -> str:
    """Whose stored responses a request may see: those of its project, else those of keys with the same binding."""
    return refs.internal_project(project) if project is not None else f"@{caller.reach}"


async def find_conversation(store: Store, owner: str, name: str, param: str) -> ConversationRow:
    """A stored conversation; raises NotFound naming the field `param`."""
    row = await store.conversations.find(owner, name) if is_made_here("conv", name) else None
    if row is None:
        raise unknown_conversation(name, param)
    return row


def unknown_conversation(name: str, param: str) -> NotFound:
    """What is raised for a conversation that is not there, or not any more."""
    return NotFound(f"Conversation with id '{name[:100]}' not found.", param=param)


@dataclass(slots=True)
class Background:
    """A response at work in the background, and the events that it has made so far."""

    running: Running
    row: ResponseRow
    task: asyncio.Task[None]
    authority: Authority | None
    events: list[Json] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False
    is_ending: bool = False

    def cut(self, why: str | None = None) -> None:
        """Cancel the work, once, and not where it has failed: that would cut what it does to end in order.

        With a reason it is stored as failed.
        """
        if not self.is_ending:
            self.is_ending = True
            self.task.cancel(why)

    def add(self, events: Sequence[Json]) -> None:
        """Tell those who follow."""
        self.events += events
        self.news.set()
        self.news = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[list[Json]]:
        """The events with greater numbers, as they come, to the end."""
        place = after + 1
        while True:
            news = self.news
            if place < len(self.events):
                together = self.events[place:]
                place += len(together)
                yield together
            elif self.has_ended:
                return
            else:
                await news.wait()


class Responses:
    """Prepares, stores and finds responses; made with the server."""

    def __init__(self, settings: Settings, store: Store, inference: Inference) -> None:
        self._rows = store.responses
        self._store = store
        self._leases = store.leases
        self._inference = inference
        self._days = settings.response_days
        self._background: dict[str, Background] = {}
        self._rounds = 0
        self._upkeep = Loop(self._keep_up, logger, "upkeep of responses was put off", _RENEW_SECONDS)

    async def start(self) -> None:
        """Say of what an earlier server left that it was cut, and keep up from then on."""
        await self._mark_cut()
        self._upkeep.start()

    async def stop(self) -> None:
        """End what is at work in the background; it is stored as failed."""
        await self._upkeep.stop()
        at_work = [one for one in self._background.values() if not one.has_ended]
        for one in at_work:
            one.cut(CUT)
        await asyncio.gather(*(one.task for one in at_work), return_exceptions=True)

    # A request

    async def prepare(self, body: Any, arrival: Arrival) -> tuple[ResponsesRequest, ResponsesWire, ResponseRow | None]:
        """What a request is made of, and the row that it will be stored as.

        Raises HeddleError where something that it refers to is missing.
        """
        request = await off_loop(arrival.size, lambda: parse_request(body))
        _check_scope(arrival.caller, arrival.project, request)
        owner = owner_of(arrival.caller, arrival.project)
        key = new_key()
        items = await self._resolve(owner, request.input) if isinstance(request.input, list) else []
        history, thread_id = await self._history(owner, request)
        if request.conversation_id is not None:
            _check_ids(history, items)
        wire = ResponsesWire(request, key, items, history, thread_id)
        row: ResponseRow | None = None
        if request.is_stored:
            own = items
            if isinstance(request.input, str):
                own = ITEMS.validate_python([{"type": "message", "role": "user", "content": request.input}])
            row = ResponseRow(
                id=f"resp_{key}",
                owner=owner,
                previous_id=request.previous_response_id,
                thread_id=thread_id or f"resp_{key}",
                status="in_progress",
                body={},
                input=await off_loop(arrival.size, lambda: normal_items(own, key)),
                created_at=times.now(),
            )
            keep = self._keeper(row, request.conversation_id, arrival.size)
            wire = replace(wire, thread_id=row.thread_id, keep=keep)
        return request, wire, row

    def _keeper(self, row: ResponseRow, conversation_id: str | None, size: int) -> Keep:
        async def keep(body: Json) -> None:
            ended = replace(row, status=body["status"], body=body)
            if body["background"]:
                await self._rows.finish(ended, conversation_id)
            else:
                await self._rows.store(ended, conversation_id, size)

        return keep

    async def _resolve(self, owner: str, items: Sequence[InputItem]) -> list[InputItem]:
        """The items, with stored ones in the place of references; raises InvalidRequest for one that is not there."""
        rows: dict[str, dict[str, Json]] = {}
        found: list[InputItem] = []
        for number, item in enumerate(items):
            if not isinstance(item, ItemReference):
                found.append(item)
                continue
            key = key_of(item.id)
            if key is not None and key not in rows:
                row = await self._rows.find(owner, f"resp_{key}")
                rows[key] = {} if row is None else {one["id"]: one for one in [*row.input, *row.body["output"]]}
            stored = rows.get(key or "", {}).get(item.id)
            if stored is None:
                place = f"input.{number}.id"
                raise InvalidRequest(f"{place}: item '{item.id[:100]}' not found", param=place)
            found += ITEMS.validate_python([stored])
        return found

    async def _history(self, owner: str, request: ResponsesRequest) -> tuple[list[InputItem], str | None]:
        """The items before those of a request, and the thread that it goes on with."""
        if request.conversation_id is not None:
            conversation = await find_conversation(self._store, owner, request.conversation_id, "conversation")
            check_length(await self._store.conversations.chars(conversation.id), "conversation")
            items = await self._store.conversations.items(conversation.id)
            return await asyncio.to_thread(ITEMS.validate_python, items), conversation.id
        previous = request.previous_response_id
        if previous is None:
            return [], None
        is_ours = is_made_here("resp", previous)
        check_length(await self._rows.chain_chars(owner, previous) if is_ours else 0, "previous_response_id")
        chain = await self._rows.chain(owner, previous) if is_ours else []
        if not chain or chain[0].previous_id is not None:
            gone = previous if not chain else chain[0].previous_id or ""
            raise InvalidRequest(
                f"Previous response with id '{gone[:100]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if chain[-1].status in OPEN:
            raise InvalidRequest(
                f"The response '{previous[:100]}' is still {chain[-1].status}", param="previous_response_id"
            )
        items = [item for row in chain for item in (*row.input, *row.body["output"])]
        return await asyncio.to_thread(ITEMS.validate_python, items), chain[-1].thread_id

    # In the background

    async def begin_in_background(
        self, wire: ResponsesWire, row: ResponseRow, body: Any, arrival: Arrival
    ) -> Background:
        """Admit a response, store it as queued, and let it run; raises HeddleError, and then nothing is left."""
        busy = Busy(
            f"{_MOST_BACKGROUND} responses of this project are already running in the background", retry_after=5
        )
        if await self._rows.count_open(row.owner) >= _MOST_BACKGROUND:
            raise busy
        running = await self._inference.admit(wire, body, arrival)
        answer = running.plan.answer
        assert isinstance(answer, ResponsesAnswer)
        try:
            row = replace(row, status="queued", body=answer.queued())
            # Others may have come since they were counted.
            if not await self._rows.add(row, _MOST_BACKGROUND):
                raise busy
        except BaseException as error:
            await self._inference.release(running)
            raise error from None
        # The task takes its own place in the table before it runs for the first time.
        work = asyncio.create_task(self._run(row.id))
        found = self._background[row.id] = Background(running, row, work, arrival.caller.authority)
        # Only the last of those that have ended can be streamed again.
        ended = [response_id for response_id, one in self._background.items() if one.has_ended]
        for response_id in ended[:-_FINISHED_STREAMS]:
            del self._background[response_id]
        return found

    async def _run(self, response_id: str) -> None:
        one = self._background[response_id]
        running = one.running
        answer = running.plan.answer
        assert isinstance(answer, ResponsesAnswer)
        try:
            one.add(answer.opening())
            await self._rows.begin(replace(one.row, body=one.events[-1]["response"]))
            await self._inference.begin_generation(running)
            async with contextlib.aclosing(self._inference.stream(running, is_open=True)) as steps:
                async for events in steps:
                    one.add(events)
        except HeddleError as error:
            one.is_ending = True
            one.add(answer.failure(error))
            await self._inference.end(running, error)
            await self._keep_failure(one)
        except asyncio.CancelledError as cancelled:
            await self._inference.end(running, cancelled)
            # One that had been completed by then stays so.
            if cancelled.args and running.record.error is not None:
                one.add(answer.failure(HeddleError(cancelled.args[0])))
                await self._keep_failure(one)
        except Exception as error:  # a fault of ours: the log gets the traceback, the client a failed response
            one.is_ending = True
            logger.exception("response %s failed", response_id)
            one.add(answer.failure(HeddleError("Internal server error")))
            await self._inference.end(running, error)
            await self._keep_failure(one)
        finally:
            one.has_ended = True
            one.add(())

    async def _keep_failure(self, one: Background) -> None:
        body = one.running.plan.answer.body()
        with contextlib.suppress(HeddleError):
            await self._rows.finish(replace(one.row, status=body["status"], body=body))

    # Stored responses

    async def find(self, owner: str, response_id: str) -> ResponseRow:
        """A stored response; raises NotFound."""
        row = await self._rows.find(owner, response_id) if is_made_here("resp", response_id) else None
        if row is None:
            raise _unknown(response_id)
        return row

    async def stream_of(self, owner: str, response_id: str) -> Background:
        """A response whose events are still there; raises NotFound, and InvalidRequest where they are not."""
        await self.find(owner, response_id)
        found = self._background.get(response_id)
        if found is None:
            raise InvalidRequest(
                "stream: the events of this response are not stored; retrieve it without stream", param="stream"
            )
        return found

    async def input_items(self, owner: str, response_id: str) -> list[Json]:
        """The items of a request, those before it first; raises NotFound."""
        row = await self.find(owner, response_id)
        chain = await self._rows.chain(owner, row.id)
        return [item for each in chain[:-1] for item in (*each.input, *each.body["output"])] + row.input

    async def delete(self, owner: str, response_id: str, user: str) -> None:
        """Remove a response, and end it where it is at work; raises NotFound."""
        row = await self.find(owner, response_id)
        if row.status in OPEN:
            await self._end(row)
        if not await self._rows.delete(owner, response_id, user):
            raise _unknown(response_id)

    async def cancel(self, owner: str, response_id: str) -> ResponseRow:
        """End a response in the background and return it; one that has ended stays as it is. Raises NotFound."""
        row = await self.find(owner, response_id)
        if not row.body["background"]:
            raise InvalidRequest(
                "Only a response that was created with background can be cancelled", param="response_id"
            )
        if row.status in OPEN:
            await self._end(row)
            row = await self.find(owner, response_id)
        return row

    async def _end(self, row: ResponseRow) -> None:
        await self._rows.ask_to_cancel(row.owner, row.id)
        here = self._background.get(row.id)
        if here is not None and not here.has_ended:
            here.cut()
            await asyncio.wait([here.task])

    # Upkeep

    async def _keep_up(self) -> float:
        """Renew what is at work here, end what is not wanted, mark what was cut, and forget what is old."""
        at_work = {response_id: one for response_id, one in self._background.items() if not one.has_ended}
        if at_work:
            wanted = await self._rows.renew(list(at_work))
            for response_id in at_work.keys() - wanted:
                at_work[response_id].cut()
            problems = await self._store.keys.problems({one.authority for one in at_work.values() if one.authority})
            for one in at_work.values():
                if one.authority in problems:
                    one.cut(problems[one.authority])
        await self._mark_cut()
        if self._rounds % _TIDY_ROUNDS == 0 and await self._leases.take("responses", _RENEW_SECONDS):
            await self._rows.forget_older(times.now() - self._days * times.DAY)
        self._rounds += 1
        return _RENEW_SECONDS

    async def _mark_cut(self) -> None:
        for row in await self._rows.cut():
            body = {**row.body, "status": "failed", "error": response_error(HeddleError(CUT))}
            await self._rows.finish(replace(row, status="failed", body=body))


def _check_scope(caller: Caller, project: str | None, request: ResponsesRequest) -> None:
    """Raise Forbidden for stored items where the key does not read: what a model makes of them tells them."""
    items = request.input if isinstance(request.input, list) else ()
    has_reference = any(isinstance(item, ItemReference) for item in items)
    if has_reference or request.previous_response_id is not None or request.conversation is not None:
        reading = caller.require(Scope.READ)
        if project is not None:
            reading.open(project)


def _check_ids(history: Sequence[InputItem], items: Sequence[InputItem]) -> None:
    """Raise InvalidRequest for an id that a conversation has already, in the words of the interface."""
    known = {item.id for item in history}
    for item in items:
        if item.id is not None and item.id in known:
            raise InvalidRequest(
                f"Duplicate item found with id {item.id[:100]}. Remove duplicate items from your input and try again.",
                param="input",
            )
        known.add(item.id)


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:100]}' not found.", param="response_id")


ResponsesDep = Annotated[Responses, Depends(Service("responses"))]


def check_length(chars: int, param: str) -> None:
    """Raise InvalidRequest for a conversation or chain that is too long to be continued: all of it is read then."""
    if chars > MOST_CHARS:
        raise InvalidRequest(f"{param} has more than {MOST_CHARS} characters; start a new one", param=param)
