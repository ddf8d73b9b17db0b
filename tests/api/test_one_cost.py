"""One cost for one trace: `/calls/usage`, the chat of the trace and its page agree, however often it is told."""

import itertools
import json
import uuid
from typing import Any

import httpx
import pytest

from tests.support.otlp import Exporter, request, span
from tests.support.server import HeddleProcess

NAME = "own-model"
MODEL = {"gen_ai.request.model": NAME, "gen_ai.response.model": NAME}
CHAT = {"gen_ai.operation.name": "chat", **MODEL, "gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 30}
CACHED = {**CHAT, "gen_ai.usage.cache_read.input_tokens": 64}
AGENT = {"gen_ai.operation.name": "invoke_agent", **MODEL}
AGENT |= {"gen_ai.usage.input_tokens": 240, "gen_ai.usage.output_tokens": 60}
TOOL = {"gen_ai.operation.name": "execute_tool"}
TREES: dict[str, tuple[list[tuple[int, int, dict[str, Any]]], int, int]] = {
    "inner lacks cached tokens": (
        [(1, 0, AGENT), (2, 1, CACHED), (3, 2, CHAT), (4, 1, CACHED), (5, 4, CHAT)],
        240,
        128,
    ),
    "outer lacks cached tokens": ([(1, 0, CHAT), (2, 1, CACHED)], 120, 0),
    "three libraries": ([(1, 0, CACHED), (2, 1, CHAT), (3, 2, CHAT)], 120, 64),
    "requests of tools of a request": (
        [(1, 0, CACHED), (2, 1, {"gen_ai.operation.name": "execute_tool"}), (3, 2, CHAT)],
        240,
        64,
    ),
    "an agent alone": ([(1, 0, AGENT)], 240, 0),
}
"""Spans (number, parent, attributes), and the prompt tokens and cached tokens that count."""


def costs_of(client: httpx.Client, project: str, trace_id: str) -> list[float | None]:
    """The cost of the trace in every place that tells it."""
    body = {"project_id": project, "call_ids": [f"{1:016x}"], "include_costs": True}
    usage = client.post("/calls/usage", json=body).json()["call_usage"][f"{1:016x}"]
    parts = ("prompt_tokens", "completion_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    rolled = sum(entry[f"{part}_total_cost"] for entry in usage.values() for part in parts)
    chat = client.post("/agents/traces/chat", json={"project_id": project, "trace_id": trace_id}).json()
    lines = client.get(f"/_ui/api/trace/{project}/{trace_id}").text.splitlines()
    dollars = [entry[4] for line in lines for entry in json.loads(line).get("usage", []) if entry[4] is not None]
    return [rolled, chat["total_cost_usd"], sum(dollars)]


@pytest.mark.parametrize("name", TREES)
def test_every_place_tells_the_same_cost(server: HeddleProcess, name: str) -> None:
    tree, prompt, cached = TREES[name]
    price: dict[str, Any] = {"effective_date": "2020-01-01T00:00:00Z"}
    price |= {"prompt_token_cost": 0.25, "completion_token_cost": 0.5, "cache_read_input_token_cost": 0.125}
    completion = 30 * prompt // 120
    expected = (prompt - cached) * 0.25 + cached * 0.125 + completion * 0.5
    # Together, and one by one in every order that exporters send them in.
    orders = [
        [list(range(len(tree)))],
        *([[place] for place in order] for order in itertools.permutations(range(len(tree)))),
    ]
    for exports in orders[:: max(1, len(orders) // 4)]:
        project = f"team-{uuid.uuid4().hex[:8]}/cost"
        exporter = Exporter(server.url, project)
        body = {"project_id": project, "costs": {NAME: price}}
        assert exporter.client.post("/cost/create", json=body).status_code == 200
        for places in exports:
            spans = [span(tree[at][0], parent=tree[at][1], attributes=tree[at][2]) for at in places]
            assert not exporter.export(request(*spans)).HasField("partial_success")
        assert costs_of(exporter.client, project, f"{1:032x}") == [expected] * 3, exports
        exporter.client.close()
