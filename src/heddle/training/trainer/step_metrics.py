"""What the gradients of a run of Tinker's protocol say between two optimizer steps, by the names of training jobs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heddle.training.losses.tinker import BOUNDS, LOSSES
from heddle.training.messages import Span
from heddle.training.trainer.loss import correlation, moments

DIVERGING = ("dro", "stable_reinforce")
"""Losses that hold the policy near the one that sampled."""


def find_trained(given: Mapping[str, Tensor]) -> Tensor:
    """Which targets of a datum count, bool [targets]: those with a weight, or with a logprob or an advantage."""
    if "logprobs" not in given:
        return given["weights"].reshape(-1) != 0
    return (given["logprobs"] != 0) | (given["advantages"] != 0)


@dataclass(slots=True)
class StepMetrics:
    """Sums over the trained tokens."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    probabilities: Tensor = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))
    largest_ratio: float = 0.0
    largest_difference: float = 0.0
    lags: list[int] = field(default_factory=list)
    losses: dict[str, dict[str, float | str]] = field(default_factory=dict)
    """The config of each loss."""
    bits: float = 0.0

    def add(
        self,
        loss: str,
        config: Mapping[str, float | str],
        given: Mapping[str, Tensor],
        computed: tuple[Tensor, Tensor, Tensor],
        spans: Sequence[Span],
    ) -> None:
        """Count a datum: what it gave, its (logprobs, entropies, losses), and its tokens that this server sampled."""
        new, entropies, terms = (tensor.reshape(-1) for tensor in computed)
        chosen = LOSSES[loss]
        self.losses[loss] = {**chosen.config, **config}
        self.sums["loss"] += float(terms.sum())
        trained = find_trained(given)
        self._count(trained, entropies)
        if "logprobs" not in given:
            return
        old = given["logprobs"]
        ratios = chosen.ratios(new, given)[trained]
        self.sums["compared"] += len(ratios)
        self.sums["ratios"] += float(ratios.sum())
        self.largest_ratio = max([self.largest_ratio, *ratios.tolist()])
        if set(BOUNDS) <= set(chosen.config):
            low, high = (bound[trained] for bound in chosen.bounds(given, config))
            self.sums["bounded"] += len(ratios)
            self.sums["clipped"] += int(((ratios < low) | (ratios > high)).sum())
        if loss in DIVERGING:
            self.sums["held"] += len(ratios)
            self.sums["divergence"] += float((new - old)[trained].sum())
        self.probabilities += moments(old[trained].exp(), new[trained].exp()).cpu()
        for span in spans:
            self.lags.append(span.lag)
            if span.lag == 0:
                place = slice(span.start, span.start + span.length)
                differences = (new - old)[place].abs()
                self.sums["known"] += span.length
                self.sums["equal"] += int((differences == 0).sum())
                self.largest_difference = max(self.largest_difference, float(differences.max()))

    def _count(self, trained: Tensor, entropies: Tensor) -> None:
        self.sums["tokens"] += int(trained.sum())
        self.sums["entropy"] += float(entropies.double()[trained].sum())

    def show(self) -> dict[str, float]:
        """The metrics, those without which nothing was compared left out."""
        sums = self.sums
        shown = {"loss/sum": sums["loss"], "num_trainable_tokens": float(sums["tokens"])}
        if sums["tokens"]:
            shown["loss/train"] = sums["loss"] / sums["tokens"]
            shown["loss/entropy"] = sums["entropy"] / sums["tokens"]
        if sums["compared"]:
            shown["offpolicy/ratio_mean"] = sums["ratios"] / sums["compared"]
            shown["offpolicy/ratio_max"] = self.largest_ratio
            agreement = correlation(self.probabilities)
            shown |= {} if math.isnan(agreement) else {"loss/probs_corr": agreement}
        if sums["bounded"]:
            shown["offpolicy/clip_fraction"] = sums["clipped"] / sums["bounded"]
        if sums["held"]:
            shown["loss/kl_policy_ref"] = sums["divergence"] / sums["held"]
        if self.lags:
            shown["offpolicy/lag_mean"] = sum(self.lags) / len(self.lags)
            shown["offpolicy/lag_max"] = float(max(self.lags))
        if sums["known"]:
            shown["agreement/tokens"] = float(sums["known"])
            shown["agreement/equal_tokens"] = float(sums["equal"])
            shown["agreement/largest_difference"] = self.largest_difference
            shown["agreement/bits"] = self.bits
            shown["agreement/threads"] = float(torch.get_num_threads())
        if sums["seconds"]:
            shown["tokens_per_second"] = sums["length"] / sums["seconds"]
        return shown

    def settings(self, adam: Mapping[str, Any]) -> dict[str, Any]:
        """Losses and optimizer of the step, as the settings of a job have them."""
        config = {name: value for one in self.losses.values() for name, value in one.items()}
        return {"loss": ", ".join(sorted(self.losses)) or None, "loss_fn_config": config, **adam}
