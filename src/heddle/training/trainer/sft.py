"""Supervised fine-tuning on chats: the answers of the assistant as the chat template writes them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from heddle.training.config import ChatConfig, SftConfig
from heddle.training.messages import Started, Task
from heddle.training.sequences import Renderer, TrainingError
from heddle.training.trainer.models import lay_out
from heddle.training.trainer.packing import Row
from heddle.training.trainer.policy import Policy
from heddle.training.trainer.ranks import Ranks
from heddle.training.trainer.rl import check_finite
from heddle.wire.jsontypes import Json

CHUNK = 1024
"""Tokens whose logits are in memory at once."""
TOKENS_AT_ONCE = 8192
"""Of sequences whose gradients are computed together; more in one step are added up."""


@dataclass(slots=True)
class Example:
    """One rendering of a chat; lists have one length."""

    ids: list[int]
    mask: list[bool]


class SftJob:
    """A job's chats, in batches that are one optimizer step each."""

    def __init__(self, task: Task, body: Json, renderer: Renderer, ranks: Ranks) -> None:
        self.settings = SftConfig.of_json(task.config)
        self.ranks = ranks
        rendered = [
            list(render_examples(row, renderer, self.settings.assistant_turns, f"row {place}"))
            for place, row in enumerate(body["rows"])
        ]
        answered = [chat for chat in rendered if chat]
        chats = [chat for chat in answered if all(len(example.ids) <= task.max_length for example in chat)]
        size = self.settings.batch_size
        self.batches = [chats[first : first + size] for first in range(0, len(chats), size)]
        self.rates = find_rates(self.settings, len(self.batches))
        counts = {
            "num_trajectories": len(rendered),
            "data/rows_without_answers": len(rendered) - len(answered),
            "data/dropped_too_long": len(answered) - len(chats),
            "num_trainable_tokens": sum(sum(example.mask) for chat in chats for example in chat),
        }
        data = {name: float(count) for name, count in counts.items()}
        data |= {f"ignored/{name}": 1.0 for name in self.settings.ignored}
        self.started = Started(len(self.batches), data)

    def __len__(self) -> int:
        return len(self.batches)

    def begin(self, policy: Policy) -> None:
        """Nothing depends on the weights that the job starts from."""

    def step(self, index: int, policy: Policy) -> dict[str, float]:
        """Train one batch; returns the metrics of the step. TrainingError when the numbers run away."""
        began = time.perf_counter()
        batch = [example for chat in self.batches[index] for example in chat]
        tokens = sum(sum(example.mask) for example in batch)
        loss = torch.zeros((), dtype=torch.float64)
        for row in make_rows(batch[self.ranks.rank :: self.ranks.count] or batch[:1], TOKENS_AT_ONCE):
            logprobs, _ = policy.score(lay_out(row, policy.model.device), CHUNK)
            own = self.ranks.rank < len(batch)
            part = -logprobs.double().sum() / tokens * (1.0 if own else 0.0)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach().cpu()
        self.ranks.add_gradients(policy.adapter.parameters())
        metrics = {
            "loss/train": float(self.ranks.total(loss)),
            "loss/learning_rate": self.rates[index],
            "loss/grad_norm": policy.step(self.rates[index]),
            "num_trajectories": float(len(self.batches[index])),
            "num_tokens": float(sum(len(example.ids) for example in batch)),
            "num_trainable_tokens": float(tokens),
        }
        check_finite(metrics, index)
        return metrics | {"tokens_per_second": metrics["num_tokens"] / (time.perf_counter() - began)}

    def keep(self, folder: Path) -> None:
        """A checkpoint keeps nothing of the job beside the weights."""


def find_rates(settings: ChatConfig, steps: int) -> list[float]:
    """The learning rate of each gradient step; TrainingError for a list of another length."""
    rate = settings.learning_rate
    if not isinstance(rate, tuple):
        return [rate] * steps
    if len(rate) != steps:
        raise TrainingError(f"learning_rate has {len(rate)} values for {steps} gradient steps")
    return list(rate)


def render_examples(row: Json, renderer: Renderer, turns: str, at: str) -> Iterator[Example]:
    """The answers of a chat, each behind all that stands before it.

    An answer that the template writes as a continuation of the running tokens joins them; where earlier turns look
    different now (a template that drops old thoughts), a new sequence begins. The mark that ends a turn is trained.
    """
    messages, tools = row["messages"], row.get("tools")
    answers = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    running: Example | None = None
    for place in answers if turns == "all" else answers[-1:]:
        try:
            prompt = renderer.render(messages[:place], tools, generation_prompt=True)
            whole = renderer.render(messages[: place + 1], tools, generation_prompt=False)
        except ValueError as error:
            raise TrainingError(f"{at}, message {place}: cannot be rendered: {error}") from error
        if running is not None and whole[: len(running.ids)] != running.ids:
            yield running
            running = None
        if running is None:
            running = Example([], [])
        start = max(count_common(prompt, whole), len(running.ids))
        running.mask += [False] * (start - len(running.ids)) + [True] * (len(whole) - start)
        running.ids = whole
    if running is not None and any(running.mask):
        yield running


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two lists have in common at their beginning."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def make_rows(batch: Sequence[Example], tokens: int) -> Iterator[Row]:
    """Examples beside each other in rows of at most so many tokens, or of one example."""
    members: list[Example] = []
    for example in batch:
        if members and sum(len(member.ids) for member in members) + len(example.ids) > tokens:
            yield join_examples(members)
            members = []
        members.append(example)
    if members:
        yield join_examples(members)


def join_examples(members: Sequence[Example]) -> Row:
    """A row of independent sequences."""
    segments = np.concatenate([np.full(len(member.ids), place) for place, member in enumerate(members)])
    ids = [token for member in members for token in member.ids]
    ones = np.ones(len(ids))
    return Row(
        tokens=np.array(ids, dtype=np.int64),
        positions=np.concatenate([np.arange(len(member.ids)) for member in members]),
        segments=segments,
        parents=segments,
        mask=np.array([trained for member in members for trained in member.mask]),
        logprobs=ones * np.nan,
        advantages=ones,
        weights=ones,
        sequences=len(members),
    )
