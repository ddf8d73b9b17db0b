"""What happens to stored responses without a request: they grow old, and what no server works on any more is failed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from heddle.errors import InvalidRequest, NotFound
from heddle.inference.prompt.opaque_reasoning import encode_reasoning
from heddle.inference.responses.answer import ResponsesAnswer
from heddle.inference.responses.items import (
    ITEMS,
    MOST_REASONING_BYTES,
    InputItem,
    MessageBuilder,
    key_of,
    new_key,
    output_id,
)
from heddle.inference.responses.service import CUT, Background, Responses
from heddle.inference.service import Inference
from heddle.settings import Settings
from heddle.store.base import ControlGroups, Store
from heddle.store.control.repository import Instance
from heddle.store.control.responses import ConversationRow, ResponseRow
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl, open_file
from heddle.wire import times
from heddle.wire.keys import Authority, Grant

Work = Callable[[ControlGroups, Responses], Awaitable[None]]
OWNER = "b3duZXI"


def run(folder: Path, work: Work, *, is_shared: bool = False) -> None:
    """Some work on the tables of a server, and on its service of responses, which has not started yet."""

    async def main() -> None:
        settings = Settings(data=str(folder), response_days=2)
        path = folder / DATABASE
        control = SqliteControl(settings, path, open_file(settings, path))
        groups = ControlGroups(
            control.executor, control.keys, control.spans, ControlRowTexts(control.executor), is_shared
        )
        service = Responses(settings, cast(Store, groups), cast(Inference, None))
        try:
            await work(groups, service)
        finally:
            await service.stop()
            await control.close()

    asyncio.run(main())


def row(number: int, **fields: Any) -> ResponseRow:
    """A response of today."""
    body = {"id": f"r{number}", "output": [], "status": "completed", "error": None}
    given = {"id": f"r{number}", "owner": OWNER, "thread_id": f"r{number}", "status": "completed", "body": body}
    return ResponseRow(**{**given, "input": [], "created_at": times.now(), **fields})


def test_a_chain_is_forgotten_when_its_last_response_is_old(tmp_path: Path) -> None:
    old = times.now() - 3 * times.DAY

    async def work(store: ControlGroups, service: Responses) -> None:
        await store.responses.store(row(1, created_at=old), None)
        await store.responses.store(row(2, created_at=old), None)
        await store.responses.store(row(3, thread_id="r2", previous_id="r2"), None)
        for name in ("c0", "c1"):
            kept = ConversationRow(id=name, owner=OWNER, metadata={}, created_at=old, changed_at=old)
            await store.conversations.add(kept, [{"id": "i"}])
        await store.conversations.append(OWNER, "c1", [{"id": "j"}], times.now())
        await service.start()
        while await store.responses.find(OWNER, "r1") is not None:
            await asyncio.sleep(0)
        assert [found.id for found in await store.responses.chain(OWNER, "r3")] == ["r2", "r3"]
        assert await store.conversations.find(OWNER, "c0") is None and await store.conversations.items("c0") == []
        assert await store.conversations.items("c1") == [{"id": "i"}, {"id": "j"}]

    run(tmp_path, work)


def test_items_for_a_conversation_that_is_gone_by_now_are_refused(tmp_path: Path) -> None:
    """They were acknowledged and not stored."""

    async def work(store: ControlGroups, service: Responses) -> None:
        with pytest.raises(NotFound, match="'c0' not found"):
            await store.conversations.append(OWNER, "c0", [{"id": "i"}], times.now())

    run(tmp_path, work)


def test_an_item_comes_into_a_conversation_once(tmp_path: Path) -> None:
    """Two responses that were made at the same time brought one with the same id, and it was there twice."""

    async def work(store: ControlGroups, _: Responses) -> None:
        made = ConversationRow(id="c1", owner=OWNER, metadata={}, created_at=1, changed_at=1)
        await store.conversations.add(made, [])
        await store.responses.store(row(1, input=[{"id": "i", "of": 1}]), "c1")
        await store.responses.add(row(3, status="queued"), 9)
        twice = r"input\.0\.id: the conversation already has an item 'i'"
        for stored in (
            store.responses.store(row(2, input=[{"id": "i", "of": 2}]), "c1"),
            store.responses.finish(row(3, input=[{"id": "i", "of": 3}]), "c1"),
        ):
            with pytest.raises(InvalidRequest, match=twice):
                await stored
        assert await store.conversations.items("c1") == [{"id": "i", "of": 1}]
        assert await store.responses.find(OWNER, "r2") is None
        left = await store.responses.find(OWNER, "r3")
        assert left is not None and left.status == "queued"

    run(tmp_path, work)


def test_what_an_earlier_server_left_is_failed_at_the_start(tmp_path: Path) -> None:
    async def leave(store: ControlGroups, _: Responses) -> None:
        await store.responses.add(row(1, status="queued"), 9)
        await store.responses.add(row(2, status="queued"), 9)
        await store.responses.begin(row(2))

    async def look(store: ControlGroups, service: Responses) -> None:
        await service.start()
        for response_id in ("r1", "r2"):
            found = await store.responses.find(OWNER, response_id)
            assert found is not None and found.status == found.body["status"] == "failed"
            assert found.body["error"] == {"code": "server_error", "message": CUT}
            assert found.lease_owner is None
        assert await store.responses.count_open(OWNER) == 0

    run(tmp_path, leave)
    run(tmp_path, look)


def test_of_many_that_come_at_once_no_more_are_open_than_may_be(tmp_path: Path) -> None:
    async def work(store: ControlGroups, _: Responses) -> None:
        found = await asyncio.gather(*(store.responses.add(row(number, status="queued"), 3) for number in range(20)))
        assert sorted(found) == [False] * 17 + [True] * 3
        assert await store.responses.count_open(OWNER) == 3

    run(tmp_path, work)


def test_what_another_server_works_on_is_left_alone_until_its_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: ControlGroups, service: Responses) -> None:
        others = type(store.responses)(store.control, Instance(is_shared=True), store.redaction)
        await others.add(row(1, status="queued"), 9)
        monkeypatch.setattr("heddle.store.control.responses.LEASE_SECONDS", -1.0)
        await others.add(row(2, status="queued"), 9)
        await service.start()
        first, second = [await store.responses.find(OWNER, name) for name in ("r1", "r2")]
        assert first is not None and first.status == "queued"
        assert second is not None and second.status == "failed"

    run(tmp_path, work, is_shared=True)


def test_ids_of_items() -> None:
    key = new_key()
    assert key_of(output_id("rs", key, 3)) == key and key_of("msg_1") is None and key_of(f"resp_{key}") is None


def reasoning(text: str, number: int) -> list[InputItem]:
    """An item of opaque reasoning, some times."""
    return ITEMS.validate_python([{"type": "reasoning", "encrypted_content": encode_reasoning(text)}] * number)


def test_opaque_reasoning_of_a_request_is_bounded() -> None:
    """A few kilobytes stood for sixteen megabytes, as often as they were sent."""
    MessageBuilder().add(reasoning("a" * MOST_REASONING_BYTES, 1), "input")
    with pytest.raises(
        InvalidRequest, match=r"input\.2\.encrypted_content: opaque reasoning can have at most 16777216 bytes"
    ):
        MessageBuilder().add(reasoning("a" * (MOST_REASONING_BYTES // 2), 3), "input")


def test_reasoning_in_very_many_items_is_joined_once() -> None:
    builder = MessageBuilder()
    item = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a" * 1000}]}
    began = time.process_time()
    for _ in range(2):
        builder.add(ITEMS.validate_python([item] * 5000), "input")
    assert [message.reasoning for message in builder.messages] == ["a" * 10_000_000]
    assert time.process_time() - began < 3


def test_a_response_in_the_background_fails_with_the_key_that_started_it(tmp_path: Path) -> None:
    async def work(store: ControlGroups, service: Responses) -> None:
        _, key = await store.keys.create("ann", (Grant.parse("editor"),), "admin")
        begun = asyncio.Event()

        async def write(*_: Any, **__: Any) -> AsyncIterator[Any]:
            begun.set()
            await asyncio.Event().wait()
            yield []

        answer = Mock(spec=ResponsesAnswer)
        answer.opening.return_value = [{"response": {"status": "in_progress"}}]
        answer.failure.side_effect = lambda error: [{"error": error.reason}]
        answer.body.side_effect = lambda: {"status": "failed", **service._background["r1"].events[-1]}
        service._inference = Mock(stream=write, begin_generation=AsyncMock(), end=AsyncMock())
        queued = row(1, status="queued")
        assert await store.responses.add(queued, 1)
        running = Mock(plan=Mock(answer=answer))
        task = asyncio.create_task(service._run("r1"))
        service._background["r1"] = Background(running, queued, task, Authority(key.id, key.grants))
        await begun.wait()
        await service._keep_up()
        assert not service._background["r1"].is_ending
        await store.keys.revoke(key.id, "admin")
        await service._keep_up()
        await asyncio.wait([task])
        found = await store.responses.find(OWNER, "r1")
        why = "The key of user 'ann', which started this, was revoked"
        assert found is not None and (found.status, found.body["error"]) == ("failed", why)

    run(tmp_path, work)
