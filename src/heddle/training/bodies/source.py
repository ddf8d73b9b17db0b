"""`source` of a training job: calls of the trace service instead of trajectory groups in the body (ours)."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PlainValidator, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from heddle.errors import InvalidRequest, TooLarge
from heddle.training.bodies.trajectories import Trajectory
from heddle.training.calls.from_calls import GROUP_FIELDS, Found, collect
from heddle.training.calls.rewards import CALL_FIELDS, Reward
from heddle.wire.batched import batched
from heddle.wire.callfilter import CallConditions, OrderTerm
from heddle.wire.jsontypes import Json
from heddle.wire.query import parse_query, split_path
from heddle.wire.training import CallSelection, CallSource

MOST_CALLS = 10_000
_TRACES_AT_ONCE = 500
_LEFT_OUT = {
    "unfinished": "still running",
    "without_completions": "without a chat completion at or below it",
    "without_messages": "with a completion whose messages could not be read",
    "malformed": "with messages or choices that no training job takes",
    "without_reward": "without a reward",
    "without_group": "without a value to group by",
}


class _Strict(BaseModel):
    """A part of a source; an unknown key is refused, as a condition that is not applied would train on other calls."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class SourceFilter(_Strict, CallConditions):
    """The filter of /calls/stream_query; only root calls are taken unless it says otherwise."""


class SourceSort(_Strict, OrderTerm):
    """One term of an order."""


class SourceReward(_Strict):
    """A scorer's feedback, or a value inside the call (see `Reward`)."""

    path: str = ""
    feedback_type: Annotated[str, Field(min_length=1)] | None = None
    values: dict[str, FiniteFloat] | None = None
    default: FiniteFloat | None = None

    @model_validator(mode="after")
    def _is_found_somewhere(self) -> "SourceReward":
        if self.feedback_type is None and split_path(self.path)[0] not in CALL_FIELDS:
            raise PydanticCustomError(
                "value_error", "give a feedback_type, or a path that begins with inputs, output, attributes or summary"
            )
        return self


def _checked_query(value: Any) -> Any:
    if value is not None:
        parse_query(value, ("body", "source", "query"))
    return value


class SourceRequest(_Strict):
    """Which calls of the trace service are rollouts, what they earned, and which are compared with each other."""

    project_id: str
    filter: SourceFilter | None = None
    query: Annotated[dict[str, Any] | None, PlainValidator(_checked_query)] = None
    sort_by: list[SourceSort] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_CALLS)] = 1000
    reward: SourceReward
    group_by: str | list[str] | None = None

    @model_validator(mode="after")
    def _groups_by_paths(self) -> "SourceRequest":
        for path in [self.group_by] if isinstance(self.group_by, str) else self.group_by or []:
            if split_path(path)[0] not in GROUP_FIELDS:
                known = ", ".join(GROUP_FIELDS)
                raise PydanticCustomError(
                    "value_error", "a path of group_by begins with one of {known}", {"known": known}
                )
        return self

    def as_json(self) -> Json:
        """Plain values, as the job keeps them."""
        return self.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The trajectory groups of a source, and the source with the counts of what was found, as the job keeps it."""

    groups: list[Json]
    source: Json


async def resolve(
    source: SourceRequest, calls: CallSource, caller: Any, *, max_bytes: int, policy: str | None = None
) -> Resolved:
    """Read a source with the caller's rights; `policy` is the name of the model that is trained.

    Raises InvalidRequest when it holds nothing to train on, saying why, and TooLarge beyond `max_bytes` of calls.
    """
    subjects = await _read(calls, caller, _selection(source), _Budget(max_bytes))
    if not subjects:
        raise InvalidRequest(f"source: no call of {source.project_id} fits; nothing to train on", param="source")
    budget, every = _Budget(max_bytes), list[Json]()
    for traces in batched(list(dict.fromkeys(call["trace_id"] for call in subjects)), _TRACES_AT_ONCE):
        selection = CallSelection(source.project_id, {"trace_ids": traces})
        every += await _read(calls, caller, selection, budget)
    found = await asyncio.to_thread(_collect, source, subjects, every, policy)
    if not found.counts["trajectories"]:
        raise InvalidRequest(f"source: nothing to train on: {_why(found)}", param="source")
    return Resolved(found.groups, {**source.as_json(), "counts": found.counts})


def _collect(source: SourceRequest, subjects: list[Json], every: list[Json], policy: str | None) -> Found:
    reward = Reward.of(source.reward.model_dump())
    chosen = [call["id"] for call in subjects]
    found = collect(every, reward, group_by=source.group_by, subjects=chosen, policy=policy)
    for group in found.groups:
        sound = [trajectory for trajectory in group["trajectories"] if _is_sound(trajectory)]
        found.counts["malformed"] += len(group["trajectories"]) - len(sound)
        group["trajectories"] = sound
    found.counts["trajectories"] -= found.counts["malformed"]
    return found


def _is_sound(trajectory: Json) -> bool:
    """True for what a body of a training job may hold: calls come from any client, and messages may be anything."""
    try:
        Trajectory.model_validate(trajectory)
    except ValidationError:
        return False
    return True


def _selection(source: SourceRequest) -> CallSelection:
    conditions = source.filter.model_dump(exclude_none=True) if source.filter else {}
    names = ("call_ids", "parent_ids")
    if "trace_roots_only" not in conditions and not any(name in conditions for name in names):
        conditions["trace_roots_only"] = True
    sort = [term.model_dump() for term in source.sort_by] if source.sort_by is not None else None
    return CallSelection(source.project_id, conditions, source.query, sort, source.limit, ids_only=True)


class _Budget:
    """Counts the bytes of calls; raises TooLarge beyond the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    def take(self, lines: bytes) -> None:
        """Count some calls."""
        self._used += len(lines)
        if self._used > self._limit:
            raise TooLarge(
                f"source: the calls hold more than {self._limit} bytes (limit max_training_body); lower its limit"
            )


async def _read(calls: CallSource, caller: Any, selection: CallSelection, budget: _Budget) -> list[Json]:
    read: list[Json] = []
    async for lines in calls.read(caller, selection):
        budget.take(lines)
        read += await asyncio.to_thread(_parsed, lines)
    return read


def _parsed(lines: bytes) -> list[Json]:
    return [orjson.loads(line) for line in lines.splitlines() if line]


def _why(found: Found) -> str:
    reasons = [f"{count} {words}" for name, words in _LEFT_OUT.items() if (count := found.counts[name])]
    if found.counts["exceptions"]:
        reasons.append(f"{found.counts['exceptions']} that failed")
    return f"of {found.counts['calls']} calls there are " + ", ".join(reasons)
