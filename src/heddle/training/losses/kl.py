"""Estimators of KL(p || q) from tokens that p sampled (Schulman, "Approximating KL divergence", 2020).

With d = log q - log p: k1 = -d (unbiased, its gradient is zero in the mean); k2 = d^2 / 2 (biased, its gradient is that
of the divergence on policy); k3 = exp(d) - d - 1 (unbiased, never negative; GRPO, arXiv:2402.03300).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from heddle.training.losses.base import to_ratio

if TYPE_CHECKING:
    from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]


def k1(new: "Tensor", reference: "Tensor") -> "Tensor":
    """log p - log q."""
    return new - reference


def k2(new: "Tensor", reference: "Tensor") -> "Tensor":
    """Half the square of log p - log q."""
    return (new - reference).square() / 2


def k3(new: "Tensor", reference: "Tensor") -> "Tensor":
    """q / p - log(q / p) - 1."""
    return to_ratio(reference - new) - (reference - new) - 1


ESTIMATORS: "dict[KlEstimator, Callable[[Tensor, Tensor], Tensor]]" = {"k1": k1, "k2": k2, "k3": k3}
