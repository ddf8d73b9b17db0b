"""From trajectory groups to token sequences (training.md, 2).

Sampled ids and logprobs are used as they are and never tokenised again. A later turn continues the running sequence
where its prompt extends it; where a template or the tokenizer writes the earlier turns in another way, the turn begins
a sequence of its own with the same advantage.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict

from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.losses.base import SMALL, Aggregation, weigh_tokens
from heddle.wire.jsontypes import Json

Item = Json
"""A message, a sampled choice or a tool, as clients send it."""


class HistoryData(TypedDict, total=False):
    """One conversation of a body that was checked."""

    messages_and_choices: list[Item]
    tools: list[Item] | None


class TrajectoryData(HistoryData, total=False):
    """One rollout of a body that was checked."""

    additional_histories: list[HistoryData]
    reward: float
    initial_policy_version: int | None
    final_policy_version: int | None
    metrics: dict[str, float]
    metadata: dict[str, Any]
    logs: list[str]


class GroupData(TypedDict, total=False):
    """Rollouts that are compared with each other."""

    trajectories: Required[list[TrajectoryData]]
    exceptions: list[dict[str, str]]
    metadata: dict[str, Any]


class Renderer(Protocol):
    """Messages to token ids, by the chat template that inference uses too."""

    vocab_size: int

    def render(self, messages: Sequence[Item], tools: Sequence[Item] | None, *, generation_prompt: bool) -> list[int]:
        """The ids of a conversation; raises ValueError with the template's reason."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone, without a template."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of a token as logprobs name it (`token_id:17`, or its text); None for one that is not there."""
        ...


@dataclass(slots=True)
class TokenSequence:
    """One history as the model saw it; all lists have one length."""

    ids: list[int]
    mask: list[bool]
    """True where a token is trained: it was sampled."""
    logprobs: list[float]
    """Of the policy that sampled; NaN where unknown or not sampled."""
    group: int
    trajectory: int
    history: int = 0
    advantage: float = 0.0
    weight: float = 0.0
    """Of each token; see `weigh_tokens`."""
    prompt_length: int = 0
    """Tokens that are shared with others of the group and stored once."""
    version: int | None = None
    """The step that sampled it, where the trajectory says so."""


class TrainingError(Exception):
    """Data that cannot be trained on; the text names group, trajectory and item, and is for the client."""


GHOST = 1e-9
"""A distance from the mean below this part of the group's range is rounding."""


def group_advantages(rewards: Sequence[float], scaled: bool) -> list[float]:
    """Reward minus the mean of its group, divided by the population standard deviation when `scaled`.

    Exactly 0.0 for whoever has the mean, and so for everybody in a group of equal rewards.
    """
    extent = max(rewards) - min(rewards)
    if not extent:
        return [0.0] * len(rewards)
    mean, deviation = mean_and_deviation(rewards)
    ghost = GHOST * extent
    divisor = deviation + SMALL if scaled else 1.0
    return [0.0 if abs(reward - mean) <= ghost else (reward - mean) / divisor for reward in rewards]


def normalise(
    sequences: Sequence[TokenSequence], balance: float, aggregation: Aggregation = "trajectory"
) -> list[tuple[float, float]]:
    """Advantage and weight of each sequence's tokens: the mean of |advantage| * weight is 1 where that of weights is.

    Means are over trained tokens; weights of `trajectory` are scaled to a mean of 1, others stay. `balance` > 0 shrinks
    advantages that are not positive by that part, < 0 those that are not negative.
    """
    counts = [sum(sequence.mask) for sequence in sequences]
    mean_weight = _mean([sequence.weight for sequence in sequences], counts) or 1.0
    weights = [sequence.weight / mean_weight for sequence in sequences]
    advantages = [_balanced(sequence.advantage, balance) for sequence in sequences]
    sizes = [abs(advantage) * weight for advantage, weight in zip(advantages, weights, strict=True)]
    mean_size = _mean(sizes, counts) or 1.0
    if aggregation != "trajectory":
        weights = [sequence.weight for sequence in sequences]
    return [(advantage / mean_size, weight) for advantage, weight in zip(advantages, weights, strict=True)]


def policy_version(member: TrajectoryData) -> int | None:
    """The step that sampled a trajectory, where it says so."""
    version = member.get("initial_policy_version")
    return member.get("final_policy_version") if version is None else version


def reward_spread(groups: Sequence[GroupData]) -> float | None:
    """The mean over groups of at least two of their rewards' population standard deviation; None without such."""
    rewards = [[rollout.get("reward", 0.0) for rollout in group["trajectories"]] for group in groups]
    spreads = [mean_and_deviation(values)[1] for values in rewards if len(values) > 1]
    return math.fsum(spreads) / len(spreads) if spreads else None


def learning_rate_multiplier(history: Sequence[tuple[int, float]]) -> float:
    """How the reward spread has changed since step 0, for `scale_learning_rate_by_reward_std_dev`.

    `history` holds (step, spread), oldest first. A straight line is laid through it (least squares); the answer is its
    value at the last step over its value at step 0, never below 0, and 1 where the line says nothing.
    """
    count = len(history)
    steps = [float(step) for step, _ in history]
    mean_step = math.fsum(steps) / count if count else 0.0
    variation = math.fsum((step - mean_step) ** 2 for step in steps)
    if not variation:
        return 1.0
    mean_spread = math.fsum(spread for _, spread in history) / count
    slope = math.fsum((step - mean_step) * (spread - mean_spread) for step, spread in history) / variation
    at_zero = mean_spread - slope * mean_step
    return max(0.0, (at_zero + slope * steps[-1]) / at_zero) if at_zero > 0 else 1.0


def mean_and_deviation(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; fsum, so that the order of the rewards changes nothing."""
    mean = math.fsum(rewards) / len(rewards)
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))


def _mean(values: Sequence[float], counts: Sequence[int]) -> float:
    total = sum(counts)
    return math.fsum(value * count for value, count in zip(values, counts, strict=True)) / total if total else 0.0


def _balanced(advantage: float, balance: float) -> float:
    if balance > 0 and advantage <= 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage >= 0:
        return advantage * (1 + balance)
    return advantage


_NAMED = re.compile(r"token_id:(-?\d{1,18})")


@dataclass(slots=True)
class Turn:
    """One answer that is trained."""

    item: int
    """Its place among the messages and choices."""
    ids: list[int]
    logprobs: list[float]
    """Of the policy that sampled it; NaN where unknown."""
    prompt: list[int] | None = None
    """What the model had read, where the choice says so."""


def is_choice(item: Item) -> bool:
    """True for a sampled choice, False for a plain message."""
    return "finish_reason" in item and "message" in item


def read_sampled_turn(choice: Item, item: int, renderer: Renderer, at: str) -> Turn | None:
    """The sampled tokens of a choice; None when it has no logprobs.

    Ids are read from `token_id:17` in the logprobs, else from `token_ids` of the choice, else from the tokens' texts.
    `prompt_token_ids` of the choice is the prompt. TrainingError, beginning with `at`, for what cannot be true.
    """
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or logprobs.get("refusal")
    if not entries:
        return None
    stated = _id_list(choice, "token_ids", renderer, at)
    if stated is not None and len(stated) != len(entries):
        raise TrainingError(f"{at}: {len(entries)} logprobs and {len(stated)} token_ids")
    ids = [_id(entry["token"], place, stated, renderer, at) for place, entry in enumerate(entries)]
    known = [math.nan if entry.get("logprob") is None else float(entry["logprob"]) for entry in entries]
    return Turn(item, ids, known, _id_list(choice, "prompt_token_ids", renderer, at) or None)


def _id(token: str, place: int, stated: list[int] | None, renderer: Renderer, at: str) -> int:
    known = None if stated is None else stated[place]
    if named := _NAMED.fullmatch(token):
        found = int(named[1])
        if known is not None and found != known:
            raise TrainingError(f"{at}: token {place} has the id {found} in logprobs but {known} in token_ids")
        return _checked(found, renderer, at)
    if known is not None:
        return known
    looked_up = renderer.token_id(token)
    if looked_up is None:
        raise TrainingError(
            f"{at}: token {place}, {token[:100]!r}, is not in the vocabulary of {renderer.vocab_size}; "
            "sample with return_tokens_as_token_ids"
        )
    return looked_up


def _checked(token_id: int, renderer: Renderer, at: str) -> int:
    if not 0 <= token_id < renderer.vocab_size:
        raise TrainingError(f"{at}: token id {token_id} is outside the vocabulary of {renderer.vocab_size}")
    return token_id


def _id_list(choice: Item, name: str, renderer: Renderer, at: str) -> list[int] | None:
    """A list of ids that the server of the choice added; None where there is none."""
    ids: list[int] | None = choice.get(name)
    if ids:
        _checked(min(ids), renderer, at)
        _checked(max(ids), renderer, at)
    return ids


LARGEST_REWARD = 1e100
"""Squares of larger ones would not be finite."""

COUNTS = (
    "num_groups_submitted",
    "num_groups_trainable",
    "num_trajectories",
    "num_datums",
    "num_trainable_tokens",
    "data/exceptions",
    "data/empty_groups",
    "data/equal_reward_groups",
    "data/trajectories_without_trained_tokens",
    "data/dropped_choices_without_logprobs",
    "data/dropped_too_long",
    "data/untrained_tool_call_messages",
    "data/split_turns",
)
"""Everything that is counted; `num_datums` are sequences."""


@dataclass(slots=True)
class Prepared:
    """What a job can train on, and what was found on the way; each of `COUNTS` has a value."""

    sequences: list[TokenSequence]
    counts: dict[str, float]


def sequences(groups: Sequence[GroupData], renderer: Renderer, settings: RlConfig, max_length: int) -> Prepared:
    """The sequences of validated groups with raw advantages and weights; `max_length` in tokens.

    Groups of equal rewards give none, longer sequences are dropped. TrainingError, with group, trajectory and item,
    for data that contradicts itself, the vocabulary or the template.
    """
    limit = settings.packed_sequence_length or max_length
    if limit > max_length:
        raise TrainingError(f"packed_sequence_length must be at most {max_length} for this model, got {limit}")
    preparation = _Preparation(renderer, settings, limit)
    made = [sequence for place, group in enumerate(groups) for sequence in preparation.group(group, place)]
    counts = preparation.counts
    counts["num_groups_submitted"] = float(len(groups))
    counts["num_groups_trainable"] = float(len({sequence.group for sequence in made}))
    counts["num_datums"] = float(len(made))
    counts["num_trainable_tokens"] = float(sum(sum(sequence.mask) for sequence in made))
    return Prepared(made, counts)


class _Preparation:
    """One pass over the groups of a job."""

    def __init__(self, renderer: Renderer, settings: RlConfig, limit: int) -> None:
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self._renderer = renderer
        self._settings = settings
        self._loss = LOSSES[settings.loss]
        self._limit = limit
        self._prompts: dict[str, list[int]] = {}

    def group(self, group: GroupData, place: int) -> list[TokenSequence]:
        members = group["trajectories"]
        self.counts["num_trajectories"] += len(members)
        self.counts["data/exceptions"] += len(group.get("exceptions") or ())
        self.counts["data/empty_groups"] += not members
        if not members:
            return []
        advantages = self._advantages(members, place)
        self.counts["data/equal_reward_groups"] += not any(advantages)
        self._prompts.clear()
        made: list[TokenSequence] = []
        for index, (member, advantage) in enumerate(zip(members, advantages, strict=True)):
            made += self._trajectory(member, advantage, place, index)
        share_prompt(made)
        kept = [sequence for sequence in made if len(sequence.ids) <= self._limit]
        self.counts["data/dropped_too_long"] += len(made) - len(kept)
        return kept

    def _advantages(self, members: Sequence[TrajectoryData], place: int) -> list[float]:
        rewards = [float(member.get("reward", 0.0)) for member in members]
        for index, reward in enumerate(rewards):
            if abs(reward) > LARGEST_REWARD:
                raise TrainingError(f"group {place}, trajectory {index}: the reward {reward} is too large")
        return group_advantages(rewards, self._settings.scale_rewards and self._settings.normalize_advantages)

    def _trajectory(self, member: TrajectoryData, advantage: float, group: int, index: int) -> list[TokenSequence]:
        """The sequences of all its histories; all of it is checked, also where there is nothing to learn from it."""
        made: list[TokenSequence] = []
        for number, history in enumerate([member, *(member.get("additional_histories") or ())]):
            at = f"group {group}, trajectory {index}" + (f", history {number}" if number else "")
            turns = list(self._turns(history, at))
            if advantage == 0.0 and not self._loss.needs_reference:
                continue
            for sequence in self._history(history, turns, at):
                sequence.group, sequence.trajectory, sequence.history = group, index, number
                made.append(sequence)
        tokens = sum(sum(sequence.mask) for sequence in made)
        self.counts["data/trajectories_without_trained_tokens"] += advantage != 0.0 and not tokens
        for sequence in made:
            sequence.advantage = advantage
            sequence.weight = weigh_tokens(self._loss.aggregation, sum(sequence.mask), tokens)
            sequence.version = policy_version(member)
        return made

    def _turns(self, history: HistoryData, at: str) -> Iterator[Turn]:
        """The answers of a history that can be trained."""
        for place, item in enumerate(history.get("messages_and_choices") or ()):
            where = f"{at}, item {place}"
            if is_choice(item):
                turn = read_sampled_turn(item, place, self._renderer, where)
                if turn is not None:
                    yield turn
                    continue
                if not self._settings.allow_training_without_logprobs:
                    self.counts["data/dropped_choices_without_logprobs"] += 1
            if self._settings.allow_training_without_logprobs:
                yield from self._written_turn(as_message(item), place, where)

    def _written_turn(self, message: Item, place: int, at: str) -> Iterator[Turn]:
        """An answer that nobody sampled, or whose logprobs are lost: its text is trained, without the end of turn."""
        content = message.get("content")
        if message["role"] != "assistant" or not (content or message.get("tool_calls")):
            return
        if message.get("tool_calls") or message.get("function_call"):
            self.counts["data/untrained_tool_call_messages"] += 1
            return
        if not isinstance(content, str):
            raise TrainingError(f"{at}: only text content can be trained on without logprobs")
        if ids := self._renderer.encode(content):
            yield Turn(place, ids, [math.nan] * len(ids))

    def _history(self, history: HistoryData, turns: Sequence[Turn], at: str) -> Iterator[TokenSequence]:
        """Extend the running sequence by each turn, or split where its prompt is another one."""
        running: TokenSequence | None = None
        for turn in turns:
            prompt = turn.prompt or self._prompt(history, turn.item, f"{at}, item {turn.item}")
            if running is not None and prompt[: len(running.ids)] != running.ids:
                self.counts["data/split_turns"] += 1
                yield running
                running = None
            if running is None:
                running = TokenSequence([], [], [], 0, 0)
            added = prompt[len(running.ids) :]
            running.ids += [*added, *turn.ids]
            running.mask += [False] * len(added) + [True] * len(turn.ids)
            running.logprobs += [math.nan] * len(added) + turn.logprobs
        if running is not None:
            yield running

    def _prompt(self, history: HistoryData, end: int, at: str) -> list[int]:
        """The ids of all before an item; rollouts of a group often share them, so they are rendered once."""
        messages = [as_message(item) for item in history["messages_and_choices"][:end]]
        tools = history.get("tools")
        key = json.dumps([messages, tools])
        known = self._prompts.get(key)
        if known is None:
            try:
                known = self._prompts[key] = self._renderer.render(messages, tools, generation_prompt=True)
            except ValueError as error:
                raise TrainingError(f"{at}: the messages before it cannot be rendered: {error}") from error
        return known


def as_message(item: Item) -> Item:
    """A message or choice as the chat template gets it: of a choice what clients send back, its text and its calls."""
    if not is_choice(item):
        return item
    message = item["message"]
    calls = message.get("tool_calls")
    plain = {"role": "assistant", "content": message.get("content") or ""}
    return plain | {"tool_calls": calls} if calls else plain


def share_prompt(members: Sequence[TokenSequence]) -> None:
    """Say how many tokens the sequences of a group have in common before anything is trained, less one.

    The last common token stays with each of them, since what follows it is predicted from it.
    """
    if not members:
        return
    first = members[0].ids
    length = min(sequence.mask.index(True) if True in sequence.mask else len(sequence.ids) for sequence in members)
    for sequence in members[1:]:
        length = next((place for place in range(length) if sequence.ids[place] != first[place]), length)
    for sequence in members:
        sequence.prompt_length = max(length - 1, 0)
