"""AdamW (arXiv 1711.05101) over a list of tensors.

It takes the steps of `torch.optim.AdamW`, whose first use imports torch's compiler: a second and 50 MB that a training
process does not need.
"""

import torch
from torch import Tensor

BETAS = (0.9, 0.99)
EPSILON = 1e-8
SMALL_NORM = 1e-6


class AdamW:
    """Moments of each tensor's gradient, and how many steps they have seen."""

    def __init__(self, tensors: list[Tensor], weight_decay: float) -> None:
        self.tensors = tensors
        self.weight_decay = weight_decay
        self.steps = 0
        self.moments = [(torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in tensors]

    @torch.no_grad()
    def step(self, learning_rate: float, largest_norm: float) -> float:
        """Cut the gradients to a norm of all together, move, and forget them; returns the norm they had."""
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in self.tensors]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        cut = (largest_norm / (norm + SMALL_NORM)).clamp(max=1.0)
        self.steps += 1
        first_rest, second_rest = (1 - beta**self.steps for beta in BETAS)
        for tensor, gradient, (first, second) in zip(self.tensors, gradients, self.moments, strict=True):
            gradient.mul_(cut)
            tensor.mul_(1 - learning_rate * self.weight_decay)
            first.lerp_(gradient, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            deviation = second.sqrt().div_(second_rest**0.5).add_(EPSILON)
            tensor.addcdiv_(first, deviation, value=-learning_rate / first_rest)
            tensor.grad = None
        return float(norm)
