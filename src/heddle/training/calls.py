"""Calls of the trace service, turned into trajectory groups.

A subject is a call that stands for one rollout: a root call, or any other that is chosen. The chat completions at and
below it are its conversations, a reward comes from feedback or from the call, and subjects with equal inputs are
compared with each other.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic_core import PydanticCustomError

from heddle.training.rewards import CALL_FIELDS, Call, Reward, RewardOf, value_at
from heddle.training.sequences import GroupData, HistoryData, Item, TrajectoryData
from heddle.wire.jsontypes import Json
from heddle.wire.query import split_path

_REQUESTS = ("inputs", "inputs.kwargs", "inputs.body", "inputs.request")
"""Where the calls of the usual clients keep the request: messages, and tools beside them."""
_POLICY = re.compile(r"(?:^|[/-])(?P<name>[^/]*)@(?P<step>\d{1,15})$|policy-step-(?P<plain>\d{1,15})$")
_LONGEST_POLICY = 1000


@dataclass(slots=True)
class Completion:
    """One answered chat completion, as a call shows it."""

    messages: list[Item]
    tools: list[Item] | None
    choices: list[Item]
    step: int | None = None
    """The step of the policy that sampled it, where the call says so."""


@dataclass(slots=True)
class Conversation:
    """One conversation: messages and sampled choices in their order."""

    items: list[Item]
    tools: list[Item] | None
    spoken: list[tuple[Any, ...]] = field(default_factory=list)
    """What the items say, to be compared with the messages of a later prompt."""
    sampled: int = 0


def is_completion(call: Call) -> bool:
    """True when the call's output is that of a chat completion."""
    choices = value_at(call, "output.choices")
    return (
        isinstance(choices, list) and bool(choices) and all(isinstance(value_at(c, "message"), dict) for c in choices)
    )


def read_completion(call: Call, policy: str | None = None) -> Completion | None:
    """The completion that a call shows; None when the messages of its prompt cannot be found.

    `policy` is the name of the trainable model whose steps count as policy versions (None: any).
    """
    asked = next((found for path in _REQUESTS if _is_request(found := value_at(call, path))), None)
    if asked is None:
        return None
    response, messages, tools = call["output"], asked["messages"], asked.get("tools")
    prompt_ids = response.get("prompt_token_ids")
    return Completion(
        messages=[_public_items(message) for message in messages],
        tools=[_public_items(tool) for tool in tools] if isinstance(tools, list) and tools else None,
        choices=[_choice(choice, number, prompt_ids) for number, choice in enumerate(response["choices"])],
        step=_step(call, response, policy),
    )


def join_conversations(completions: Iterable[Completion]) -> list[Conversation]:
    """The conversations of completions in the order of their time; the longest first.

    A completion continues the longest conversation whose messages its prompt begins with; every other one begins a
    conversation of its own, in which earlier answers are context and are not trained a second time.
    """
    made: list[Conversation] = []
    for completion in completions:
        spoken = [_said(message) for message in completion.messages]
        for number, choice in enumerate(completion.choices):
            fitting = [one for one in made if one.tools == completion.tools and spoken[: len(one.spoken)] == one.spoken]
            grown = max(fitting, key=lambda one: len(one.spoken), default=None) if number == 0 else None
            if grown is None:
                grown = Conversation([], completion.tools)
                made.append(grown)
            grown.items = [*grown.items, *completion.messages[len(grown.spoken) :], choice]
            grown.spoken = [*spoken, _said(choice["message"])]
            grown.sampled += 1
    return sorted(made, key=lambda history: (-history.sampled, -len(history.items)))


def _is_request(value: Any) -> bool:
    messages = value_at(value, "messages")
    known = isinstance(messages, list) and bool(messages)
    return known and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in messages)


def _choice(choice: Item, number: int, prompt_ids: Any) -> Item:
    """A choice as trajectories hold it; where the prompt's ids are known they stay with it."""
    message = {"content": None, **_public_items(choice["message"])}
    message.setdefault("role", "assistant")
    made = {**_public_items(choice), "message": message, "finish_reason": choice.get("finish_reason")}
    made.setdefault("index", number)
    if isinstance(prompt_ids, list) and "prompt_token_ids" not in made:
        made["prompt_token_ids"] = prompt_ids
    return made


def _public_items(value: Mapping[str, Any]) -> Item:
    """Without the keys that say of which class a stored object is."""
    return {key: item for key, item in value.items() if not key.startswith("_")}


def _said(message: Item) -> tuple[Any, ...]:
    """What a message says, however its empty fields are written."""
    content = message.get("content")
    if isinstance(content, list):
        content = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in content
        ]
        content = "".join(content) if all(isinstance(part, str) for part in content) else repr(content)
    calls = message.get("tool_calls")
    called = [(call.get("id"), repr(call.get("function"))) for call in calls or () if isinstance(call, dict)]
    return message.get("role"), content or "", tuple(called), message.get("tool_call_id")


def _step(call: Call, response: Item, policy: str | None) -> int | None:
    for text in (value_at(call, "attributes.policy"), response.get("system_fingerprint")):
        found = _POLICY.search(text) if isinstance(text, str) and len(text) <= _LONGEST_POLICY else None
        if found is None:
            continue
        if found["plain"] is not None:
            return int(found["plain"])
        if policy is None or found["name"] == policy or (found["name"] or "").endswith(f"-{policy}"):
            return int(found["step"])
    return None


GroupBy = str | Sequence[str]
GROUP_FIELDS = (*CALL_FIELDS, "op_name", "trace_id", "parent_id", "thread_id")
_ATTRIBUTES = (
    *("id", "trace_id", "parent_id", "thread_id", "op_name", "inputs", "output", "exception"),
    *("summary", "attributes", "started_at", "ended_at"),
)
_COUNTS = (
    *("calls", "groups", "trajectories", "exceptions", "choices", "choices_without_logprobs", "without_completions"),
    *("without_messages", "without_reward", "without_group", "unfinished", "malformed"),
)


@dataclass(slots=True)
class Found:
    """Trajectory groups, and how many subjects there were: used, and left out for a reason."""

    groups: list[GroupData] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))


@dataclass(frozen=True, slots=True)
class _Rollout:
    """What a subject gives its group: a trajectory, or the exception that it failed with."""

    group: str
    trajectory: TrajectoryData | None = None
    exception: dict[str, str] | None = None
    completions: Sequence[Completion] = ()


def trajectory_groups(
    calls: Iterable[Any],
    reward: str | Mapping[str, Any] | Reward | RewardOf,
    *,
    group_by: GroupBy | None = None,
    subjects: Collection[str] | None = None,
    policy: str | None = None,
) -> list[GroupData]:
    """The trajectory groups that calls hold, ready for POST /v1/preview/training-jobs.

    `calls` are dicts as /calls/stream_query gives them (with `include_feedback` where the reward is feedback), or
    call objects of the weave SDK, with everything below the subjects. `reward` is a path into the call
    (`output.reward`), a type of feedback, the fields of a `Reward`, or a function of the call. `group_by` is a path or
    several (default: all inputs; the messages, where the subject is a completion itself), `subjects` the ids of the
    calls that stand for rollouts (default: those whose parent is not among the calls), `policy` the name of the model
    whose steps count as policy versions (default: any). Raises ValueError for a reward or path that calls cannot have.
    """
    return collect(calls, reward, group_by, subjects, policy).groups


def collect(
    calls: Iterable[Any],
    reward: str | Mapping[str, Any] | Reward | RewardOf,
    group_by: GroupBy | None = None,
    subjects: Collection[str] | None = None,
    policy: str | None = None,
) -> Found:
    """`trajectory_groups` with the counts of what was used and left out."""
    paths = _paths(group_by)
    forest = _Forest([to_call(call) for call in calls], subjects)
    told = None if callable(reward) else Reward.of(reward)
    found, groups = Found(), dict[str, GroupData]()
    for subject in forest.subjects:
        rewarded = reward(subject) if callable(reward) else told.find(subject, forest.below(subject)) if told else None
        rollout = _rollout(subject, forest.completions(subject), rewarded, paths, policy)
        if isinstance(rollout, str):
            found.counts[rollout] += 1
            continue
        group = groups.setdefault(rollout.group, {"trajectories": [], "exceptions": []})
        if rollout.trajectory is not None:
            group["trajectories"].append(rollout.trajectory)
            found.counts["trajectories"] += 1
        if rollout.exception is not None:
            group["exceptions"].append(rollout.exception)
            found.counts["exceptions"] += 1
        for choice in (choice for completion in rollout.completions for choice in completion.choices):
            found.counts["choices"] += 1
            if not (value_at(choice, "logprobs.content") or value_at(choice, "logprobs.refusal")):
                found.counts["choices_without_logprobs"] += 1
    found.groups = list(groups.values())
    found.counts |= {"calls": len(forest.subjects), "groups": len(groups)}
    return found


def to_call(call: Any) -> Call:
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

    def __init__(self, calls: list[Call], subjects: Collection[str] | None) -> None:
        known = {call["id"]: call for call in calls}
        chosen = subjects if subjects is not None else [c["id"] for c in calls if c.get("parent_id") not in known]
        self.subjects = [known[call_id] for call_id in dict.fromkeys(chosen) if call_id in known]
        self._chosen = {call["id"] for call in self.subjects}
        self._children: dict[str, list[Call]] = {}
        for call in sorted(known.values(), key=_time):
            self._children.setdefault(call.get("parent_id") or "", []).append(call)

    def below(self, subject: Call) -> list[Call]:
        """The calls below a subject, without those of other subjects."""
        return [call for call, _ in self._walk(subject)][1:]

    def completions(self, subject: Call) -> list[Call]:
        """The chat completions at and below a subject, by time; of calls that show the same one the deepest counts."""
        deepest: dict[str, tuple[Call, int]] = {}
        for call, depth in self._walk(subject):
            if is_completion(call):
                key = _canonical(call["output"].get("id") or call["output"]["choices"])
                if key not in deepest or deepest[key][1] < depth:
                    deepest[key] = (call, depth)
        return sorted((call for call, _ in deepest.values()), key=_time)

    def _walk(self, subject: Call) -> Iterator[tuple[Call, int]]:
        pending, seen = [(subject, 0)], {subject["id"]}
        while pending:
            call, depth = pending.pop()
            yield call, depth
            for child in self._children.get(call["id"], ()):
                if child["id"] not in self._chosen and child["id"] not in seen:
                    seen.add(child["id"])
                    pending.append((child, depth + 1))


def _rollout(
    subject: Call, calls: list[Call], reward: float | None, paths: Sequence[str], policy: str | None
) -> _Rollout | str:
    """What one subject gives, or the name of the count of those that are left out like it."""
    group = _group(subject, paths)
    if group is None:
        return "without_group"
    if subject.get("exception"):
        return _Rollout(group, exception=_exception(str(subject["exception"])))
    if subject.get("ended_at") is None and subject.get("output") is None:
        return "unfinished"
    if not calls:
        return "without_completions"
    completions = [completion for call in calls if (completion := read_completion(call, policy)) is not None]
    if len(completions) < len(calls):
        return "without_messages"
    if reward is None:
        return "without_reward"
    return _Rollout(group, _trajectory(subject, completions, float(reward)), completions=completions)


def _trajectory(subject: Call, completions: list[Completion], reward: float) -> TrajectoryData:
    place = {"call_id": subject["id"], "trace_id": subject.get("trace_id"), "op_name": subject.get("op_name")}
    return {**_conversations(completions), "reward": reward, "metadata": place}


def _conversations(completions: list[Completion]) -> TrajectoryData:
    """What a trajectory holds of at least one completion."""
    longest, *others = join_conversations(completions)
    return TrajectoryData(
        messages_and_choices=longest.items,
        tools=longest.tools,
        additional_histories=[HistoryData(messages_and_choices=other.items, tools=other.tools) for other in others],
        initial_policy_version=completions[0].step,
        final_policy_version=completions[-1].step,
    )


def read_exchanges(trajectory: Json) -> Json:
    """A trajectory with the conversations of its `exchanges` in their place; versions that it states are kept."""
    chosen = choose_exchanges(trajectory.get("exchanges") or {})
    calls = [{"inputs": exchange["request"], "output": exchange["response"]} for exchange in chosen]
    completions = [completion for call in calls if (completion := read_completion(call)) is not None]
    rest = {name: value for name, value in trajectory.items() if name != "exchanges" and value is not None}
    return {**(_conversations(completions) if completions else {}), **rest}


def _exception(text: str) -> dict[str, str]:
    """The exception of a call as a group holds it: the type is the last line's word before the colon."""
    last = text.strip().rpartition("\n")[2]
    kind, colon, message = last.partition(":")
    if not colon or not kind.replace(".", "").replace("_", "").isalnum():
        kind, message = "Exception", last
    return {"type": kind, "message": message.strip(), "traceback": text}


def _group(subject: Call, paths: Sequence[str]) -> str | None:
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
            raise ValueError(
                f"group_by {path[:200]!r} is not a path of a call; it must start with one of {GROUP_FIELDS}"
            )
    return paths


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _time(call: Call) -> tuple[str, str]:
    started = call.get("started_at")
    return started.isoformat() if isinstance(started, datetime) else str(started or ""), str(call["id"])


PROTOCOLS = ("chat_completions", "completions", "responses", "messages")
_ADDRESS = re.compile(r"(?:[a-z-]+:/{2,3})?([^/:@]+/[^/:@]+/[^/:@]+)(?::(?:step)?\d+|:latest|@\d+)?")
"""Of a trainable model, in each form that requests may name it by."""


def choose_exchanges(exchanges: Json) -> list[Json]:
    """The chat completions with the one trainable model, by time; a base model or another server's is none.

    Raises PydanticCustomError where there are several such models, or one is asked by another protocol.
    """
    found: dict[str, dict[str, list[Json]]] = {}
    for protocol in PROTOCOLS:
        for exchange in exchanges.get(protocol) or ():
            request = exchange.get("request") if isinstance(exchange, dict) else None
            model = request.get("model") if isinstance(request, dict) else None
            if isinstance(model, str) and (named := _ADDRESS.fullmatch(model)):
                found.setdefault(named[1], {}).setdefault(protocol, []).append(exchange)
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise PydanticCustomError(
            "value_error",
            "Exchanges must all be with the same trainable model, got {names}",
            {"names": names},
        )
    by_protocol = next(iter(found.values()), {})
    chats = by_protocol.pop("chat_completions", [])
    if by_protocol:
        raise PydanticCustomError(
            "value_error",
            "Only chat completions of a trainable model can be trained on, got {protocols}",
            {"protocols": ", ".join(by_protocol)},
        )
    return sorted(chats, key=lambda exchange: str(exchange.get("start_time") or ""))
