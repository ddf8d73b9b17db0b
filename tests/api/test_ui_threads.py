"""The internal list of threads with their figures."""

import re
from typing import Any

from tests.conftest import Wire
from tests.support.chats import Chats


def read(wire: Wire, **asked: Any) -> Any:
    """The answer for some query parameters."""
    answer = wire.client.get(f"/_ui/api/threads/{wire.project}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_threads_are_summed_sorted_searched_and_paged(wire: Wire) -> None:
    chats = Chats(wire)
    for thread, turns in (("b/first", 3), ("A second", 1)):
        for _ in range(turns):
            chats.answered(thread, "Hi", "Yo")
    chats.call({}, None, "failing", error="It broke", tokens=0)
    chats.call({}, "no thread")
    chats.send()
    found = read(wire)
    assert [found["found"], found["total"]] == [3, 3]
    assert [row["thread_id"] for row in found["threads"]] == ["failing", "A second", "b/first"]
    first = found["threads"][2]
    assert [first["turns"], first["tokens"], first["seconds"], first["errors"]] == [3, 360, 6.0, 0]
    assert 0 < first["dollars"] < 0.01 and re.fullmatch(r"[0-9a-f-]{36}", first["last_turn"])
    assert [found["threads"][0][key] for key in ("tokens", "dollars", "errors")] == [0, None, 1]
    by_name = read(wire, sort="thread", descending=False)
    assert [row["thread_id"] for row in by_name["threads"]] == ["A second", "b/first", "failing"]
    assert [row["thread_id"] for row in read(wire, sort="turns", limit=1)["threads"]] == ["b/first"]
    assert [row["thread_id"] for row in read(wire, limit=1, offset=1)["threads"]] == ["A second"]
    assert [row["thread_id"] for row in read(wire, search="SEC")["threads"]] == ["A second"]
    assert read(wire, thread="b/first")["found"] == 1
    assert read(wire, thread="b")["threads"] == []
