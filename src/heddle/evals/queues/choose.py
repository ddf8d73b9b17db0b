"""Which calls a request puts into a queue: those that it names, and those that its filter chooses."""

from dataclasses import dataclass, field
from typing import Any

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.evals.queues.models import AddCallsBody
from heddle.settings import Settings
from heddle.store.control.annotation_queues import ItemRow
from heddle.wire import ids, times
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

_COLUMNS = ["id", "op_name", "trace_id", "started_at", "ended_at"]
_NAMED_AT_ONCE = 1000
_NEWEST_FIRST = [{"field": "started_at", "direction": "desc"}]


@dataclass(slots=True)
class Chosen:
    """The calls by id, in the order in which they are queued; `matched` and `has_more` where a filter chose."""

    calls: dict[str, Json] = field(default_factory=dict)
    matched: int | None = None
    has_more: bool | None = None

    def rows(self, project: str, queue_id: str, display_fields: list[str], user: str) -> list[ItemRow]:
        """The items to add, all at one instant."""
        at = times.now()
        return [
            ItemRow(
                id=ids.uuid7(),
                project=project,
                queue_id=queue_id,
                call_id=call["id"],
                call_started_at=times.parse(call["started_at"]) or 0,
                call_ended_at=times.parse(call["ended_at"]) if call.get("ended_at") else None,
                call_op_name=call["op_name"],
                call_trace_id=call["trace_id"],
                display_fields=display_fields,
                added_by=user,
                created_at=at,
                updated_at=at,
            )
            for call in self.calls.values()
        ]


async def choose(settings: Settings, records: Records, caller: Caller, body: AddCallsBody) -> Chosen:
    """The live calls that a request means; those that are unknown or deleted are left out.

    Raises InvalidRequest for more than the setting max_page_rows.
    """
    most = settings.max_page_rows
    wanted = list(dict.fromkeys(body.call_ids))
    if len(wanted) > most:
        raise InvalidRequest(f"call_ids has {len(wanted)} entries, at most {most} are allowed")
    chosen = Chosen()
    for part in batched(wanted, _NAMED_AT_ONCE):
        found = await _read(records, caller, body.project_id, filter={"call_ids": list(part)}, limit=len(part))
        known = {call["id"]: call for call in found}
        chosen.calls |= {call_id: known[call_id] for call_id in part if call_id in known}
    if body.filter is not None or body.query is not None:
        # How many calls match tells what is in them.
        caller.require(Scope.READ)
        await _match(records, caller, body, most, chosen)
    return chosen


async def _match(records: Records, caller: Caller, body: AddCallsBody, most: int, chosen: Chosen) -> None:
    limit = most if body.limit is None else body.limit
    if limit > most:
        raise InvalidRequest(f"limit is {limit}, at most {most} calls can be added at once")
    conditions = body.filter.model_dump(exclude_none=True) if body.filter is not None else None
    request = {"filter": conditions, "query": body.query, "sort_by": _NEWEST_FIRST}
    found = await _read(records, caller, body.project_id, **request, limit=limit + 1)
    chosen.matched, chosen.has_more = len(found[:limit]), len(found) > limit
    chosen.calls |= {call["id"]: call for call in found[:limit] if call["id"] not in chosen.calls}


async def _read(records: Records, caller: Caller, project_id: str, **request: Any) -> list[Json]:
    slices = records.read_calls(caller, project_id, **request, columns=_COLUMNS)
    return [call async for calls in slices for call in calls]
