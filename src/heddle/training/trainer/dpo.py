"""Preference training: of two answers to the same messages the chosen one becomes likelier than the rejected one."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heddle.training.config import DpoConfig
from heddle.training.losses.dpo import per_pair
from heddle.training.messages import Started, Task
from heddle.training.sequences import Renderer, TrainingError
from heddle.training.trainer.models import Layout, lay_out
from heddle.training.trainer.policy import Policy
from heddle.training.trainer.ranks import Ranks
from heddle.training.trainer.rl import check_finite
from heddle.training.trainer.sft import CHUNK, TOKENS_AT_ONCE, Example, find_rates, join_examples, render_examples
from heddle.wire.jsontypes import Json


@dataclass(slots=True)
class Pair:
    """Two answers to the same messages, rendered."""

    chosen: Example
    rejected: Example

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.chosen.ids) + len(self.rejected.ids)


class DpoJob:
    """A job's pairs, in batches that are one optimizer step each; the policy it starts from is the reference."""

    def __init__(self, task: Task, body: Json, renderer: Renderer, ranks: Ranks) -> None:
        self.settings = DpoConfig.of_json(task.config)
        self.ranks = ranks
        rendered = [render_pair(row, renderer, f"row {place}") for place, row in enumerate(body["rows"])]
        pairs = [pair for pair in rendered if max(len(pair.chosen.ids), len(pair.rejected.ids)) <= task.max_length]
        size = self.settings.batch_size
        self.batches = [pairs[first : first + size] for first in range(0, len(pairs), size)]
        self.rates = find_rates(self.settings, len(self.batches))
        self.references: list[Tensor] = []
        counts = {
            "num_trajectories": len(rendered),
            "data/dropped_too_long": len(rendered) - len(pairs),
            "num_trainable_tokens": sum(sum(pair.chosen.mask) + sum(pair.rejected.mask) for pair in pairs),
        }
        data = {name: float(count) for name, count in counts.items()}
        data |= {f"ignored/{name}": 1.0 for name in self.settings.ignored}
        self.started = Started(len(self.batches), data)

    def __len__(self) -> int:
        return len(self.batches)

    def begin(self, policy: Policy) -> None:
        """Judge all pairs with the weights that the job starts from."""
        with torch.no_grad():
            for batch in self.batches:
                found = [self.judge(group, policy) for group in self.split(batch)]
                self.references.append(torch.cat(found) if found else torch.zeros(0, 2))

    def split(self, batch: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """This rank's pairs of a batch, as many at once as memory takes."""
        members: list[Pair] = []
        # All ranks take part in the same products.
        for pair in batch[self.ranks.rank :: self.ranks.count] or batch[:1]:
            if members and sum(member.length for member in members) + pair.length > TOKENS_AT_ONCE:
                yield members
                members = []
            members.append(pair)
        if members:
            yield members

    def judge(self, pairs: Sequence[Pair], policy: Policy) -> Tensor:
        """The log-probability of each chosen and each rejected answer, float64 [pairs, 2]."""
        layout: Layout = lay_out(
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
            losses = per_pair(ratios[:, 0], ratios[:, 1], self.settings.beta)
            (own * losses.sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
            margins = self.settings.beta * (ratios[:, 0] - ratios[:, 1]).detach()
            sums += own * torch.stack([losses.detach().sum(), (margins > 0).sum(), margins.sum()]).cpu()
        self.ranks.add_gradients(policy.adapter.parameters())
        loss, preferred, margin = (self.ranks.total(sums) / len(batch)).tolist()
        metrics = {
            "loss/train": loss,
            "loss/learning_rate": self.rates[index],
            "loss/grad_norm": policy.step(self.rates[index]),
            "preference/accuracy": preferred,
            "preference/margin": margin,
            "num_trajectories": float(len(batch)),
            "num_tokens": float(sum(pair.length for pair in batch)),
            "num_trainable_tokens": float(sum(sum(pair.chosen.mask) + sum(pair.rejected.mask) for pair in batch)),
        }
        check_finite(metrics, index)
        return metrics | {"tokens_per_second": metrics["num_tokens"] / (time.perf_counter() - began)}

    def keep(self, folder: Path) -> None:
        """A checkpoint keeps nothing of the job beside the weights."""


def render_pair(row: Json, renderer: Renderer, at: str) -> Pair:
    """The last answer of both chats, each behind all that stands before it."""
    answers: list[Example] = []
    for side in ("chosen", "rejected"):
        chat = {"messages": row[side], "tools": row.get("tools")}
        answers += render_examples(chat, renderer, "last", f"{at}, {side}")
    if len(answers) != 2:
        raise TrainingError(f"{at}: an answer has no tokens")
    return Pair(*answers)
