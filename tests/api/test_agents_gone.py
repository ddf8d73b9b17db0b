"""Spans whose calls are deleted, or older than the project keeps, are in no read of agents."""

import time

from tests.conftest import Wire
from tests.support.agents import MILLISECOND, Trace, export, travelled

_DAY = 86_400_000 * MILLISECOND


def shown(wire: Wire) -> int:
    """How many spans are shown."""
    return int(wire.post("/agents/spans/query")["total_count"])


def test_deleted_calls(wire: Wire) -> None:
    """Deleting the root's call takes all its spans out of every read, also when they are exported again."""
    travel = travelled(wire)
    assert shown(wire) == 4
    wire.post("/calls/delete", call_ids=[travel.spans[2]["spanId"]])
    assert shown(wire) == 3
    wire.post("/calls/delete", call_ids=[travel.spans[0]["spanId"]])
    assert shown(wire) == 0
    assert wire.post("/agents/query")["agents"] == []
    assert wire.post("/agents/traces/chat", trace_id=travel.trace_id)["messages"] == []
    assert wire.post("/agents/search", query="train")["results"] == []
    assert wire.post("/agents/conversations/chat", conversation_id="trip")["total_turns"] == 0
    [conversation] = wire.post("/agents/conversations/spans", conversation_ids=["trip"])["conversations"]
    assert conversation["spans"] == []
    export(wire, travel)
    assert shown(wire) == 0


def test_what_is_older_than_the_project_keeps(wire: Wire) -> None:
    """It goes as soon as the retention is set, and does not show when it comes late."""
    old, new = Trace("c", start=time.time_ns() - 30 * _DAY), Trace("c")
    old.chat(old.agent("past"), "then", "gone")
    new.chat(new.agent("present"), "now", "kept")
    export(wire, old, new)
    assert [agent["agent_name"] for agent in wire.post("/agents/query")["agents"]] == ["present", "past"]
    wire.post("/project/ttl_settings/update", retention_days=10)
    export(wire, old)
    assert [agent["agent_name"] for agent in wire.post("/agents/query")["agents"]] == ["present"]
    assert wire.post("/agents/conversations/chat", conversation_id="c")["total_turns"] == 1
    assert wire.post("/agents/traces/chat", trace_id=old.trace_id)["messages"] == []
    assert wire.post("/agents/search", query="gone")["results"] == []
    assert shown(wire) == 2
