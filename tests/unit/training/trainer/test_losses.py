"""Every loss of the registry: its formula written out, its gradient, and what is refused."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")

from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.losses import LOSSES  # noqa: E402
from heddle.training.losses.base import (  # noqa: E402
    ESTIMATORS,
    LossName,
    find_divisor,
    keep_on_policy,
    weigh,
    weigh_tokens,
)
from heddle.training.trainer.loss import Tokens, objective  # noqa: E402

JOB_TOKENS, LENGTH = 17.0, 9.0


@dataclass
class Batch:
    """Sequences [count, length] in float64, padded; the last rows are far off policy."""

    new: Any
    old: Any
    reference: Any
    advantages: Any
    mask: Any

    def tokens(self, settings: RlConfig) -> Tokens:
        lengths = self.mask.sum(1)
        aggregation = LOSSES[settings.loss].aggregation
        weights = [weigh_tokens(aggregation, int(length), int(length)) for length in lengths]
        if aggregation == "trajectory":
            mean = sum(w * int(n) for w, n in zip(weights, lengths, strict=True)) / int(lengths.sum())
            weights = [weight / mean for weight in weights]
        return Tokens(
            old=self.old,
            advantages=self.advantages.expand_as(self.new),
            weights=torch.tensor(weights, dtype=self.new.dtype)[:, None].expand_as(self.new),
            mask=self.mask,
            segments=torch.arange(len(self.new))[:, None].expand_as(self.new),
            reference=self.reference,
        )

    def divisor(self, settings: RlConfig) -> float:
        aggregation = LOSSES[settings.loss].aggregation
        return find_divisor(aggregation, float(self.mask.sum()), len(self.new), JOB_TOKENS, LENGTH)

    def loss(self, new: Any, settings: RlConfig) -> Any:
        return objective(new, self.tokens(settings), settings).loss_sum / self.divisor(settings)


def make_batch(seed: int = 0, count: int = 6, length: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Any:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    old = -2 * random(count, length)
    drift = torch.linspace(0.02, 0.9, count, dtype=torch.float64)[:, None]
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    return Batch(
        new=old + drift * (random(count, length) - 0.5),
        old=old,
        reference=-2 * random(count, length),
        advantages=4 * random(count, 1) - 2,
        mask=torch.arange(length) < lengths,
    )


def mean_of_means(losses: Any, mask: Any) -> Any:
    return torch.stack([row[kept].mean() for row, kept in zip(losses, mask, strict=True)]).mean()


def mean_of_sums(losses: Any, mask: Any) -> Any:
    return torch.stack([row[kept].sum() for row, kept in zip(losses, mask, strict=True)]).mean()


def clipped(ratios: Any, advantages: Any, low: float, high: float) -> Any:
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


def sequence_ratios(new: Any, batch: Batch) -> Any:
    rows = zip(new - batch.old, batch.mask, strict=True)
    return torch.stack([row[kept].mean().exp() for row, kept in rows])[:, None]


def vespo(new: Any, batch: Batch) -> Any:
    factors = []
    for row, kept, advantage in zip(new.detach() - batch.old, batch.mask, batch.advantages[:, 0], strict=True):
        ratio = row[kept].sum().exp()
        power, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        factors.append(math.exp(decay) * ratio**power * torch.exp(-decay * ratio))
    return -torch.stack(factors)[:, None] * batch.advantages * new


def soft_gate(new: Any, batch: Batch) -> Any:
    ratios = (new - batch.old).exp()
    rows = []
    for ratio, advantage in zip(ratios, batch.advantages, strict=True):
        temperature = 1.0 if advantage > 0 else 1.05
        rows.append(-4 / temperature / (1 + torch.exp(-temperature * (ratio - 1))) * advantage)
    return torch.stack(rows)


def stable_reinforce(new: Any, batch: Batch) -> Any:
    ratios = (new - batch.old).clamp(math.log(1e-3), math.log(1e3)).exp()
    divergence = (batch.old - new).exp() - (batch.old - new) - 1
    return clipped(ratios, batch.advantages, 0.2, 0.2) * (batch.advantages.abs() <= 1.5) + 0.01 * divergence


def ratio_of(new: Any, batch: Batch) -> Any:
    return (new - batch.old).exp()


CASES: dict[str, tuple[dict[str, Any], Callable[[Any, Batch], Any]]] = {
    "cispo": ({}, lambda new, b: mean_of_means(-ratio_of(new, b).detach().clamp(0, 5) * b.advantages * new, b.mask)),
    "ppo": ({}, lambda new, b: mean_of_means(clipped(ratio_of(new, b), b.advantages, 0.2, 0.2), b.mask)),
    "grpo": ({}, lambda new, b: mean_of_means(clipped(ratio_of(new, b), b.advantages, 0.2, 0.2), b.mask)),
    "dr_grpo": (
        {},
        lambda new, b: clipped(ratio_of(new, b), b.advantages, 0.2, 0.2)[b.mask].sum() / (len(new) * LENGTH),
    ),
    "dapo": ({}, lambda new, b: clipped(ratio_of(new, b), b.advantages, 0.2, 0.28)[b.mask].sum() / JOB_TOKENS),
    "bnpo": ({}, lambda new, b: clipped(ratio_of(new, b), b.advantages, 0.2, 0.2)[b.mask].mean()),
    "gspo": ({}, lambda new, b: clipped(sequence_ratios(new, b), b.advantages, 3e-4, 4e-4).mean()),
    "sapo": ({}, lambda new, b: mean_of_means(soft_gate(new, b), b.mask)),
    "luspo": (
        {},
        lambda new, b: mean_of_sums(clipped(sequence_ratios(new, b), b.advantages, 0.2, 0.2).expand_as(new), b.mask),
    ),
    "vespo": ({}, lambda new, b: vespo(new, b)[b.mask].sum() / JOB_TOKENS),
    "dro": (
        {"loss_fn_config": {"beta": 0.3}},
        lambda new, b: mean_of_sums(0.15 * (new - b.old) ** 2 - b.advantages * new, b.mask),
    ),
    "stable_reinforce": (
        {"loss_fn_config": {"kl_coeff": 0.01, "advantage_limit": 1.5}},
        lambda new, b: mean_of_means(stable_reinforce(new, b), b.mask),
    ),
    "importance_sampling": ({}, lambda new, b: mean_of_sums(-ratio_of(new, b) * b.advantages, b.mask)),
    "reverse_kl": (
        {"loss_fn_config": {"coef": 0.7, "reward_coef": 0.2}},
        lambda new, b: (-ratio_of(new, b) * (0.7 * (b.reference - b.old) + 0.2 * b.advantages))[b.mask].mean(),
    ),
    "cross_entropy": ({}, lambda new, b: -new[b.mask].mean()),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_the_formula(name: LossName, seed: int) -> None:
    given, formula = CASES[name]
    batch = make_batch(seed)
    new, other = (batch.new.clone().requires_grad_(True) for _ in range(2))
    loss, expected = batch.loss(new, RlConfig.of_loss(name, **given)), formula(other, batch)
    loss.backward()
    expected.backward()
    # ART's counts have a small number beside them.
    tolerance = 1e-6 if LOSSES[name].aggregation == "trajectory" else 1e-9
    torch.testing.assert_close(loss, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(new.grad, other.grad, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("cispo", "gspo", "vespo")])
def test_the_gradient_is_the_derivative(name: LossName) -> None:
    """Of losses without a stopped gradient, by finite differences."""
    batch = make_batch(2)
    settings = RlConfig.of_loss(name, **CASES[name][0])
    assert torch.autograd.gradcheck(lambda new: batch.loss(new, settings), batch.new.clone().requires_grad_(True))


@pytest.mark.parametrize("name", ["cispo", "gspo", "vespo"])
def test_a_stopped_gradient_is_that_of_its_logprobs(name: LossName) -> None:
    """The derivative is the loss's weight of each token, held fixed: the loss is linear in them."""
    batch = make_batch(2)
    settings = RlConfig.of_loss(name, epsilon=0.9, epsilon_high=0.9) if name == "gspo" else RlConfig.of_loss(name)
    new = batch.new.clone().requires_grad_(True)
    tokens = batch.tokens(settings)
    result = objective(new, tokens, settings)
    result.loss_sum.backward()
    of_logprobs = torch.ones_like(new) if name == "gspo" else batch.new
    torch.testing.assert_close(new.grad * of_logprobs, result.token_losses, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_gspo_with_equal_advantages_is_the_ratio_of_the_sequence(seed: int) -> None:
    batch = make_batch(seed)
    found, expected = (batch.new.clone().requires_grad_(True) for _ in range(2))
    bounds = {"epsilon": 0.1, "epsilon_high": 0.1}
    batch.loss(found, RlConfig.of_loss("gspo", **bounds)).backward()
    batch.loss(expected, RlConfig.of_loss("grpo", importance_sampling_level="sequence", **bounds)).backward()
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-12, rtol=0)


def test_the_ratio_of_a_sequence_may_leave_tokens_out() -> None:
    batch = make_batch()
    tokens = batch.tokens(RlConfig.of_loss("gspo"))
    tokens.ratio_mask = batch.mask & (torch.arange(7) > 0)
    found = objective(batch.new, tokens, RlConfig.of_loss("gspo")).ratios
    for row, counted, difference in zip(found, tokens.ratio_mask, batch.new - batch.old, strict=True):
        expected = difference[counted].mean().exp() if counted.any() else torch.tensor(1.0, dtype=torch.float64)
        torch.testing.assert_close(row, expected.expand_as(row))


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda p, q: p - q),
        ("k2", lambda p, q: 0.5 * (p - q) ** 2),
        ("k3", lambda p, q: (q - p).exp() - (q - p) - 1),
    ],
)
def test_estimators_of_the_divergence(estimator: str, formula: Callable[[Any, Any], Any]) -> None:
    batch = make_batch(3)
    settings = RlConfig.of_loss("bnpo", kl_loss_coef=0.3, kl_estimator=estimator)
    plain = RlConfig.of_loss("bnpo")
    found, expected = (batch.new.clone().requires_grad_(True) for _ in range(2))
    loss = batch.loss(found, settings)
    wanted = batch.loss(expected, plain) + 0.3 * formula(expected, batch.reference)[batch.mask].mean()
    loss.backward()
    wanted.backward()
    torch.testing.assert_close(loss, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-12, rtol=0)


def test_estimators_agree_on_the_divergence_in_the_mean() -> None:
    """k1 and k3 are unbiased, k2 is near for near distributions."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, generator=generator, dtype=torch.float64)
    near = scores + 0.05 * torch.randn(50, generator=generator, dtype=torch.float64)
    p, q = scores.log_softmax(-1), near.log_softmax(-1)
    exact = (p.exp() * (p - q)).sum()
    means = {name: float((p.exp() * estimate(p, q)).sum()) for name, estimate in ESTIMATORS.items()}
    assert means["k1"] == pytest.approx(float(exact), rel=1e-9)
    assert means["k3"] == pytest.approx(float(exact), rel=1e-9)
    assert means["k2"] == pytest.approx(float(exact), rel=0.1)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_corrections_of_the_rollouts(mode: str) -> None:
    batch = make_batch(4)
    settings = RlConfig.of_loss(
        "bnpo", importance_correction=mode, importance_correction_min=0.9, importance_correction_max=1.05
    )
    tokens = batch.tokens(settings)
    generator = torch.Generator().manual_seed(5)
    shift = 0.3 * torch.rand(batch.old.shape, generator=generator, dtype=torch.float64) - 0.15
    tokens.original = batch.old + shift
    plain = objective(batch.new, tokens, RlConfig.of_loss("bnpo")).token_losses
    factors = []
    for row, kept in zip(-shift, batch.mask, strict=True):
        ratio = row.exp() if mode.startswith("token") else row[kept].sum().exp().expand_as(row)
        inside = (ratio >= 0.9) & (ratio <= 1.05)
        factors.append(ratio.clamp(0.9, 1.05) if mode.endswith("truncate") else torch.where(inside, ratio, 0.0))
    found = objective(batch.new, tokens, settings).token_losses
    torch.testing.assert_close(found, plain * torch.stack(factors), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("advantage", "options"),
    [
        (1.0, {}),
        (-1.0, {}),
        (1.0, {"lambda_pos": 0.0}),
        (-1.0, {"lambda_neg": 0.0}),
        (1.0, {"lambda_pos": 0.0, "k_pos": 1000.0}),
    ],
)
@pytest.mark.parametrize("difference", [0.01, -0.2, 1.0, 8.0, 25.0, -25.0])
def test_vespo_far_off_policy(advantage: float, options: dict[str, float], difference: float) -> None:
    """Logarithms stay within 20, that of a sequence above log 1e-8, and a weight that is no number any more is 0."""
    count = 3
    batch = Batch(
        new=torch.full((1, count), -1.0, dtype=torch.float64),
        old=torch.full((1, count), -1.0 - difference, dtype=torch.float64),
        reference=None,
        advantages=torch.tensor([[advantage]], dtype=torch.float64),
        mask=torch.ones(1, count, dtype=torch.bool),
    )
    batch.new[0, 2] = batch.old[0, 2] = -2.0
    side = "pos" if advantage > 0 else "neg"
    chosen = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0} | options
    power, decay = chosen[f"k_{side}"], max(chosen[f"lambda_{side}"], 1e-4)
    for settings, factor in (({}, 0.0), ({"importance_correction_max": 1.5}, math.log(1.5))):
        correction = {"importance_correction": "token_truncate", **settings} if settings else {}
        capped = sum(min(each, factor) for each in (difference, difference, 0.0)) if settings else 0.0
        ratio = min(max(2 * min(max(difference, -20.0), 20.0) + capped, math.log(1e-8)), 20.0)
        exponent = decay + power * ratio - decay * math.exp(ratio)
        weight = math.exp(exponent) if exponent < 700 else 0.0
        found = objective(
            batch.new,
            batch.tokens(RlConfig.of_loss("vespo")),
            RlConfig.of_loss("vespo", loss_fn_config=options, **correction),
        ).token_losses[0]
        wanted = -weight * advantage * batch.new[0]
        torch.testing.assert_close(found, wanted, atol=0, rtol=1e-9)


def test_an_advantage_at_the_limit_of_stable_reinforce_counts() -> None:
    batch = make_batch()
    batch.advantages = torch.tensor([[3.0], [-3.0], [3.0001], [-3.0001], [0.5], [0.0]], dtype=torch.float64)
    tokens = batch.tokens(RlConfig.of_loss("stable_reinforce"))
    kept, every = (
        objective(batch.new, tokens, RlConfig.of_loss("stable_reinforce", loss_fn_config={"advantage_limit": limit}))
        for limit in (3.0, 0.0)
    )
    inside = torch.tensor([True, True, False, False, True, True])[:, None]
    assert (every.token_losses[2:4][batch.mask[2:4]] != 0).all(), "0 is no limit"
    torch.testing.assert_close(kept.token_losses, every.token_losses * inside, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("aggregation", "divisor"),
    [("token_mean", 6.0), ("job_token_mean", 5.0), ("sequence_mean", 3.0), ("sequence_sum", 3.0), ("constant", 12.0)],
)
def test_what_a_sum_is_divided_by(aggregation: Any, divisor: float) -> None:
    assert find_divisor(aggregation, 6.0, 3, 5.0, 4.0) == divisor
    assert find_divisor(aggregation, 0.0, 0, 0.0, 4.0) == 1.0, "a step without tokens divides nothing by 0"


def test_tokens_of_a_mean_share_the_weight_of_their_sequence() -> None:
    assert [weigh_tokens("sequence_mean", own, 9) for own in (0, 1, 2, 4)] == [1.0, 1.0, 0.5, 0.25]
    assert [weigh_tokens("token_mean", own, 9) for own in (0, 1, 2)] == [1.0, 1.0, 1.0]
    assert weigh_tokens("trajectory", 1, 4) == pytest.approx(0.25)


def test_a_weight_on_a_bound_counts() -> None:
    none, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for low, high in ((1.0, None), (None, 1.0), (1.0, 1.0)):
        assert weigh(none, one, one.bool(), "token_mask", low, high).tolist() == [1.0]
    assert keep_on_policy(none, -one, one, one.bool(), 0.0).tolist() == [True]
    assert keep_on_policy(-one, none, one, one.bool(), 0.0).tolist() == [True], "its advantage is not negative"
    assert keep_on_policy(-one, -one, one, one.bool(), 0.0).tolist() == [False]


def test_sequences_far_off_policy_are_left_out() -> None:
    batch = make_batch(6)
    settings = RlConfig.of_loss("bnpo", off_policy_mask_threshold=0.01)
    found = objective(batch.new, batch.tokens(settings), settings).token_losses
    plain = objective(batch.new, batch.tokens(settings), RlConfig.of_loss("bnpo")).token_losses
    rows = zip(batch.old - batch.new, batch.mask, batch.advantages[:, 0], strict=True)
    kept = torch.tensor([bool(advantage >= 0 or row[mask].mean() <= 0.01) for row, mask, advantage in rows])
    assert 0 < kept.sum() < len(kept)
    torch.testing.assert_close(found, plain * kept[:, None], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("loss", "given", "reason"),
    [
        ("dro", {"epsilon": 0.2}, "epsilon is not supported by dro"),
        ("vespo", {"mask_prob_ratio": True}, "mask_prob_ratio is not supported by vespo"),
        ("gspo", {"importance_sampling_level": "token"}, "importance_sampling_level token is not supported by gspo"),
        (
            "dapo",
            {"importance_sampling_level": "sequence"},
            "importance_sampling_level sequence is not supported by dapo",
        ),
        ("grpo", {"loss_fn_config": {"beta": 0.1}}, "grpo has no option beta in loss_fn_config; its options: none"),
        ("sapo", {"loss_fn_config": {"temperature_pos": 0}}, "loss_fn_config.temperature_pos must be > 0"),
        ("dro", {"loss_fn_config": {"beta": -1.0}}, "loss_fn_config.beta must be ≥ 0"),
        ("ppo", {"importance_correction": "token_mask"}, "token_mask requires importance_correction_min or"),
        ("ppo", {"importance_correction_max": 2.0}, "require importance_correction"),
        (
            "ppo",
            {"importance_correction": "token_mask", "importance_correction_min": 2.0, "importance_correction_max": 1.0},
            "importance_correction_min must be below importance_correction_max",
        ),
        (
            "ppo",
            {
                "importance_correction": "token_truncate",
                "importance_correction_max": 2.0,
                "truncated_importance_sampling": 2.0,
            },
            "give only one of truncated_importance_sampling and importance_correction",
        ),
        (
            "vespo",
            {"importance_correction": "sequence_mask", "importance_correction_max": 2.0},
            "importance_correction sequence_mask is not supported by vespo",
        ),
        ("vespo", {"truncated_importance_sampling": 2.0}, "truncated_importance_sampling is not supported by vespo"),
    ],
)
def test_what_does_not_go_together_is_named(loss: LossName, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as problem:
        RlConfig.of_loss(loss, **given)
    assert reason in str(problem.value)


def test_every_name_is_registered_and_tried() -> None:
    assert set(LOSSES) == set(get_args(LossName)) == set(CASES)
    assert all(loss.name == name for name, loss in LOSSES.items())


def test_the_registry_needs_no_torch() -> None:
    program = "import sys, heddle.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
