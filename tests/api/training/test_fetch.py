"""Fetching trajectory groups over HTTP: what the server refuses is told with its reason."""

import asyncio
from typing import Any

import pytest

from heddle.errors import HeddleError
from heddle.training import fetch_trajectory_groups
from tests.conftest import API_KEY, Wire
from tests.support.calls import USER, sampled
from tests.support.server import HeddleProcess


def fetch(server: HeddleProcess, project: str, reward: Any = "output.score", **options: Any) -> list[dict[str, Any]]:
    """The groups."""
    return asyncio.run(fetch_trajectory_groups(server.url, project, reward, api_key=API_KEY, **options))


def test_groups_are_fetched(server: HeddleProcess, wire: Wire) -> None:
    moment = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    head = {"project_id": wire.project, "op_name": "rollout", "attributes": {}, "summary": {}, **moment}
    output = {"choices": [sampled("yes", 5)], "score": 0.5}
    call = {**head, "id": "c1", "trace_id": "t1", "inputs": {"messages": [USER]}, "output": output}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[call])
    ((trajectory,),) = (group["trajectories"] for group in fetch(server, wire.project))
    assert trajectory["reward"] == 0.5 and trajectory["messages_and_choices"] == [USER, sampled("yes", 5)]


def test_refusals_say_why(server: HeddleProcess, project: str) -> None:
    with pytest.raises(HeddleError, match="no call of"):
        fetch(server, project)
    with pytest.raises(HeddleError, match=r"returned 400.*Invalid project_id") as caught:
        fetch(server, "nonsense")
    assert caught.value.status == 400
    with pytest.raises(HeddleError, match=r"returned 422.*not allowed"):
        fetch(server, project, query={"$expr": {"$eq": [{"$getField": "nothing"}, {"$literal": 1}]}})
    for options in ({"filter": {"op_name": []}}, {"limit": 0}, {"group_by": "question"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            fetch(server, project, **options)
    with pytest.raises(ValueError, match="feedback_type"):
        fetch(server, project, {"path": "score"})
