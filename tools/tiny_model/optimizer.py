"""Muon for the matrices of the layers, AdamW for embeddings and norms."""

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(Optimizer):
    """Momentum whose update is made near-orthogonal by a Newton-Schulz iteration (Jordan et al., 2024)."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape are made orthogonal together."""
        del closure
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                averages = [self.momentum(parameter, group["momentum"]) for parameter in parameters]
                updates = orthogonal(torch.stack(averages))
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.to(parameter.dtype), alpha=rate)

    def momentum(self, parameter: nn.Parameter, decay: float) -> Tensor:
        """Nesterov's average of the gradients."""
        gradient = parameter.grad
        assert gradient is not None
        average: Tensor = self.state[parameter].setdefault("average", torch.zeros_like(gradient))
        average.lerp_(gradient, 1 - decay)
        return gradient.lerp(average, decay)


def orthogonal(matrices: Tensor) -> Tensor:
    """Singular values of each matrix (count, rows, columns) pushed near 1."""
    first, second, third = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    wide = (matrices.transpose(1, 2) if tall else matrices).to(torch.bfloat16)
    wide = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = wide @ wide.transpose(1, 2)
        wide = first * wide + (second * square + third * square @ square) @ wide
    update: Tensor = wide.transpose(1, 2) if tall else wide
    return update


def optimizers(model: nn.Module, matrix_rate: float, other_rate: float) -> list[Optimizer]:
    """Both optimisers; matrices of layers go to Muon."""
    named = list(model.named_parameters())
    matrices = [parameter for name, parameter in named if parameter.dim() == 2 and ".layers." in name]
    others = [parameter for name, parameter in named if parameter.dim() != 2 or ".layers." not in name]
    return [
        Muon(matrices, lr=matrix_rate, weight_decay=0.02),
        AdamW(others, lr=other_rate, betas=(0.9, 0.97), eps=1e-10, weight_decay=0.0),
    ]
