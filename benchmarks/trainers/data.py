"""Trajectory groups of chosen size and length for the tiny model, and the same as a batch file for every driver."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.inference.trajectory_renderer import TrajectoryRenderer
from heddle.training.config import RlConfig
from heddle.training.sequences import TokenSequence, normalise, sequences

WORDS = ("red", "green", "blue", "seven", "eleven", "apple", "river", "stone", "cloud", "paper", "window", "count")
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How much data: groups, trajectories in each, tokens of a prompt (at least), tokens of an answer."""

    groups: int = 8
    members: int = 8
    prompt: int = 32
    answer: int = 16

    @property
    def name(self) -> str:
        """A file name."""
        return f"{self.groups}x{self.members}-{self.prompt}-{self.answer}"


@dataclass
class Data:
    """Trajectory groups and the sequences that heddle makes of them."""

    groups: list[Json]
    sequences: list[TokenSequence]

    @property
    def tokens(self) -> int:
        """All tokens of all sequences, each counted with its own prompt."""
        return sum(len(sequence.ids) for sequence in self.sequences)

    @property
    def trained(self) -> int:
        """Tokens that are trained."""
        return sum(sum(sequence.mask) for sequence in self.sequences)


def make(shape: Shape, model: Path, seed: int = 0) -> Data:
    """Groups with random answers and rewards; the log-probabilities are 0 until `set_logprobs`."""
    renderer = TrajectoryRenderer.load(model)
    chooser = random.Random(f"{seed} {shape.name}")
    end = renderer.token_id("<|im_end|>")
    groups = []
    for _ in range(shape.groups):
        messages = [{"role": "user", "content": _prompt(chooser, renderer, shape.prompt)}]
        rewards = [chooser.random() for _ in range(shape.members)]
        answers = [[chooser.randrange(100, 500) for _ in range(shape.answer - 1)] + [end] for _ in rewards]
        groups.append({"trajectories": [_rollout(messages, *pair) for pair in zip(answers, rewards, strict=True)]})
    return Data(groups, _sequences(groups, renderer))


def write_batch(data: Data, path: Path) -> Path:
    """The batch file of the drivers: every sequence with its advantage and weight, normalised over the batch."""
    values = normalise(data.sequences, 0.0)
    rows = []
    for sequence, (advantage, weight) in zip(data.sequences, values, strict=True):
        known = [value if flag else None for value, flag in zip(sequence.logprobs, sequence.mask, strict=True)]
        rows.append({"ids": sequence.ids, "mask": sequence.mask, "logprobs": known})
        rows[-1] |= {"advantage": advantage, "weight": weight}
    path.write_text(json.dumps({"sequences": rows}))
    return path


def set_logprobs(data: Data, logprobs: Sequence[Sequence[float]], model: Path, noise: float = 0.2) -> None:
    """Let the answers have been sampled by a policy a little beside the one with these log-probabilities."""
    chooser = random.Random(1)
    places = {
        (sequence.group, sequence.trajectory): row for sequence, row in zip(data.sequences, logprobs, strict=True)
    }
    for number, group in enumerate(data.groups):
        for index, trajectory in enumerate(group["trajectories"]):
            row = places.get((number, index))
            for place, entry in enumerate(trajectory["messages_and_choices"][-1]["logprobs"]["content"]):
                entry["logprob"] = min(row[place] + chooser.gauss(0, noise), 0.0) if row else -1.0
    data.sequences = _sequences(data.groups, TrajectoryRenderer.load(model))


def _sequences(groups: list[Json], renderer: TrajectoryRenderer) -> list[TokenSequence]:
    return sequences(groups, renderer, RlConfig(), 1 << 20).sequences


def _prompt(chooser: random.Random, renderer: TrajectoryRenderer, tokens: int) -> str:
    """Words whose message takes at least so many tokens with the template around it."""
    text = chooser.choice(WORDS)
    while (short := tokens - _length(renderer, text)) > 0:
        text += " " + " ".join(chooser.choices(WORDS, k=max(1, short // 3)))
    return text


def _length(renderer: TrajectoryRenderer, text: str) -> int:
    return len(renderer.render([{"role": "user", "content": text}], None, generation_prompt=True))


def _rollout(messages: list[Json], answer: Sequence[int], reward: float) -> Json:
    content = [{"token": f"token_id:{token}", "logprob": 0.0, "bytes": None, "top_logprobs": []} for token in answer]
    message = {"role": "assistant", "content": "benchmark"}
    logprobs = {"content": content, "refusal": None}
    choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": logprobs}
    return {"messages_and_choices": [*messages, choice], "reward": reward}
