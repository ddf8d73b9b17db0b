"""The losses of Tinker's protocol: those of the registry for each token, without its means and defaults.

A request's loss is the sum over the tokens of its data (https://tinker-docs.thinkingmachines.ai/tinker/losses).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.training.losses import LOSSES as REGISTRY
from heddle.training.losses.base import Terms, to_ratio

if TYPE_CHECKING:
    from torch import Tensor

BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Of ratios; a datum may bring its own for each token."""
POLICY = ("logprobs", "advantages")


@dataclass(frozen=True, slots=True)
class Loss:
    """What a loss takes beside `target_tokens`."""

    name: str
    inputs: tuple[str, ...] = POLICY
    optional: tuple[str, ...] = ()
    config: Mapping[str, float] = field(default_factory=dict)
    """The numbers that a request may set, and their defaults."""
    takes_many: bool = False
    """Several targets for one place."""

    def compute(self, new: "Tensor", given: "Mapping[str, Tensor]", config: Mapping[str, float | str]) -> "Tensor":
        """The loss of each target from the policy's logprobs, the tensors of a datum and the config."""
        if self.name == "cross_entropy":
            return -new * given["weights"]
        loss, old = REGISTRY[self.name], given["logprobs"]  # type: ignore[index]
        numbers = {name: float(config.get(name, default)) for name, default in self.config.items()}
        low, high = self.bounds(given, config)
        terms = Terms(
            new=new,
            old=old,
            ratios=self.ratios(new, given),
            advantages=given["advantages"],
            mask=new == new,
            segments=new.new_zeros(new.shape).long(),
            low=low,  # type: ignore[arg-type]
            high=high,  # type: ignore[arg-type]
            options={name: numbers.get(name, option.default) for name, option in loss.options.items()},
        )
        return loss.per_token(terms)

    def ratios(self, new: "Tensor", given: "Mapping[str, Tensor]") -> "Tensor":
        """Policy over sampler of each token; for gspo of the sequence."""
        old, fixed = given["logprobs"], new.detach()
        if self.name != "gspo":
            return to_ratio(new - old)
        marked = given["sequence_ratio_mask"] != 0
        mean = (fixed - old)[marked].mean() if bool(marked.any()) else fixed.new_zeros(())
        return to_ratio(mean.expand_as(new))

    def bounds(self, given: "Mapping[str, Tensor]", config: Mapping[str, float | str]) -> "list[Tensor]":
        """The least and the largest ratio of each token; a loss that bounds none has the defaults."""
        old = given["logprobs"]
        numbers = {name: float(config.get(name, default)) for name, default in BOUNDS.items()}
        return [given.get(name, old.new_full(old.shape, number)) for name, number in numbers.items()]


def _bounded(name: str, *more: str, **config: float) -> Loss:
    return Loss(name, (*POLICY, *more), tuple(BOUNDS), BOUNDS | config)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("cross_entropy", ("weights",), takes_many=True),
        Loss("importance_sampling"),
        _bounded("ppo"),
        _bounded("cispo"),
        Loss("dro", config={"beta": 0.05}),
        _bounded("gspo", "sequence_ratio_mask"),
        _bounded("stable_reinforce", ratio_limit=1000.0, advantage_limit=3.0, kl_coeff=0.0),
    )
}
