"""What counts as a regression: `score < -0.02`, `latency > 10%`, `mean(accuracy) < 0.8`.

    condition = figure operator number ["%"]
    figure    = measure | "mean(" measure ")" | "low(" measure ")" | "high(" measure ")"
    measure   = "score" | "latency" | "cost" | "tokens" | "error_share" | scorer ["." path]
    operator  = "<" | "<=" | ">" | ">="

A bare measure is its difference to the baseline, `low` and `high` are the ends of that difference's interval, `mean`
is the run's own value. With `%` the number is a percentage of the baseline's value. A name may stand in quotes.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heddle.errors import InvalidRequest
from heddle.gate.comparison import Comparison, Measured

_FORM = re.compile(
    r"\s*(?:(?P<figure>mean|low|high)\s*\(\s*(?P<inner>[^()<>]+?)\s*\)|(?P<measure>[^()<>=]+?))"
    r"\s*(?P<operator><=|>=|<|>)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(?P<percent>%?)\s*"
)
_DIGITS = 12
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition under which the gate fails."""

    text: str
    figure: str
    """`difference`, `mean`, `low` or `high`."""
    measure: str
    operator: str
    number: float
    is_percent: bool

    def check(self, comparison: Comparison) -> "Verdict":
        """Whether it holds; raises InvalidRequest for a measure that the runs do not have."""
        measured = comparison.measures.get(self.measure)
        if measured is None:
            known = ", ".join(comparison.measures)
            raise InvalidRequest(f"the condition {self.text!r} names {self.measure!r}; the runs have: {known}")
        value = _value(measured, self.figure)
        if value is None:
            raise InvalidRequest(f"the condition {self.text!r} has no value: no row of both runs has {self.measure}")
        if self.is_percent:
            value = _share(value, measured.baseline) * 100
        # 0.75 - 0.8 is a little below -0.05 in binary, which no one means by `< -0.05`.
        value = round(value, _DIGITS)
        return Verdict(self, value, _OPERATORS[self.operator](value, self.number))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition and what it came to."""

    condition: Condition
    value: float
    has_failed: bool

    @property
    def sentence(self) -> str:
        """The condition, and the value that decided."""
        unit = "%" if self.condition.is_percent else ""
        return f"{self.condition.text}: it is {self.value:.6g}{unit}"


def parse(text: str) -> Condition:
    """A condition as it is typed; raises InvalidRequest saying how one is written."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"the condition {text!r} cannot be read; write for example 'score < -0.02', 'latency > 10%' or "
            "'mean(score) < 0.8'"
        )
    measure = (found["inner"] or found["measure"]).strip().strip("'\"")
    figure = found["figure"] or "difference"
    if figure == "mean" and found["percent"]:
        raise InvalidRequest(f"the condition {text!r}: mean() is no difference, so it takes no %")
    return Condition(text.strip(), figure, measure, found["operator"], float(found["number"]), bool(found["percent"]))


def _value(measured: Measured, figure: str) -> float | None:
    if figure == "mean":
        return measured.run
    if figure == "difference":
        return measured.difference
    if measured.interval is None:
        return None
    return measured.interval.low if figure == "low" else measured.interval.high


def _share(value: float, of: float | None) -> float:
    if not of:
        return math.copysign(math.inf, value) if value else 0.0
    return value / abs(of)
