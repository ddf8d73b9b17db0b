"""The losses of Tinker's protocol, per target and without any mean: a request's loss is the sum over its data.

https://tinker-docs.thinkingmachines.ai/tinker/losses has the formulas; p is the policy that is trained, q the one that
sampled, r = p / q.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Given = Mapping[str, "Tensor"]
Config = Mapping[str, float | str]
BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Of ratios; a datum may bring its own for each token."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a loss takes beside `target_tokens`, and how it is computed."""

    compute: "Callable[[Tensor, Given, Config], Tensor]"
    """From the policy's logprobs, the tensors of a datum and the config."""
    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    config: Mapping[str, float] = field(default_factory=dict)
    """The numbers that a request may set, and their defaults."""
    takes_many: bool = False
    """Several targets for one place."""


def _cross_entropy(new: "Tensor", given: Given, _: Config) -> "Tensor":
    """-w log p."""
    return -new * given["weights"]


def _importance_sampling(new: "Tensor", given: Given, _: Config) -> "Tensor":
    """-r A."""
    return -_ratio(new, given) * given["advantages"]


def _ppo(new: "Tensor", given: Given, config: Config) -> "Tensor":
    """-min(r A, clip(r) A) (Schulman et al., 2017)."""
    return _clipped(_ratio(new, given), given, config)


def _cispo(new: "Tensor", given: Given, config: Config) -> "Tensor":
    """-sg[clip(r)] A log p (MiniMax-M1, 2025)."""
    return -_ratio(new, given).clamp(*_bounds(given, config)).detach() * given["advantages"] * new


def _dro(new: "Tensor", given: Given, config: Config) -> "Tensor":
    """-(A log p - beta/2 (log r)^2) (Richemond et al., 2024)."""
    difference = new - given["logprobs"]
    return -(given["advantages"] * new - 0.5 * float(config.get("beta", DRO["beta"])) * difference**2)


def _gspo(new: "Tensor", given: Given, config: Config) -> "Tensor":
    """PPO with the geometric mean of the marked tokens' ratios in place of each (GSPO-token, Zheng et al., 2025)."""
    marked = given["sequence_ratio_mask"] != 0
    fixed = new.detach()
    mean = (fixed - given["logprobs"])[marked].mean() if bool(marked.any()) else fixed.new_zeros(())
    return _clipped((mean + new - fixed).exp(), given, config)


def _stable_reinforce(new: "Tensor", given: Given, config: Config) -> "Tensor":
    """PPO with log r within +-log `ratio_limit`, without tokens of |A| > `advantage_limit` (R1-Reward, 2025)."""
    limit = math.log(float(config.get("ratio_limit", STABLE["ratio_limit"])))
    largest = float(config.get("advantage_limit", STABLE["advantage_limit"]))
    ratio = (new - given["logprobs"]).clamp(-limit, limit).exp()
    kept = given["advantages"].abs() <= largest if largest else given["advantages"] == given["advantages"]
    return _clipped(ratio, given, config) * kept


def _ratio(new: "Tensor", given: Given) -> "Tensor":
    return (new - given["logprobs"]).exp()


def _bounds(given: Given, config: Config) -> "list[Tensor]":
    whole = given["advantages"]
    return [
        given[name] if name in given else whole.new_full((), float(config.get(name, BOUNDS[name]))) for name in BOUNDS
    ]


def _clipped(ratio: "Tensor", given: Given, config: Config) -> "Tensor":
    low, high = _bounds(given, config)
    return -(ratio * given["advantages"]).minimum(ratio.clamp(low, high) * given["advantages"])


DRO = {"beta": 0.05}
STABLE = {"ratio_limit": 1000.0, "advantage_limit": 3.0}
POLICY = ("logprobs", "advantages")
LOSSES = {
    "cross_entropy": Loss(_cross_entropy, ("weights",), takes_many=True),
    "importance_sampling": Loss(_importance_sampling, POLICY),
    "ppo": Loss(_ppo, POLICY, tuple(BOUNDS), BOUNDS),
    "cispo": Loss(_cispo, POLICY, tuple(BOUNDS), BOUNDS),
    "dro": Loss(_dro, POLICY, (), DRO),
    "gspo": Loss(_gspo, (*POLICY, "sequence_ratio_mask"), tuple(BOUNDS), BOUNDS),
    "stable_reinforce": Loss(_stable_reinforce, POLICY, tuple(BOUNDS), BOUNDS | STABLE),
}
