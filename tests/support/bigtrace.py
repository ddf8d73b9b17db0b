"""Traces of any size, written as whole calls over HTTP."""

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

BATCH = 5000
KINDS = {
    "retrieve_docs": "tool",
    "chat": "llm",
    "plan": "chain",
    "judge.score": "scorer",
    "parse": "",
    "rerank": "tool",
}
NAMESPACE = uuid.UUID("b6e0a1e4-3a52-4f7e-9f0e-0d8f5b7e9c11")
FAILED = 'Traceback (most recent call last):\n  File "agent.py", line 42\nTimeoutError: no answer within 5 s'


def call_id(trace: str, index: int) -> str:
    """The id of one call of such a trace."""
    return uuid.uuid5(NAMESPACE, f"{trace}/{index}").hex


def big_trace(project: str, trace: str, count: int, chain: bool = False) -> list[dict[str, Any]]:
    """Calls with random parents among those just before (`chain`: each below the one before), 3 % of them failed."""
    chance = random.Random(count)
    start = datetime.now(UTC) - timedelta(hours=1)
    spans, made = [(0.0, 95.0)], [_call(project, trace, 0, None, "agent.run", "agent", start, 0.0, 95.0)]
    free = [0.0]
    for index in range(1, count):
        parent = index - 1 if chain else chance.randrange(max(0, index - 40), index) if chance.random() < 0.8 else 0
        low, high = spans[parent]
        begin = min(free[parent], high)
        end = min(high, begin + (high - low) * chance.uniform(0.02, 0.16)) if not chain else high
        free[parent] = end
        spans.append((begin, end))
        free.append(begin)
        name = chance.choice(list(KINDS))
        call = _call(project, trace, index, parent, name, KINDS[name], start, begin, end)
        if name == "chat":
            usage = {"prompt_tokens": chance.randrange(300, 900), "completion_tokens": chance.randrange(50, 800)}
            call["summary"] = {"usage": {"gpt-4o-mini": usage}}
        if chance.random() < 0.03:
            call["exception"] = FAILED
        made.append(call)
    return made


def _call(
    project: str,
    trace: str,
    index: int,
    parent: int | None,
    op: str,
    kind: str,
    start: datetime,
    begin: float,
    end: float,
) -> dict[str, Any]:
    return {
        "project_id": project,
        "id": call_id(trace, index),
        "trace_id": trace,
        "parent_id": None if parent is None else call_id(trace, parent),
        "op_name": op,
        "started_at": (start + timedelta(seconds=begin)).isoformat(),
        "ended_at": (start + timedelta(seconds=end)).isoformat(),
        "attributes": {"weave": {"kind": kind}} if kind else {},
        "inputs": {"query": "which passages support the claim", "k": 5},
        "output": {"result": "passages two and five"},
        "summary": {},
    }


def write(url: str, project: str, calls: list[dict[str, Any]]) -> None:
    """Store the calls."""
    with httpx.Client(base_url=url, auth=("api", "0" * 40), timeout=120) as client:
        for start in range(0, len(calls), BATCH):
            answer = client.post(f"/v2/{project}/calls/complete", json={"batch": calls[start : start + BATCH]})
            assert answer.status_code == 200, answer.text
