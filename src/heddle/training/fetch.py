"""Trajectory groups from the calls of a server, over HTTP."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from heddle.errors import HeddleError
from heddle.training.bodies.source import SourceRequest, resolve
from heddle.training.calls.rewards import Reward
from heddle.wire.jsontypes import Json
from heddle.wire.lines import split_lines
from heddle.wire.training import CallSelection

_MOST_BYTES = 1 << 30
_EXPANDED = {"expand_columns": ["inputs.messages", "inputs.tools", "output"]}


class HttpCalls:
    """A CallSource that asks POST /calls/stream_query of a server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
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
) -> list[Json]:
    """The trajectory groups of a project's calls, as `source` of a training job finds them on the server itself.

    `filter`, `query`, `sort_by` and `limit` are those of /calls/stream_query and choose the calls that stand for
    rollouts (root calls unless the filter says otherwise); `reward`, `group_by` and `policy` as in
    `trajectory_groups`. Raises ValueError for what no request may say, HeddleError with the server's reason.
    """
    source = _source(
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
        resolved = await resolve(source, HttpCalls(client), None, max_bytes=_MOST_BYTES, policy=policy)
    return resolved.groups


def _source(reward: Reward, **fields: Any) -> SourceRequest:
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
    error = HeddleError(f"The server answered {status}: {reason or body[:500].decode('utf-8', 'replace')}")
    error.status = status
    return error
