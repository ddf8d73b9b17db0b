"""From trajectory groups to token sequences: what was sampled, in the context it was sampled in (training.md, 2).

Sampled ids and logprobs are used as they are and never tokenised again. A later turn continues the running sequence
where its prompt extends it; where a template or the tokenizer writes the earlier turns in another way, the turn begins
a sequence of its own with the same advantage.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heddle.training.base import Renderer, TokenSequence, TrainingError
from heddle.training.config import RlConfig
from heddle.training.tokens.advantages import group_advantages, trajectory_weight
from heddle.training.tokens.sampled import Turn, is_choice, sampled_turn
from heddle.wire.jsontypes import Json

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


def sequences(groups: Sequence[Json], renderer: Renderer, settings: RlConfig, max_length: int) -> Prepared:
    """The sequences of validated groups with raw advantages and weights; `max_length` in tokens.

    Groups of equal rewards give none, longer sequences are dropped. TrainingError, with group, trajectory and item,
    for data that contradicts itself, the vocabulary or the template.
    """
    limit = settings.packed_sequence_length or max_length
    if limit > max_length:
        raise TrainingError(f"packed_sequence_length is {limit}; this model is trained on at most {max_length} tokens")
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
        self._limit = limit
        self._prompts: dict[str, list[int]] = {}

    def group(self, group: Json, place: int) -> list[TokenSequence]:
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

    def _advantages(self, members: Sequence[Json], place: int) -> list[float]:
        rewards = [float(member.get("reward", 0.0)) for member in members]
        for index, reward in enumerate(rewards):
            if abs(reward) > LARGEST_REWARD:
                raise TrainingError(f"group {place}, trajectory {index}: the reward {reward} is too large")
        return group_advantages(rewards, self._settings.scale_rewards and self._settings.normalize_advantages)

    def _trajectory(self, member: Json, advantage: float, group: int, index: int) -> list[TokenSequence]:
        """The sequences of all its histories; all of it is checked, also where there is nothing to learn from it."""
        made: list[TokenSequence] = []
        for number, history in enumerate([member, *(member.get("additional_histories") or ())]):
            at = f"group {group}, trajectory {index}" + (f", history {number}" if number else "")
            turns = list(self._turns(history, at))
            if advantage == 0.0:
                continue
            for sequence in self._history(history, turns, at):
                sequence.group, sequence.trajectory, sequence.history = group, index, number
                made.append(sequence)
        tokens = sum(sum(sequence.mask) for sequence in made)
        self.counts["data/trajectories_without_trained_tokens"] += advantage != 0.0 and not tokens
        for sequence in made:
            sequence.advantage = advantage
            sequence.weight = trajectory_weight(tokens)
            sequence.version = _version(member)
        return made

    def _turns(self, history: Json, at: str) -> Iterator[Turn]:
        """The answers of a history that can be trained."""
        for place, item in enumerate(history.get("messages_and_choices") or ()):
            where = f"{at}, item {place}"
            if is_choice(item):
                if not isinstance(item["message"], dict):
                    raise TrainingError(f"{where}: the message of the choice is not an object")
                turn = sampled_turn(item, place, self._renderer, where)
                if turn is not None:
                    yield turn
                    continue
                if not self._settings.allow_training_without_logprobs:
                    self.counts["data/dropped_choices_without_logprobs"] += 1
            elif not isinstance(item.get("role"), str):
                raise TrainingError(f"{where}: neither a message (role) nor a choice (finish_reason and message)")
            if self._settings.allow_training_without_logprobs:
                yield from self._written_turn(as_message(item), place, where)

    def _written_turn(self, message: Json, place: int, at: str) -> Iterator[Turn]:
        """An answer that nobody sampled, or whose logprobs are lost: its text is trained, without the end of turn."""
        content = message.get("content")
        if message["role"] != "assistant" or not (content or message.get("tool_calls")):
            return
        if message.get("tool_calls") or message.get("function_call"):
            self.counts["data/untrained_tool_call_messages"] += 1
            return
        if not isinstance(content, str):
            raise TrainingError(f"{at}: only content that is a text can be trained without logprobs")
        if ids := self._renderer.encode(content):
            yield Turn(place, ids, [math.nan] * len(ids))

    def _history(self, history: Json, turns: Sequence[Turn], at: str) -> Iterator[TokenSequence]:
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

    def _prompt(self, history: Json, end: int, at: str) -> list[int]:
        """The ids of all before an item; rollouts of a group often share them, so they are rendered once."""
        messages = [as_message(item) for item in history["messages_and_choices"][:end]]
        tools = history.get("tools")
        key = json.dumps([messages, tools])
        known = self._prompts.get(key)
        if known is None:
            try:
                known = self._prompts[key] = self._renderer.render(messages, tools, generation_prompt=True)
            except ValueError as error:
                raise TrainingError(f"{at}: what stands before it cannot be rendered: {error}") from error
        return known


def as_message(item: Json) -> Json:
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


def _version(member: Json) -> int | None:
    """The oldest step that a trajectory was sampled from, where it says so."""
    initial, final = member.get("initial_policy_version"), member.get("final_policy_version")
    return initial if initial is not None else final
