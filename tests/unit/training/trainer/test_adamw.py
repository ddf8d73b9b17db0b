"""The optimizer takes the steps of torch's."""

import pytest

torch = pytest.importorskip("torch")

from heddle.training.trainer.policy import BETAS, AdamW  # noqa: E402


@pytest.mark.parametrize("largest", [0.1, 100.0])
def test_steps_of_torch(largest: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(size, generator=generator).requires_grad_(True) for size in ((3, 4), (7,))]
    theirs = [tensor.detach().clone().requires_grad_(True) for tensor in ours]
    optimizer = AdamW(ours, 0.1)
    oracle = torch.optim.AdamW(theirs, lr=1e-2, betas=BETAS, weight_decay=0.1)
    for _ in range(20):
        for tensor, twin in zip(ours, theirs, strict=True):
            tensor.grad = torch.randn(tensor.shape, generator=generator)
            twin.grad = tensor.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, largest)
        oracle.step()
        assert optimizer.step(1e-2, largest) == pytest.approx(float(norm), rel=1e-6)
    for tensor, twin in zip(ours, theirs, strict=True):
        torch.testing.assert_close(tensor, twin, atol=1e-6, rtol=1e-6)
        assert tensor.grad is None


def test_no_gradient_is_a_gradient_of_zero() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert AdamW([tensor], 0.5).step(0.1, 1.0) == 0.0
    assert torch.equal(tensor.detach(), torch.full((3,), 0.95))


@pytest.mark.parametrize("epsilon", [0.0, 1e-300])
def test_without_an_epsilon_what_has_no_gradient_stays(epsilon: float) -> None:
    """It became NaN, and with it every answer of the policy."""
    tensor = torch.ones(3, requires_grad=True)
    optimizer = AdamW([tensor], 0.0)
    for gradient in (torch.zeros(3), torch.tensor([0.0, 1.0, -1.0])):
        tensor.grad = gradient
        optimizer.step(0.1, 1.0, epsilon=epsilon)
    assert tensor[0] == 1 and tensor[1] < 1 < tensor[2]
