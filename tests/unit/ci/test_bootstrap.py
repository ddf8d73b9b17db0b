"""The interval of a mean difference: known cases, and how often it holds the truth."""

import math
import random
import statistics

import pytest

from heddle.ci.comparison import RESAMPLES, bootstrap_interval, resamples_for


def test_nothing_and_one_value_have_no_spread() -> None:
    assert bootstrap_interval([]) is None
    assert bootstrap_interval([0.25]) == (0.25, 0.25)
    assert bootstrap_interval([0.0] * 50) == (0.0, 0.0)


def test_the_same_differences_give_the_same_interval_and_another_seed_another() -> None:
    generator = random.Random(3)
    values = [generator.gauss(0, 1) for _ in range(40)]
    assert bootstrap_interval(values) == bootstrap_interval(list(values))
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)


def test_two_values_have_the_interval_that_can_be_counted() -> None:
    # Of two rows with 0 and 1 the mean of a draw is 0, 0.5 or 1 with shares 1/4, 1/2, 1/4.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], confidence=0.4) == (0.5, 0.5)


def test_a_binomial_share_agrees_with_the_exact_quantiles() -> None:
    # 100 rows, 30 of them 1: the mean of a draw is Binomial(100, 0.3) / 100, whose quantiles are 0.21 and 0.39.
    found = bootstrap_interval([1.0] * 30 + [0.0] * 70)
    assert found is not None
    assert found.low == pytest.approx(0.21, abs=0.0101) and found.high == pytest.approx(0.39, abs=0.0101)


@pytest.mark.thorough
def test_many_rows_agree_with_the_normal_interval() -> None:
    generator = random.Random(5)
    values = [generator.gauss(0.1, 1) for _ in range(3_000)]
    found = bootstrap_interval(values)
    assert found is not None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    assert found.low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)


@pytest.mark.thorough
def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(11)
    held = 0
    for _ in range(150):
        values = [generator.gauss(0.3, 1) for _ in range(40)]
        found = bootstrap_interval(values, seed=generator.randrange(2**30))
        assert found is not None
        held += found.low <= 0.3 <= found.high
    # 0.95 nominal; the percentile interval of 40 rows holds about 0.93. Below 0.86 or never missing would be wrong.
    assert 0.86 <= held / 150 < 1.0


def test_resamples_shrink_only_for_very_many_rows() -> None:
    assert resamples_for(200) == resamples_for(2_000) == RESAMPLES
    assert resamples_for(4_000) == 5_000 and resamples_for(10**6) == 1_000
