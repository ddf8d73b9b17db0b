"""Calls of the trace service, turned into trajectory groups.

A subject is a call that stands for one rollout: a root call, or any other that is chosen. The chat completions at and
below it are its conversations, a reward comes from feedback or from the call, and subjects with equal inputs are
compared with each other.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from heddle.training.calls.conversations import Completion, completion_of, histories, is_completion
from heddle.training.calls.rewards import CALL_FIELDS, Reward, RewardOf, value_at
from heddle.wire.jsontypes import Json
from heddle.wire.query import split_path

GroupBy = str | Sequence[str]
GROUP_FIELDS = (*CALL_FIELDS, "op_name", "trace_id", "parent_id", "thread_id")
_ATTRIBUTES = (
    *("id", "trace_id", "parent_id", "thread_id", "op_name", "inputs", "output", "exception"),
    *("summary", "attributes", "started_at", "ended_at"),
)


@dataclass(slots=True)
class Found:
    """Trajectory groups, and how many subjects there were: used, and left out for a reason."""

    groups: list[Json] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (
                *("calls", "groups", "trajectories", "exceptions", "choices", "choices_without_logprobs"),
                *(
                    "without_completions",
                    "without_messages",
                    "without_reward",
                    "without_group",
                    "unfinished",
                    "malformed",
                ),
            ),
            0,
        )
    )


@dataclass(frozen=True, slots=True)
class _Rollout:
    """What a subject gives: a member of `trajectories` or of `exceptions` of its group."""

    group: str
    kind: str
    value: Json
    completions: Sequence[Completion] = ()


def trajectory_groups(
    calls: Iterable[Any],
    reward: str | Mapping[str, Any] | Reward | RewardOf,
    *,
    group_by: GroupBy | None = None,
    subjects: Collection[str] | None = None,
    policy: str | None = None,
) -> list[Json]:
    """The trajectory groups that calls hold, ready for POST /v1/preview/training-jobs.

    `calls` are dicts as /calls/stream_query gives them (with `include_feedback` where the reward is feedback), or
    call objects of the weave SDK, with everything below the subjects. `reward` is a path into the call
    (`output.reward`), a type of feedback, the fields of a `Reward`, or a function of the call. `group_by` is a path or
    several (default: all inputs; the messages, where the subject is a completion itself), `subjects` the ids of the
    calls that stand for rollouts (default: those whose parent is not among the calls), `policy` the name of the model
    whose steps count as policy versions (default: any). Raises ValueError for a reward or path that calls cannot have.
    """
    return collect(calls, reward, group_by=group_by, subjects=subjects, policy=policy).groups


def collect(
    calls: Iterable[Any],
    reward: str | Mapping[str, Any] | Reward | RewardOf,
    *,
    group_by: GroupBy | None = None,
    subjects: Collection[str] | None = None,
    policy: str | None = None,
) -> Found:
    """`trajectory_groups` with the counts of what was used and left out."""
    paths = _paths(group_by)
    forest = _Forest([as_call(call) for call in calls], subjects)
    told = None if callable(reward) else Reward.of(reward)
    found, groups = Found(), dict[str, Json]()
    for subject in forest.subjects:
        rewarded = reward(subject) if callable(reward) else told.find(subject, forest.below(subject)) if told else None
        rollout = _rollout(subject, forest.completions(subject), rewarded, paths, policy)
        if isinstance(rollout, str):
            found.counts[rollout] += 1
            continue
        group = groups.setdefault(rollout.group, {"trajectories": [], "exceptions": []})
        group[rollout.kind].append(rollout.value)
        found.counts[rollout.kind] += 1
        _count_choices(rollout, found.counts)
    found.groups = list(groups.values())
    found.counts |= {"calls": len(forest.subjects), "groups": len(groups)}
    return found


def as_call(call: Any) -> Json:
    """A call as a dict: one already, or a call object of the weave SDK."""
    if isinstance(call, Mapping):
        return dict(call)
    return {name: _plain(getattr(call, name, None)) for name in _ATTRIBUTES}


def _plain(value: Any) -> Any:
    """JSON values of what the SDK wraps: its dicts, lists, texts and numbers that know their ref, its objects."""
    unwrap, dump = getattr(value, "unwrap", None), getattr(value, "model_dump", None)
    if callable(unwrap):
        return _plain(unwrap())
    if callable(dump):
        return _plain(dump())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


class _Forest:
    """Calls by their parents; every call belongs to the nearest subject at or above it."""

    def __init__(self, calls: list[Json], subjects: Collection[str] | None) -> None:
        known = {call["id"]: call for call in calls}
        chosen = subjects if subjects is not None else [c["id"] for c in calls if c.get("parent_id") not in known]
        self.subjects = [known[call_id] for call_id in dict.fromkeys(chosen) if call_id in known]
        self._chosen = {call["id"] for call in self.subjects}
        self._children: dict[str, list[Json]] = {}
        for call in sorted(known.values(), key=_time):
            self._children.setdefault(call.get("parent_id") or "", []).append(call)

    def below(self, subject: Json) -> list[Json]:
        """The calls below a subject, without those of other subjects."""
        return [call for call, _ in self._walk(subject)][1:]

    def completions(self, subject: Json) -> list[Json]:
        """The chat completions at and below a subject, by time; of calls that show the same one the deepest counts."""
        deepest: dict[str, tuple[Json, int]] = {}
        for call, depth in self._walk(subject):
            if is_completion(call):
                key = _canonical(call["output"].get("id") or call["output"]["choices"])
                if key not in deepest or deepest[key][1] < depth:
                    deepest[key] = (call, depth)
        return sorted((call for call, _ in deepest.values()), key=_time)

    def _walk(self, subject: Json) -> Iterator[tuple[Json, int]]:
        pending, seen = [(subject, 0)], {subject["id"]}
        while pending:
            call, depth = pending.pop()
            yield call, depth
            for child in self._children.get(call["id"], ()):
                if child["id"] not in self._chosen and child["id"] not in seen:
                    seen.add(child["id"])
                    pending.append((child, depth + 1))


def _rollout(
    subject: Json, calls: list[Json], reward: float | None, paths: Sequence[str], policy: str | None
) -> _Rollout | str:
    """What one subject gives, or the name of the count of those that are left out like it."""
    group = _group(subject, paths)
    if group is None:
        return "without_group"
    if subject.get("exception"):
        return _Rollout(group, "exceptions", _exception(str(subject["exception"])))
    if subject.get("ended_at") is None and subject.get("output") is None:
        return "unfinished"
    if not calls:
        return "without_completions"
    completions = [completion for call in calls if (completion := completion_of(call, policy)) is not None]
    if len(completions) < len(calls):
        return "without_messages"
    if reward is None:
        return "without_reward"
    return _Rollout(group, "trajectories", _trajectory(subject, completions, float(reward)), completions)


def _count_choices(rollout: _Rollout, counts: dict[str, int]) -> None:
    for choice in (choice for completion in rollout.completions for choice in completion.choices):
        counts["choices"] += 1
        if not (value_at(choice, "logprobs.content") or value_at(choice, "logprobs.refusal")):
            counts["choices_without_logprobs"] += 1


def _trajectory(subject: Json, completions: list[Completion], reward: float) -> Json:
    longest, *others = [history.as_json() for history in histories(completions)]
    return {
        **longest,
        "additional_histories": others,
        "reward": reward,
        "initial_policy_version": completions[0].step,
        "final_policy_version": completions[-1].step,
        "metadata": {"call_id": subject["id"], "trace_id": subject.get("trace_id"), "op_name": subject.get("op_name")},
    }


def _exception(text: str) -> Json:
    """The exception of a call as a group holds it: the type is the last line's word before the colon."""
    last = text.strip().rpartition("\n")[2]
    kind, colon, message = last.partition(":")
    if not colon or not kind.replace(".", "").replace("_", "").isalnum():
        kind, message = "Exception", last
    return {"type": kind, "message": message.strip(), "traceback": text}


def _group(subject: Json, paths: Sequence[str]) -> str | None:
    """What the subjects of one group have in common; None when a path leads nowhere."""
    if paths:
        values = [value_at(subject, path) for path in paths]
        return None if any(value is None for value in values) else _canonical(values)
    inputs = subject.get("inputs")
    if is_completion(subject) and isinstance(inputs, Mapping):
        inputs = {name: inputs.get(name) for name in ("messages", "tools")}
    return _canonical([subject.get("op_name"), inputs])


def _paths(group_by: GroupBy | None) -> Sequence[str]:
    paths = [group_by] if isinstance(group_by, str) else list(group_by or ())
    for path in paths:
        if split_path(path)[0] not in GROUP_FIELDS:
            raise ValueError(f"group_by {path[:200]!r} is no path of a call; it begins with one of {GROUP_FIELDS}")
    return paths


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _time(call: Json) -> tuple[str, str]:
    started = call.get("started_at")
    return started.isoformat() if isinstance(started, datetime) else str(started or ""), str(call["id"])
