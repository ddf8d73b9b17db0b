"""Drawing tokens, against a slow reference."""

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.base import Sampling  # noqa: E402
from heddle.inference.engine.local.draw import (  # noqa: E402
    GREEDY_BELOW,
    DrawParameters,
    count_above,
    draw,
    drop_below,
    find_best,
    find_top,
    is_greedy,
    sum_above,
    uniforms,
)
from heddle.inference.engine.local.sequence import mix_seed  # noqa: E402


def chances_of(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution that the contract describes, one step after the other in float64."""
    scores = logits.astype(np.float64) / max(sampling.temperature, 0.01)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    if sampling.min_p:
        chances[chances < sampling.min_p * chances.max()] = 0.0
    if 0 < sampling.top_k < len(chances):
        chances[chances < np.sort(chances)[-sampling.top_k]] = 0.0
    chances /= chances.sum()
    if sampling.top_p < 1.0:
        order = np.argsort(-chances, kind="stable")
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[before >= sampling.top_p]] = 0.0
    return chances / chances.sum()


def token_of(chances: np.ndarray, uniform: float) -> int:
    """The inverse of the cumulative distribution in the order of the ids."""
    return int(np.searchsorted(np.cumsum(chances), uniform * chances.sum(), side="right"))


def reference(logits: np.ndarray, sampling: Sampling, uniform: np.ndarray) -> int:
    """One draw; where top_p leaves more than 64 tokens, from all tokens until one belongs, at most 8 times."""
    chances = chances_of(logits, sampling)
    everything = chances_of(logits, dataclasses.replace(sampling, top_p=1.0))
    if not sampling.top_k and np.sort(everything)[-64:].sum() < sampling.top_p < 1.0:
        for number in uniform[:8]:
            token = token_of(everything, float(number))
            if chances[token]:
                return token
        return token_of(chances, float(uniform[8]))
    return token_of(chances, float(uniform[0]))


def drawn(logits: np.ndarray, samplings: list[Sampling], uniform: np.ndarray) -> list[int]:
    parameters = DrawParameters.of(samplings, logits.shape[1], torch.device("cpu"))
    tokens, _ = draw(torch.from_numpy(logits), parameters, torch.from_numpy(uniform))
    return tokens.tolist()


def drawn_often(logits: np.ndarray, sampling: Sampling, uniform: np.ndarray) -> list[int]:
    """One token per column of `uniform`, drawn in groups so that little memory is needed."""
    tokens = []
    for first in range(0, uniform.shape[1], 250):
        part = uniform[:, first : first + 250]
        tokens += drawn(np.tile(logits, (part.shape[1], 1)), [sampling] * part.shape[1], part)
    return tokens


FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"temperature": 0.001},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 100_000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.999},
    {"top_k": 20, "top_p": 0.7},
    {"min_p": 0.01, "top_k": 30, "top_p": 0.95, "temperature": 0.8},
    {"min_p": 0.05, "top_p": 0.8, "temperature": 1.3},
]


@pytest.mark.parametrize("width", [3, 50, 300, 5000])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "together"])
def test_tokens_are_those_of_the_slow_reference(width: int, alone: bool) -> None:
    random = np.random.default_rng(width)
    samplings = [Sampling(max_tokens=1, seed=0, **fields) for fields in FIELDS] * 8
    logits = (random.standard_normal((len(samplings), width)) * 2).astype(np.float32)
    uniform = random.random((9, len(samplings))).astype(np.float32)
    expected = [
        reference(row, sampling, column) for row, sampling, column in zip(logits, samplings, uniform.T, strict=True)
    ]
    if alone:
        groups = [slice(row, row + 1) for row in range(len(samplings))]
    else:
        groups = [slice(0, len(samplings))]
    tokens = [token for part in groups for token in drawn(logits[part], samplings[part], uniform[:, part])]
    assert tokens == expected


@pytest.mark.parametrize("width", [50, 3000])
def test_a_top_p_that_rounds_to_1_limits_nothing(width: int) -> None:
    count = 200
    random = np.random.default_rng(5)
    logits = random.standard_normal((count, width)).astype(np.float32)
    uniform = random.random((9, count)).astype(np.float32)
    plain, rounded, limited = (
        [Sampling(max_tokens=1, seed=0, top_p=top_p)] * count for top_p in (1.0, 1 - 2**-30, 1 - 2**-20)
    )
    assert drawn(logits, rounded, uniform) == drawn(logits, plain, uniform)
    parameters = [DrawParameters.of(each, width, torch.device("cpu")) for each in (plain, rounded, limited)]
    assert [each.columns for each in parameters] == [1, 1, 9]


def test_a_row_that_is_no_number_harms_no_other_whatever_limits_it() -> None:
    logits = np.random.default_rng(6).standard_normal((3, 200)).astype(np.float32)
    logits[1] = np.nan
    uniform = np.full((9, 3), 0.3, dtype=np.float32)
    for fields in ({"top_p": 0.9}, {"top_k": 5}, {"top_k": 5, "top_p": 0.5}, {"min_p": 0.1}, {"top_p": 0.001}):
        sampling = Sampling(max_tokens=1, seed=0, **fields)
        alone = [drawn(logits[row : row + 1], [sampling], uniform[:, :1])[0] for row in (0, 2)]
        assert drawn(logits, [sampling] * 3, uniform)[::2] == alone


@pytest.mark.parametrize("width", [4, 2000])
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}])
def test_many_draws_follow_the_distribution(width: int, fields: dict[str, Any]) -> None:
    count = 4000
    logits = np.full(width, -30.0, dtype=np.float32)
    logits[:: width // 4] = [0.0, 1.0, 0.5, -0.5]
    sampling = Sampling(max_tokens=1, seed=0, **fields)
    seeds = np.array([mix_seed(seed) for seed in range(count)], dtype=np.uint64)
    uniform = uniforms(seeds, [3] * count, 9)
    tokens = drawn_often(logits, sampling, uniform)
    chances = chances_of(logits, sampling)
    seen = np.bincount(tokens, minlength=width)
    assert seen[chances == 0.0].sum() == 0
    likely = chances * count > 5
    distance = ((seen[likely] - chances[likely] * count) ** 2 / (chances[likely] * count)).sum()
    assert distance < 25.0, "chi-square with at most 3 degrees of freedom: 1 in 60,000"


@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.9])
def test_many_draws_from_a_flat_distribution_stay_among_the_best_and_cover_them(top_p: float) -> None:
    count, width = 3000, 3000
    logits = np.zeros(width, dtype=np.float32)
    logits[::4] = 2.0
    logits += np.random.default_rng(2).standard_normal(width).astype(np.float32) * 0.01
    seeds = np.array([mix_seed(seed) for seed in range(count)], dtype=np.uint64)
    sampling = Sampling(max_tokens=1, seed=0, top_p=top_p)
    tokens = np.array(drawn_often(logits, sampling, uniforms(seeds, [0] * count, 9)))
    chances = chances_of(logits, sampling)
    assert (chances[tokens] > 0.0).all()
    left = np.flatnonzero(chances)
    parts = np.array_split(left, 10)
    seen = np.array([np.isin(tokens, part).sum() for part in parts])
    wanted = np.array([chances[part].sum() * count for part in parts])
    assert ((seen - wanted) ** 2 / wanted).sum() < 40.0, "chi-square with 9 degrees of freedom: 1 in 100,000"


def test_a_token_outside_of_top_p_is_drawn_again_and_at_last_from_those_inside() -> None:
    """Each number points at the middle of the part of a token, so that rounding decides nothing."""
    rows, width, kept = 300, 3000, 600
    weights = np.linspace(2.0, 1.0, width)
    top_p = (weights[:kept].sum() - weights[kept - 1] / 2) / weights.sum()
    order = np.random.default_rng(1).permutation(width)
    chances = np.empty(width)
    chances[order] = weights
    inside = np.zeros(width, dtype=bool)
    inside[order[:kept]] = True

    def numbers(parts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return ((np.cumsum(parts) - parts / 2)[tokens] / parts.sum()).astype(np.float32)

    random = np.random.default_rng(2)
    tries = random.integers(0, width, (8, rows))
    last = random.choice(order[:kept], rows)
    uniform = np.vstack([numbers(chances, tries), numbers(chances * inside, last)[None]])
    wanted = [next((token for token in row if inside[token]), end) for row, end in zip(tries.T, last, strict=True)]
    assert sum(not inside[row].any() for row in tries.T) > 20
    logits = np.tile(np.log(chances).astype(np.float32), (rows, 1))
    assert drawn(logits, [Sampling(max_tokens=1, seed=0, top_p=float(top_p))] * rows, uniform) == wanted


def test_uniform_numbers_depend_on_seed_and_position_alone_and_cover_the_range() -> None:
    seeds = np.array([mix_seed(seed) for seed in (0, 1, 2, 2**64 - 1)], dtype=np.uint64)
    together = uniforms(seeds, [0, 5, 5, 1000])[0]
    for row, position in enumerate((0, 5, 5, 1000)):
        assert uniforms(seeds[row : row + 1], [position], 9)[0, 0] == together[row]
    assert len(set(together.tolist())) == 4
    firsts = uniforms(np.array([mix_seed(seed) for seed in range(2000)], dtype=np.uint64), [0] * 2000)[0]
    assert firsts[0] > 0.0 and np.abs(np.histogram(firsts, 10, (0, 1))[0] - 200).max() < 60
    along = uniforms(np.full(10_000, seeds[1]), list(range(10_000)))[0]
    assert along.min() >= 0.0 and along.max() < 1.0
    assert np.abs(np.histogram(along, 10, (0, 1))[0] - 1000).max() < 130
    assert abs(np.corrcoef(along[:-1], along[1:])[0, 1]) < 0.04


def test_uniform_numbers_are_those_of_splitmix64() -> None:
    """The same seed draws the same in every version."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    found = uniforms(np.full(4, 1234567, dtype=np.uint64), [0, 1, 2, 3])[0]
    assert found.tolist() == [(number >> 40) / 2**24 for number in published]
    step = 0xD1342543DE82EF95
    moved = [uniforms(np.array([1234567 + n * step & 2**64 - 1], dtype=np.uint64), [0])[0, 0] for n in range(9)]
    assert uniforms(np.array([1234567], dtype=np.uint64), [0], 9)[:, 0].tolist() == moved


class Elsewhere(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it lies on another device, for which numpy is not used."""

    device = property(lambda _: torch.device("cuda"))  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [torch.Tensor, Elsewhere])
def test_rows_are_searched_alike_on_every_device(kind: Any) -> None:
    scores = torch.tensor([[0.1, 0.4, 0.2], [0.5, 0.25, 0.125]]).as_subclass(kind)
    limits = torch.tensor([[0.2], [0.125]]).as_subclass(kind)
    values, places = find_best(scores)
    assert (values.tolist(), places.tolist()) == ([scores[0, 1].item(), 0.5], [1, 0])
    assert count_above(scores, limits) == [1, 2]
    chances = scores.clone()
    drop_below(chances, limits)
    assert (chances > 0).tolist() == [[False, True, True], [True, True, True]], "what is at the limit stays"
    assert torch.equal(chances[chances > 0], scores[chances > 0])


def test_what_is_above_a_limit_is_added_up() -> None:
    chances = torch.tensor([[0.125, 0.5, 0.25, 0.125], [0.0, 0.0, 0.25, 0.75]])
    assert sum_above(chances, torch.tensor([[0.125], [0.0]])).tolist() == [[0.75], [1.0]]
    assert sum_above(chances, torch.tensor([[0.5], [1.0]])).tolist() == [[0.0], [0.0]]


def test_the_best_token_is_taken_below_the_lowest_temperature() -> None:
    temperatures = (0.0, GREEDY_BELOW / 2, GREEDY_BELOW, 1.0)
    found = [is_greedy(Sampling(max_tokens=1, seed=0, temperature=each)) for each in temperatures]
    assert found == [True, True, False, False]


@pytest.mark.parametrize("width", [300, 400, 8190, 8200])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_best_of_a_wide_row_are_found_in_groups_of_it(width: int, count: int) -> None:
    scores = np.random.default_rng(width).permuted(np.tile(np.arange(width, dtype=np.float32), (3, 1)), axis=1)
    values, places = find_top(torch.from_numpy(scores), count)
    assert values.tolist() == [[float(width - 1 - place) for place in range(count)]] * 3
    assert np.take_along_axis(scores, places.numpy(), 1).tolist() == values.tolist()


@pytest.mark.parametrize("width", [7, 3000])
@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_the_ends_of_the_range_draw_tokens_that_can_be_drawn(width: int, uniform: float) -> None:
    logits = np.full((1, width), -np.inf, dtype=np.float32)
    logits[0, [2, width - 2]] = 1.0
    token = drawn(logits, [Sampling(max_tokens=1, seed=0)], np.array([[uniform]], dtype=np.float32))
    assert token == [2 if uniform == 0.0 else width - 2]


def test_equal_scores_at_the_border_do_not_depend_on_the_neighbours() -> None:
    tied = np.zeros((1, 600), dtype=np.float32)
    wide = np.concatenate([tied, np.random.default_rng(1).standard_normal((1, 600)).astype(np.float32)])
    uniform = np.tile(np.array([0.77, 0.5], dtype=np.float32), (9, 1))
    for fields in ({"top_k": 3}, {"top_p": 0.3}, {"top_p": 0.9, "top_k": 40}):
        own, other = Sampling(max_tokens=1, seed=0, **fields), Sampling(max_tokens=1, seed=0, top_k=500)
        assert drawn(tied, [own], uniform[:, :1]) == drawn(wide, [own, other], uniform)[:1]


def test_a_row_without_any_possible_token_is_seen() -> None:
    logits = torch.zeros(3, 10)
    logits[1] = float("-inf")
    logits[2, 4] = float("nan")
    parameters = DrawParameters.of([Sampling(max_tokens=1, seed=0)] * 3, 10, torch.device("cpu"))
    _, highest = draw(logits, parameters, torch.full((1, 3), 0.5))
    assert torch.isfinite(highest).tolist() == [True, False, False]
