"""Calls with much feedback: an answer has all of it, and little of it is in memory at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.store.control.feedback import FeedbackRows
from tests.support.inprocess import Trace, running_services

PROJECT = "team/judged"
CALLS, EACH = 300, 40


def call(number: int) -> dict[str, Any]:
    """A call that has ended."""
    return {
        "project_id": PROJECT, "id": f"call{number}", "trace_id": f"trace{number}", "op_name": "answer",
        "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z",
        "attributes": {}, "inputs": {}, "output": None, "summary": {},
    }  # fmt: skip


def note(number: int) -> dict[str, Any]:
    """Feedback on one of the calls, each as often as the others."""
    ref = f"weave:///{PROJECT}/call/call{number % CALLS}"
    return {"project_id": PROJECT, "weave_ref": ref, "feedback_type": "note", "payload": {"n": number // CALLS}}


@pytest.mark.thorough
def test_feedback_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    for_refs = FeedbackRows.for_refs

    async def count(self: FeedbackRows, project: str, weave_refs: Sequence[str]) -> dict[str, list[Any]]:
        found = await for_refs(self, project, weave_refs)
        read.append(sum(map(len, found.values())))
        return found

    async def run() -> None:
        async with running_services(tmp_path / "data") as (_, client):
            trace = Trace(client, PROJECT)
            await trace.post(f"/v2/{PROJECT}/calls/complete", batch=[call(number) for number in range(CALLS)])
            for first in range(0, CALLS * EACH, 1_000):
                await trace.post("/feedback/batch/create", batch=[note(first + number) for number in range(1_000)])
            monkeypatch.setattr(FeedbackRows, "for_refs", count)
            for body in ({}, {"sort_by": [{"field": "id", "direction": "asc"}]}, {"limit": 7}):
                read.clear()
                calls = await trace.calls(include_feedback=True, **body)
                assert len(calls) == body.get("limit", CALLS) and len({call["id"] for call in calls}) == len(calls)
                for each in calls:
                    shown = each["summary"]["weave"]["feedback"]
                    assert [row["payload"]["n"] for row in shown] == list(range(EACH))
                assert sum(read) == len(calls) * EACH
                assert max(read) <= 100 * EACH and all(rows <= 1_000 for rows in read[1:])

    asyncio.run(run())
