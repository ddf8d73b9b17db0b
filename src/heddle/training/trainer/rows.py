"""Jobs on rows of chats: fine-tuning on answers as the chat template writes them, and training on preferences.

Of two answers to the same messages the chosen one becomes likelier than the rejected one. DPO needs no reward model
(Rafailov et al., arXiv:2305.18290): loss = -log sigmoid(beta (log p(c) - log q(c) - (log p(r) - log q(r)))), a mean
over pairs; log p(c) is the sum over the tokens of the chosen answer under the policy, q the policy that the job starts
from, r the rejected answer.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from heddle.training.config import ChatConfig, DpoConfig, SftConfig
from heddle.training.losses.dpo import per_pair
from heddle.training.messages import Started, Task
from heddle.training.sequences import Renderer, TrainingError
from heddle.training.trainer.models import lay_out
from heddle.training.trainer.packing import Item, Row, gather
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


class RowsJob(Generic[Item]):
    """The items of a job, in batches that are one optimizer step each."""

    def __init__(self, settings: ChatConfig, items: Sequence[Item], ranks: Ranks, counts: dict[str, int]) -> None:
        """`counts` are told with the job's start."""
        self.ranks, size = ranks, settings.batch_size
        self.batches = [items[first : first + size] for first in range(0, len(items), size)]
        self.rates = find_rates(settings, len(self.batches))
        data = {name: float(count) for name, count in counts.items()}
        data |= {f"ignored/{name}": 1.0 for name in settings.ignored}
        self.started = Started(len(self.batches), data)

    def __len__(self) -> int:
        return len(self.batches)

    def begin(self, policy: Policy) -> None:
        """Work out what depends on the weights that the job starts from."""

    def keep(self, folder: Path) -> None:
        """A checkpoint keeps nothing of the job beside the weights."""

    def end_step(
        self, index: int, policy: Policy, began: float, loss: float, more: dict[str, float]
    ) -> dict[str, float]:
        """Take the step of the gradients; returns its metrics. TrainingError when the numbers run away."""
        rate = self.rates[index]
        metrics = {"loss/train": loss, "loss/learning_rate": rate, "loss/grad_norm": policy.step(rate), **more}
        metrics["num_trajectories"] = float(len(self.batches[index]))
        check_finite(metrics, index)
        return metrics | {"tokens_per_second": metrics["num_tokens"] / (time.perf_counter() - began)}


class SftJob(RowsJob[list[Example]]):
    """A job's chats."""

    def __init__(self, task: Task, body: Json, renderer: Renderer, ranks: Ranks) -> None:
        settings = SftConfig(**task.config)
        rendered = [
            list(render_examples(row, renderer, settings.assistant_turns, f"row {place}"))
            for place, row in enumerate(body["rows"])
        ]
        answered = [chat for chat in rendered if chat]
        chats = [chat for chat in answered if all(len(example.ids) <= task.max_length for example in chat)]
        counts = {
            "num_trajectories": len(rendered),
            "data/rows_without_answers": len(rendered) - len(answered),
            "data/dropped_too_long": len(answered) - len(chats),
            "num_trainable_tokens": sum(sum(example.mask) for chat in chats for example in chat),
        }
        super().__init__(settings, chats, ranks, counts)

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
        counts = {
            "num_tokens": float(sum(len(example.ids) for example in batch)),
            "num_trainable_tokens": float(tokens),
        }
        return self.end_step(index, policy, began, float(self.ranks.total(loss)), counts)


@dataclass(slots=True)
class Pair:
    """Two answers to the same messages, rendered."""

    chosen: Example
    rejected: Example

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.chosen.ids) + len(self.rejected.ids)

    @property
    def trained(self) -> int:
        """Trained tokens of both."""
        return sum(self.chosen.mask) + sum(self.rejected.mask)


class DpoJob(RowsJob[Pair]):
    """A job's pairs; the policy it starts from is the reference."""

    def __init__(self, task: Task, body: Json, renderer: Renderer, ranks: Ranks) -> None:
        settings = DpoConfig(**task.config)
        rendered = [render_pair(row, renderer, f"row {place}") for place, row in enumerate(body["rows"])]
        pairs = [pair for pair in rendered if max(len(pair.chosen.ids), len(pair.rejected.ids)) <= task.max_length]
        self.beta = settings.beta
        self.references: list[Tensor] = []
        counts = {
            "num_trajectories": len(rendered),
            "data/dropped_too_long": len(rendered) - len(pairs),
            "num_trainable_tokens": sum(pair.trained for pair in pairs),
        }
        super().__init__(settings, pairs, ranks, counts)

    def begin(self, policy: Policy) -> None:
        """Judge all pairs with the weights that the job starts from."""
        with torch.no_grad():
            for batch in self.batches:
                found = [self.judge(group, policy) for group in self.split(batch)]
                self.references.append(torch.cat(found) if found else torch.zeros(0, 2))

    def split(self, batch: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """This rank's pairs of a batch, as many at once as memory takes."""
        # All ranks take part in the same products.
        own = batch[self.ranks.rank :: self.ranks.count] or batch[:1]
        return gather(own, lambda pair: pair.length, TOKENS_AT_ONCE)

    def judge(self, pairs: Sequence[Pair], policy: Policy) -> Tensor:
        """The log-probability of each chosen and each rejected answer, float64 [pairs, 2]."""
        layout = lay_out(
            join_examples([answer for pair in pairs for answer in (pair.chosen, pair.rejected)]), policy.model.device
        )
        logprobs, _ = policy.score(layout, CHUNK)
        sums = torch.zeros(2 * len(pairs), dtype=torch.float64, device=logprobs.device)
        return sums.index_add(0, layout.known.segments, logprobs.double()).view(-1, 2)

    def step(self, index: int, policy: Policy) -> dict[str, float]:
        """Train one batch; returns the metrics of the step. TrainingError when the numbers run away."""
        began = time.perf_counter()
        batch, first = self.batches[index], 0
        own = float(self.ranks.rank < len(batch))
        sums = torch.zeros(3, dtype=torch.float64)
        for pairs in self.split(batch):
            ratios = self.judge(pairs, policy) - self.references[index][first : first + len(pairs)]
            first += len(pairs)
            losses = per_pair(ratios[:, 0], ratios[:, 1], self.beta)
            (own * losses.sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
            margins = self.beta * (ratios[:, 0] - ratios[:, 1]).detach()
            sums += own * torch.stack([losses.detach().sum(), (margins > 0).sum(), margins.sum()]).cpu()
        self.ranks.add_gradients(policy.adapter.parameters())
        loss, preferred, margin = (self.ranks.total(sums) / len(batch)).tolist()
        figures = {
            "preference/accuracy": preferred,
            "preference/margin": margin,
            "num_tokens": float(sum(pair.length for pair in batch)),
            "num_trainable_tokens": float(sum(pair.trained for pair in batch)),
        }
        return self.end_step(index, policy, began, loss, figures)


def find_rates(settings: ChatConfig, steps: int) -> list[float]:
    """The learning rate of each gradient step; TrainingError for a list of another length."""
    rate = settings.learning_rate
    if not isinstance(rate, list):
        return [rate] * steps
    if len(rate) != steps:
        raise TrainingError(f"learning_rate has {len(rate)} values for {steps} gradient steps")
    return rate


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
    return map(join_examples, gather(batch, lambda example: len(example.ids), tokens))


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


def render_pair(row: Json, renderer: Renderer, at: str) -> Pair:
    """The last answer of both chats, each behind all that stands before it."""
    answers: list[Example] = []
    for side in ("chosen", "rejected"):
        chat = {"messages": row[side], "tools": row.get("tools")}
        answers += render_examples(chat, renderer, "last", f"{at}, {side}")
    if len(answers) != 2:
        raise TrainingError(f"{at}: an answer has no tokens")
    return Pair(*answers)
