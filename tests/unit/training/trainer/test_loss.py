"""The objective against recorded vectors: values, sums, metrics and gradients (training.md, section 5)."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.trainer.loss import (  # noqa: E402
    Tokens,
    correlation,
    objective,
    probability_sums,
    segment_means,
    shift,
)

VECTORS = Path(__file__).parents[4].parent / "shared" / "corpus" / "loss-vectors.json"
CASES: dict[str, Any] = json.loads(VECTORS.read_text()) if VECTORS.is_file() else {"loss": [], "trl": {"cases": []}}
needs_vectors = pytest.mark.skipif(not CASES["loss"], reason="the corpus is not beside the repository")


def tensor(rows: Any) -> Any:
    return torch.tensor([[float("nan") if x is None else x for x in row] for row in rows], dtype=torch.float64)


def settings_of(config: dict[str, Any]) -> RlConfig:
    """A raw config of the vectors: `epsilon_high` null is epsilon, missing depends on the loss."""
    ppo = bool(config.get("ppo"))
    epsilon = config.get("epsilon", 0.2 if ppo else 1.0)
    high = config.get("epsilon_high", None if ppo else 4.0)
    known = {name: value for name, value in config.items() if value is not None and name != "ppo"}
    return RlConfig(
        **known
        | {"loss": "ppo" if ppo else "cispo", "epsilon": epsilon, "epsilon_high": epsilon if high is None else high}
    )


@needs_vectors
@pytest.mark.parametrize("case", CASES["loss"], ids=lambda case: case["name"])
def test_recorded_loss(case: dict[str, Any]) -> None:
    given, expected = case["inputs"], case["expected"]
    new = tensor(given["new_logprobs"]).requires_grad_(True)
    original = given["original_logprobs"]
    tokens = Tokens(
        old=shift(tensor(given["logprobs"]), float("nan")),
        advantages=shift(tensor(given["advantages"]), 0.0),
        weights=shift(tensor(given["weights"]), 0.0),
        mask=shift(tensor(given["assistant_mask"]), 0.0).bool(),
        segments=shift(tensor(given["group_ids"]), 0.0).long(),
        reference=None if given["ref_logprobs"] is None else tensor(given["ref_logprobs"]),
        original=None if original is None else shift(tensor(original), 0.0),
    )
    result = objective(new, tokens, settings_of(case["config"]))
    denominator = tokens.mask.double().sum() + 1e-6 if case["reduction"] == "mean" else torch.tensor(1.0)
    loss = result.loss_sum / denominator
    loss.backward()
    found = {
        "policy_loss": loss.item(),
        "policy_loss_sum": result.loss_sum.item(),
        "kl_policy_ref": None if result.divergence is None else result.divergence.item(),
        "probs_corr": correlation(probability_sums(new, tokens)),
        "entropy": None,
    }
    if given["entropies"] is not None:
        entropies = shift(tensor(given["entropies"]), 0.0)
        found["entropy"] = ((entropies * tokens.weights * tokens.mask).sum() / denominator).item()
    wanted = {name: value for name, value in expected.items() if name != "grad_new_logprobs" and value is not None}
    assert {name for name, value in found.items() if value is not None} == set(wanted)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-12, rel=1e-12)
    torch.testing.assert_close(new.grad, tensor(expected["grad_new_logprobs"]), atol=1e-12, rtol=0)


@needs_vectors
@pytest.mark.parametrize(
    "case", [case for case in CASES["trl"]["cases"] if case["ours"] is not None], ids=lambda case: case["name"]
)
def test_equivalent_settings_of_trl(case: dict[str, Any]) -> None:
    given = CASES["trl"]["inputs"]
    new = tensor(given["new_logprobs"]).requires_grad_(True)
    mask = tensor(given["mask"]).bool()
    weights = torch.ones_like(new)
    if case["weights_to_match"] != "1":
        weights = mask.sum() / (mask.shape[0] * mask.sum(1, keepdim=True)).expand_as(new)
    tokens = Tokens(
        old=tensor(given["old_logprobs"]),
        advantages=torch.tensor(given["advantages"], dtype=torch.float64)[:, None].expand_as(new),
        weights=weights,
        mask=mask,
        segments=torch.arange(mask.shape[0])[:, None].expand_as(mask),
    )
    loss = objective(new, tokens, settings_of(case["ours"])).loss_sum / (mask.sum() + 1e-6)
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(new.grad, tensor(case["grad_new_logprobs"]), atol=1e-6, rtol=0)


def of_one_segment(*differences: float, **more: Any) -> tuple[Any, Tokens]:
    """Logprobs of the policy, and tokens of one segment that were sampled with other ones."""
    ones = torch.ones(len(differences), dtype=torch.float64)
    new = torch.tensor(differences, dtype=torch.float64) - 3
    tokens = Tokens(old=-3 * ones, advantages=ones, weights=ones, mask=ones.bool(), segments=ones.long(), **more)
    return new, tokens


@pytest.mark.parametrize(
    ("level", "ratios"),
    [
        ("token", [16.0, 1.0]),
        ("sequence", [4.0, 4.0]),
        ("average", [10.0, 2.5]),
        ("geometric_average", [8.0, 2.0]),
    ],
)
def test_levels_of_the_ratio(level: Any, ratios: list[float]) -> None:
    new, tokens = of_one_segment(math.log(16), 0.0)
    result = objective(new, tokens, RlConfig(importance_sampling_level=level))
    assert result.ratios.tolist() == pytest.approx(ratios, rel=1e-5)


def test_a_ratio_on_a_bound_is_not_clipped() -> None:
    new, tokens = of_one_segment(0.0, math.log(0.5), math.log(2))
    clipped = [
        objective(new, tokens, RlConfig(loss="ppo", epsilon=low, epsilon_high=high)).clipped.tolist()
        for low, high in ((0.0, 9.0), (9.0, 0.0))
    ]
    assert clipped == [[False, True, False], [False, False, True]]


def test_a_ratio_on_a_bound_is_masked() -> None:
    for difference, low, high in ((0.0, 0.0, 9.0), (0.0, 9.0, 0.0)):
        new, tokens = of_one_segment(difference)
        settings = RlConfig(loss="ppo", epsilon=low, epsilon_high=high, mask_prob_ratio=True)
        assert objective(new, tokens, settings).loss_sum.item() == 0.0


def test_a_loss_without_bounds_clips_nothing() -> None:
    new, tokens = of_one_segment(-3.0, 3.0)
    assert objective(new, tokens, RlConfig.of_loss("dro")).clipped.tolist() == [False, False]


def test_the_correlation_of_probabilities_that_are_known() -> None:
    old, new = [0.1, 0.2, 0.4, 0.9], [0.2, 0.1, 0.5, 0.7]
    unknown = torch.tensor([*old, math.nan], dtype=torch.float64).log()
    tokens = Tokens(unknown, unknown, unknown, torch.ones(5, dtype=torch.bool), torch.zeros(5))
    sums = probability_sums(torch.tensor([*new, 0.9], dtype=torch.float64).log(), tokens)
    assert correlation(sums) == pytest.approx(statistics.correlation(old, new))


def test_a_reference_counts_only_where_a_setting_asks_for_it() -> None:
    reference = torch.tensor([-3.5, -4.0], dtype=torch.float64)
    new, tokens = of_one_segment(0.0, 0.0, reference=reference)
    _, without = of_one_segment(0.0, 0.0)
    plain = objective(new, without, RlConfig())
    for asked, given in (
        (RlConfig(), tokens),
        (RlConfig(kl_penalty_coef=1.0), without),
        (RlConfig(kl_loss_coef=1.0), without),
    ):
        result = objective(new, given, asked)
        assert result.divergence is None and result.token_losses.tolist() == plain.token_losses.tolist()
    penalised = objective(new, tokens, RlConfig(kl_penalty_coef=1.0))
    assert penalised.divergence.item() == pytest.approx(0.75)
    assert (penalised.token_losses / plain.token_losses).tolist() == pytest.approx([1.25, 0.75])
    assert objective(new, tokens, RlConfig(kl_loss_coef=1.0)).loss_sum.item() > plain.loss_sum.item()


@pytest.mark.parametrize(("source", "mean"), [("sample", 0.5), ("current_learner", 1.0)])
def test_the_penalty_compares_the_rollouts_or_the_policy_with_the_reference(source: Any, mean: float) -> None:
    new, tokens = of_one_segment(0.25, 0.75, reference=torch.tensor([-3.0, -4.0], dtype=torch.float64))
    plain = objective(new, tokens, RlConfig())
    result = objective(new, tokens, RlConfig(kl_penalty_coef=0.5, kl_penalty_source=source))
    assert result.divergence.item() == pytest.approx(mean)
    of_each = [0.0, 1.0] if source == "sample" else [0.25, 1.75]
    wanted = [1 + 0.5 * (mean - each) for each in of_each]
    assert (result.token_losses / plain.token_losses).tolist() == pytest.approx(wanted)


def test_a_cap_of_the_ratio_is_the_lower_one_of_two_bounds() -> None:
    new, tokens = of_one_segment(*(math.log(ratio) for ratio in (0.5, 1.5, 2.5, 3.5)))
    for cap, high, clipped in ((2.0, 3.0, [False, False, True, True]), (3.0, 1.0, [False, False, True, True])):
        settings = RlConfig(max_negative_advantage_importance_sampling_weight=cap, epsilon_high=high)
        result = objective(new, tokens, settings)
        wanted = [-min(ratio, cap, 1 + high) * value for ratio, value in zip((0.5, 1.5, 2.5, 3.5), new, strict=True)]
        assert result.token_losses.tolist() == pytest.approx([float(each) for each in wanted])
        assert result.ratios.tolist() == pytest.approx([0.5, 1.5, 2.5, 3.5]), "as they are before any bound"
        assert result.clipped.tolist() == clipped


def test_rollouts_of_another_policy_are_weighed_by_at_most_so_much() -> None:
    """By the ratio itself; where the logprobs were computed anew, by that of these to the rollout's."""
    new, tokens = of_one_segment(math.log(0.5), math.log(4), math.log(1.5))
    settings = RlConfig(truncated_importance_sampling=2.0)
    plain = objective(new, tokens, RlConfig()).token_losses
    weights = objective(new, tokens, settings).token_losses / plain
    assert weights.tolist() == pytest.approx([0.5, 2.0, 1.5])
    tokens.original = torch.tensor([-3 - math.log(0.25), -3 - math.log(8), math.nan], dtype=torch.float64)
    weights = objective(new, tokens, settings).token_losses / plain
    of_the_policy = math.exp(-3 - float(new[2]))
    assert weights.tolist() == pytest.approx([0.25, 2.0, of_the_policy]), "what is unknown is the present policy's"


def test_a_segment_is_one_wherever_its_tokens_lie() -> None:
    values = torch.tensor([[1.0, 5.0, 3.0], [2.0, 8.0, 4.0]], dtype=torch.float64)
    segments = torch.tensor([[7, 9, 7], [9, 7, 7]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    means = segment_means(values, segments, mask)
    expected = [[8 / 3, 3.5, 8 / 3], [3.5, 8.0, 8 / 3]]
    torch.testing.assert_close(means, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("old", [[-0.5] * 5, [-0.5], [-0.5, -0.5000001, -0.5], []])
def test_probabilities_that_do_not_vary_have_no_correlation(old: list[float]) -> None:
    given = torch.tensor(old, dtype=torch.float64)
    tokens = Tokens(given, given, given, torch.ones(len(old), dtype=torch.bool), torch.zeros(len(old)))
    new = -torch.rand(len(old), generator=torch.Generator().manual_seed(0))
    assert math.isnan(correlation(probability_sums(new, tokens)))


def test_parts_of_a_row_add_up() -> None:
    """Two ranks with a part each, and totals over both, give the whole row's loss and gradient."""
    generator = torch.Generator().manual_seed(0)
    count = 12
    new = -torch.rand(count, generator=generator, dtype=torch.float64)
    tokens = Tokens(
        old=-torch.rand(count, generator=generator, dtype=torch.float64),
        advantages=torch.randn(count, generator=generator, dtype=torch.float64),
        weights=torch.rand(count, generator=generator, dtype=torch.float64),
        mask=torch.rand(count, generator=generator) > 0.3,
        segments=torch.arange(count) // 3,
        reference=-torch.rand(count, generator=generator, dtype=torch.float64),
    )
    settings = RlConfig(kl_penalty_coef=0.3, importance_sampling_level="sequence", loss="ppo", epsilon_high=0.5)
    joined = new.clone().requires_grad_(True)
    objective(joined, tokens, settings).loss_sum.backward()
    sums = iter([(new - tokens.reference)[tokens.mask].sum(), tokens.mask.double().sum()] * 2)
    parted = new.clone().requires_grad_(True)
    for part in (slice(0, 6), slice(6, 12)):
        names = Tokens.__slots__
        piece = Tokens(**{n: None if (v := getattr(tokens, n)) is None else v[part] for n in names})
        objective(parted[part], piece, settings, lambda _: next(sums)).loss_sum.backward()
    torch.testing.assert_close(parted.grad, joined.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_only_a_ratio_is_kept_from_infinity(level: str) -> None:
    """-9999 stands for minus infinity: its ratio is clipped to 5, and tau pulls by the whole difference."""
    ones = torch.ones(1, dtype=torch.float64)
    tokens = Tokens(old=-9999 * ones, advantages=ones, weights=ones, mask=ones.bool(), segments=ones.long())
    result = objective(-ones, tokens, RlConfig(kimi_k2_tau=0.5, importance_sampling_level=level))  # type: ignore[arg-type]
    assert math.isfinite(result.ratios.item())
    assert result.loss_sum.item() == pytest.approx(5 * (1 - 0.5 * 9998))


def test_what_is_stored_at_a_token_moves_to_the_place_that_predicts_it() -> None:
    assert shift(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 9.0).tolist() == [[2.0, 3.0, 9.0], [5.0, 6.0, 9.0]]
