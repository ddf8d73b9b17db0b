"""From weak calls to rows: which calls are weak, what each row holds, and which rows training never sees."""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.auth import Caller
from heddle.evals.replay.chats import read_chat
from heddle.evals.run import META
from heddle.evals.scorers import number_of
from heddle.improve.schemas import MOST_CHATS, WeakCalls
from heddle.training.rewards import value_at
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.means import mean
from heddle.wire.records import Call, Records

ROLLOUT_OP = "heddle.improve.rollout"
FEWEST = 4
_RUNNABLE = "wandb.runnable."
_COLUMNS = ["id", "trace_id", "op_name", "started_at", "inputs", "output", "attributes", "summary", "exception"]


@dataclass(slots=True)
class WeakRows:
    """The rows of different chats, each with the calls that it came from, and why weak calls gave none."""

    rows: list[Json] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    sources: list[list[Call]] = field(default_factory=list)
    calls: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


async def collect_rows(
    records: Records, caller: Caller, project_id: str, weak: WeakCalls, columns: dict[str, str]
) -> WeakRows:
    """The rows of the newest weak calls; the same chat again adds a source, not a row."""
    found, places = WeakRows(), dict[str, int]()
    async for call in _read_weak(records, caller, project_id, weak):
        found.calls += 1
        row = _make_row(call, columns)
        if isinstance(row, str):
            found.skipped[row] += 1
        else:
            key = json.dumps(row, sort_keys=True)
            if key not in places:
                places[key] = len(found.rows)
                source = refs.to_external(refs.call_ref(refs.internal_project(project_id), call.id))
                found.rows.append({**row, "source": source})
                found.keys.append(key)
                found.sources.append([])
            found.sources[places[key]].append(call)
        if found.calls == weak.limit:
            break
    return found


def split_rows(keys: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """The places of the rows to train on and of those held out, by a hash of the seed and each key."""
    ordered = sorted(range(len(keys)), key=lambda place: hashlib.sha256(f"{seed}/{keys[place]}".encode()).digest())
    held = min(max(1, round(len(keys) * share)), len(keys) - 1)
    return sorted(ordered[held:]), sorted(ordered[:held])


async def _read_weak(records: Records, caller: Caller, project_id: str, weak: WeakCalls) -> AsyncIterator[Call]:
    conditions = [weak.query["$expr"]] if weak.query else []
    if weak.error_group is not None:
        conditions.append({"$eq": [{"$getField": "error_group"}, {"$literal": weak.error_group}]})
    slices = records.read_calls(
        caller,
        project_id,
        filter=weak.filter.model_dump(exclude_none=True) if weak.filter else None,
        query={"$expr": {"$and": conditions}} if conditions else None,
        sort_by=[{"field": "started_at", "direction": "desc"}],
        limit=MOST_CHATS,
        columns=_COLUMNS,
        include_feedback=True,
    )
    monitor = refs.object_ref(refs.internal_project(project_id), "object", weak.monitor, "") if weak.monitor else None
    async for calls in slices:
        for call in calls:
            # What evaluations and improvements asked themselves would bring held-out rows into the training.
            if META in call.attributes or call.operation == ROLLOUT_OP:
                continue
            if weak.below is None:
                yield call
                continue
            score = _score_of(call, monitor, weak.scorer)
            if score is not None and score < weak.below:
                yield call


def _feedback_of(call: Call) -> list[Json]:
    """The feedback on a call, oldest first."""
    listed = (call.summary.get("weave") or {}).get("feedback") or ()
    return sorted(listed, key=lambda item: str(item["created_at"]))


def _score_of(call: Call, monitor: str | None, scorer: str | None) -> float | None:
    """The mean of the newest score of each scorer, of those that a monitor caused where one is named."""
    newest: dict[str, float] = {}
    for item in _feedback_of(call):
        kind = item["feedback_type"]
        is_meant = kind == f"{_RUNNABLE}{scorer}" if scorer else kind.startswith(_RUNNABLE)
        if is_meant and (monitor is None or str(item.get("trigger_ref") or "").startswith(monitor)):
            number = number_of((item["payload"] or {}).get("output"))
            if number is not None:
                newest[kind] = number
    return mean(newest.values()) if newest else None


def _make_row(call: Call, columns: dict[str, str]) -> Json | str:
    """The row of a call, or why it has none."""
    chat = read_chat(call.inputs, call.attributes)
    if isinstance(chat, str):
        return chat
    if not chat.messages or chat.prompt is not None:
        return "its messages come from a stored prompt"
    row: Json = {"messages": chat.messages}
    if chat.fields.get("tools"):
        row["tools"] = chat.fields["tools"]
    said = {item["feedback_type"]: item["payload"] for item in _feedback_of(call)}
    known: Json = {"inputs": call.inputs, "output": call.output, "attributes": call.attributes}
    known |= {"summary": call.own_summary, "feedback": said}
    for name, path in columns.items():
        value: Any = value_at(known, path)
        if value is None:
            return f"it has no {path}"
        row[name] = value
    return row
