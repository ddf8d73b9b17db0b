"""Trajectory groups from calls of the trace service: on the server as `source` of a job, and over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from heddle.errors import HeddleError, InvalidRequest, TooLarge
from heddle.training.calls import Found, collect
from heddle.training.rewards import Call, Reward
from heddle.training.schemas.requests import SourceRequest
from heddle.training.schemas.trajectories import Trajectory
from heddle.training.sequences import GroupData, TrajectoryData
from heddle.wire.batched import batched
from heddle.wire.jsontext import split_lines
from heddle.wire.jsontypes import Json
from heddle.wire.training import CallSelection, CallSource

if TYPE_CHECKING:
    import httpx

_TRACES_AT_ONCE = 500
_LEFT_OUT = {
    "unfinished": "still running",
    "without_completions": "without a chat completion at or below them",
    "without_messages": "with a completion whose messages could not be read",
    "malformed": "with messages or choices that training does not support",
    "without_reward": "without a reward",
    "without_group": "without a value to group by",
}


async def resolve_source(
    source: SourceRequest, calls: CallSource, caller: Any, *, max_bytes: int, policy: str | None = None
) -> Found:
    """Read a source with the caller's rights; `policy` is the name of the model that is trained.

    Raises InvalidRequest when it holds nothing to train on, saying why, and TooLarge beyond `max_bytes` of calls.
    """
    subjects = await _read_calls(calls, caller, [_select_subjects(source)], max_bytes)
    if not subjects:
        raise InvalidRequest(f"source: no call of {source.project_id} matches; nothing to train on", param="source")
    traces = batched(list(dict.fromkeys(call["trace_id"] for call in subjects)), _TRACES_AT_ONCE)
    selections = [CallSelection(source.project_id, {"trace_ids": some}) for some in traces]
    every = await _read_calls(calls, caller, selections, max_bytes)
    found = await asyncio.to_thread(_collect, source, subjects, every, policy)
    if not found.counts["trajectories"]:
        raise InvalidRequest(f"source: nothing to train on: {_explain(found)}", param="source")
    return found


def _collect(source: SourceRequest, subjects: list[Call], every: list[Call], policy: str | None) -> Found:
    reward = Reward.of(source.reward.model_dump()) if source.reward is not None else lambda _: 0.0
    chosen = [call["id"] for call in subjects]
    found = collect(every, reward, group_by=source.group_by, subjects=chosen, policy=policy)
    for group in found.groups:
        sound = [trajectory for trajectory in group["trajectories"] if _is_sound(trajectory)]
        found.counts["malformed"] += len(group["trajectories"]) - len(sound)
        group["trajectories"] = sound
    found.counts["trajectories"] -= found.counts["malformed"]
    return found


def _is_sound(trajectory: TrajectoryData) -> bool:
    """True for what a body of a training job may hold: calls come from any client, and messages may be anything."""
    try:
        Trajectory.model_validate(trajectory)
    except ValidationError:
        return False
    return True


def _select_subjects(source: SourceRequest) -> CallSelection:
    conditions = source.filter.model_dump(exclude_none=True) if source.filter else {}
    names = ("call_ids", "parent_ids")
    if "trace_roots_only" not in conditions and not any(name in conditions for name in names):
        conditions["trace_roots_only"] = True
    sort = [term.model_dump() for term in source.sort_by] if source.sort_by is not None else None
    return CallSelection(source.project_id, conditions, source.query, sort, source.limit, ids_only=True)


async def _read_calls(
    calls: CallSource, caller: Any, selections: Sequence[CallSelection], max_bytes: int
) -> list[Call]:
    read, used = list[Call](), 0
    for selection in selections:
        async for lines in calls.read(caller, selection):
            used += len(lines)
            if used > max_bytes:
                raise TooLarge(
                    f"source: the calls have more than {max_bytes} bytes (limit max_training_body); lower the "
                    "limit of source"
                )
            read += await asyncio.to_thread(_parse_lines, lines)
    return read


def _parse_lines(lines: bytes) -> list[Call]:
    return [orjson.loads(line) for line in lines.splitlines() if line]


def _explain(found: Found) -> str:
    reasons = [f"{count} {words}" for name, words in _LEFT_OUT.items() if (count := found.counts[name])]
    if found.counts["exceptions"]:
        reasons.append(f"{found.counts['exceptions']} that failed")
    return f"of {found.counts['calls']} calls, " + ", ".join(reasons)


_MOST_BYTES = 1 << 30
_EXPANDED = {"expand_columns": ["inputs.messages", "inputs.tools", "output"]}


class HttpCalls:
    """A CallSource that asks POST /calls/stream_query of a server."""

    def __init__(self, client: "httpx.AsyncClient") -> None:
        self._client = client

    async def read(self, _caller: Any, selection: CallSelection) -> AsyncIterator[bytes]:
        """The selected calls, line by line, with the rights of the key; raises HeddleError with the server's reason."""
        body = stream_query(selection)
        async with self._client.stream("POST", "/calls/stream_query", json=body) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, await response.aread())
            async for line in split_lines(response.aiter_bytes()):
                yield line


def stream_query(selection: CallSelection) -> Json:
    """The body of /calls/stream_query for a selection, with feedback, refs in messages followed."""
    wanted = {"columns": ["id", "trace_id"]} if selection.ids_only else {"include_feedback": True, **_EXPANDED}
    return {
        "project_id": selection.project_id,
        "filter": selection.filter,
        "query": selection.query,
        "sort_by": selection.sort_by,
        "limit": selection.limit,
        **wanted,
    }


async def fetch_trajectory_groups(
    base_url: str,
    project_id: str,
    reward: str | Mapping[str, Any] | Reward,
    *,
    api_key: str | None = None,
    filter: Mapping[str, Any] | None = None,
    query: Mapping[str, Any] | None = None,
    sort_by: Sequence[Mapping[str, str]] | None = None,
    limit: int = 1000,
    group_by: str | list[str] | None = None,
    policy: str | None = None,
) -> list[GroupData]:
    """The trajectory groups of a project's calls, as `source` of a training job finds them on the server itself.

    `filter`, `query`, `sort_by` and `limit` are those of /calls/stream_query and choose the calls that stand for
    rollouts (root calls unless the filter says otherwise); `reward`, `group_by` and `policy` as in
    `trajectory_groups`. Raises ValueError for what no request may say, HeddleError with the server's reason.
    """
    import httpx

    source = _make_request(
        project_id=project_id,
        filter=filter,
        query=query,
        sort_by=None if sort_by is None else [dict(term) for term in sort_by],
        limit=limit,
        reward=Reward.of(reward),
        group_by=group_by,
    )
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=base_url.rstrip("/"), headers=headers, timeout=600.0) as client:
        found = await resolve_source(source, HttpCalls(client), None, max_bytes=_MOST_BYTES, policy=policy)
    return found.groups


def _make_request(reward: Reward, **fields: Any) -> SourceRequest:
    told = {"path": reward.path, "feedback_type": reward.feedback_type, "values": dict(reward.values)}
    try:
        return SourceRequest.model_validate({**fields, "reward": {**told, "default": reward.default}})
    except ValidationError as error:
        raise ValueError(str(error)) from None


def _refusal(status: int, body: bytes) -> HeddleError:
    try:
        value = json.loads(body)
    except ValueError:
        value = {}
    reason = value.get("reason") or value.get("detail") if isinstance(value, dict) else None
    error = HeddleError(f"The server returned {status}: {reason or body[:500].decode('utf-8', 'replace')}")
    error.status = status
    return error
