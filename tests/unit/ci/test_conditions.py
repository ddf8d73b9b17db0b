"""The grammar of --fail-if, and what a condition comes to."""

import math

import pytest

from heddle.ci.comparison import Comparison, Interval, Measurement, parse_condition
from heddle.errors import InvalidRequest


def comparison(**values: tuple[float, float]) -> Comparison:
    """Measures by name: the baseline's value and the run's."""
    measures = {
        name: Measurement(name, base, run, 10, Interval(run - base - 0.1, run - base + 0.1))
        for name, (base, run) in ((name.replace("__", "."), pair) for name, pair in values.items())
    }
    return Comparison("run", "base", 10, 0, 0, measures)


@pytest.mark.parametrize(
    ("text", "statistic", "measure", "operator", "number", "is_percent"),
    [
        ("score < -0.02", "difference", "score", "<", -0.02, False),
        ("score<-.02", "difference", "score", "<", -0.02, False),
        ("latency > 10%", "difference", "latency", ">", 10, True),
        ("  Judge.verdict.ok <= -1e-3 ", "difference", "Judge.verdict.ok", "<=", -0.001, False),
        ("mean(score) >= 0.8", "mean", "score", ">=", 0.8, False),
        ("high( my-scorer ) < 0", "high", "my-scorer", "<", 0, False),
        ("'two words' < 5 %", "difference", "two words", "<", 5, True),
        ('"a.b" > +3', "difference", "a.b", ">", 3, False),
    ],
)
def test_conditions_are_read(
    text: str, statistic: str, measure: str, operator: str, number: float, is_percent: bool
) -> None:
    found = parse_condition(text)
    assert (found.statistic, found.measure, found.operator) == (statistic, measure, operator)
    assert (found.number, found.is_percent) == (number, is_percent)


@pytest.mark.parametrize(
    "text",
    ["", "score", "score <", "< 1", "score = 1", "score == 1", "score < x", "score < 1 2", "median(score) < 1",
     "score < nan", "score < 1%%", "mean(score) < 5%", "score < 1 and cost > 2", "score < 1e9999"],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_condition(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "failed", "value"),
    [
        ("score < -0.02", True, -0.05),
        ("score < -0.05", False, -0.05),
        ("score <= -0.05", True, -0.05),
        ("mean(score) < 0.8", True, 0.75),
        ("latency > 10%", False, 10.0),
        ("latency >= 10%", True, 10.0),
        ("low(score) < -0.1", True, -0.15),
        ("high(score) < 0", False, 0.05),
        ("free > 1%", True, math.inf),
        ("still > 1%", False, 0.0),
        ("Judge.ok > 0", True, 0.5),
    ],
)
def test_a_condition_decides_on_its_statistic(text: str, failed: bool, value: float) -> None:
    known = comparison(score=(0.8, 0.75), latency=(2.0, 2.2), free=(0.0, 0.1), still=(0.0, 0.0), Judge__ok=(0.25, 0.75))
    verdict = parse_condition(text).check(known)
    assert verdict.has_failed is failed
    assert verdict.value == pytest.approx(value)


def test_an_unknown_measure_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="uses an unknown measure 'scrore'; the runs have: score, latency"):
        parse_condition("scrore < 0").check(comparison(score=(1, 1), latency=(1, 1)))
