"""What the tools of `heddle mcp` ask the server for: large values are read only of the calls that are shown."""

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heddle.errors import HeddleError
from heddle.mcp.calls import find_calls
from heddle.mcp.text import follow_path
from heddle.remote import Project

Json = dict[str, Any]
PRICES = (0.5, 2.0, None, 3.0, 1.0, 4.0)


class Asked:
    """Answers lists of calls, and says what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []

    def lines(self, path: str, body: Json) -> Iterator[Json]:
        """The calls that a body selects, with the columns that it names."""
        assert path == "/calls/stream_query"
        self.bodies.append(body)
        wanted = body.get("filter", {}).get("call_ids")
        for number, price in enumerate(PRICES):
            if wanted is None or f"c{number}" in wanted:
                costs = {} if price is None else {"costs": {"m": {"prompt_tokens_total_cost": price}}}
                large = {name: f"{name} of {number}" for name in ("inputs", "output") if name in body["columns"]}
                call = {"id": f"c{number}", "trace_id": "t", "op_name": "o", "started_at": "2026", "summary": {}}
                call |= {"summary": {"weave": {"status": "success", "latency_ms": 1, **costs}}, "exception": None}
                yield {**call, "inputs": None, "output": None, "display_name": None, **large}

    def post(self, path: str, body: Json) -> Json:
        """How many calls there are."""
        assert path == "/calls/query_stats" and body
        return {"count": len(PRICES)}


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_calls_of_a_cost_are_looked_for_without_their_inputs_and_outputs(offset: int) -> None:
    asked = Asked()
    project = Project(cast(Any, asked), "team/shop")
    text = find_calls(project, min_cost=2.0, limit=2, offset=offset)
    first, *shown = asked.bodies
    assert first["columns"] == ["summary"] and first["limit"] == 2000
    found = ["c1", "c3", "c5"][offset : offset + 2]
    assert [body["filter"]["call_ids"] for body in shown] == ([found] if found else [])
    assert [f"inputs of {number}" in text for number in range(6)] == [f"c{number}" in found for number in range(6)]
    assert ("of 3, newest first" in text) is bool(found)


class Held(dict[str, Any]):
    """A call that can be watched."""


def test_a_page_holds_one_call_at_a_time() -> None:
    asked = Asked()
    watched: list[weakref.ref[Held]] = []
    alive: list[int] = []

    def lines(path: str, body: Json) -> Iterator[Json]:
        for call in asked.lines(path, body):
            alive.append(sum(one() is not None for one in watched))
            held = Held(call)
            watched.append(weakref.ref(held))
            yield held
            del held

    remote = SimpleNamespace(lines=lines, post=asked.post)
    text = find_calls(Project(cast(Any, remote), "team/shop"), limit=6)
    assert len(alive) == text.count("- 2026") == 6 and max(alive) <= 1


def test_a_path_into_a_text_that_is_nested_without_end_leads_nowhere() -> None:
    assert follow_path({"output": '{"a": [7]}'}, "output.a.0") == 7
    with pytest.raises(HeddleError, match="output has no '0'"):
        follow_path({"output": "[" * 5000}, "output.0")
