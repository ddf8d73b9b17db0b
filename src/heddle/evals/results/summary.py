"""Sums over the trials of evaluations: one line of figures per dimension of a scorer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.wire.calls import Usage
from heddle.wire.inference import CostOf, cost_of_tokens, sum_of_costs
from heddle.wire.jsontypes import Json
from heddle.wire.trials import TrialStats

_COUNTED = frozenset((bool, int, float, str))


@dataclass(slots=True)
class Dimension:
    """The values at one path of the scores of one scorer; the first one decides what they are called."""

    scorer: str
    path: str | None
    value_type: str
    trials: int = 0
    numbers: int = 0
    mean: float = 0.0
    passed: int = 0
    known: int = 0

    def add(self, value: bool | float | str) -> None:
        """One more trial."""
        self.trials += 1
        kind = type(value)
        if kind is bool:
            self.known += 1
            self.passed += value is True
        elif kind is not str:
            numbers = self.numbers
            self.mean = (self.mean * numbers + float(value)) / (numbers + 1)
            self.numbers = numbers + 1

    def shown(self) -> Json:
        """The figures as clients read them."""
        return {
            "scorer_key": self.scorer,
            "path": self.path,
            "value_type": self.value_type,
            "trial_count": self.trials,
            "numeric_count": self.numbers,
            "numeric_mean": self.mean if self.numbers else None,
            "pass_true_count": self.passed,
            "pass_known_count": self.known,
            "pass_rate": self.passed / self.known if self.known else None,
            "pass_signal_coverage": self.known / self.trials if self.trials else None,
        }


@dataclass(slots=True)
class Sums:
    """One evaluation; `first` is where its first trial stands, by row digest and start."""

    evaluation: str
    first: tuple[str, int]
    trials: int = 0
    tokens: int | None = None
    cost: float | None = None
    dimensions: dict[tuple[str, str | None], Dimension] = field(default_factory=dict)

    def add(self, figures: TrialStats, cost: float | None) -> None:
        """One more trial."""
        self.trials += 1
        if figures.total_tokens is not None:
            self.tokens = (self.tokens or 0) + figures.total_tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        if figures.scores is not None:
            for scorer, value in orjson.loads(figures.scores).items():
                self._add(scorer, None, value)

    def _add(self, scorer: str, path: str | None, value: Any) -> None:
        kind = type(value)
        if kind is dict:
            for name, item in value.items():
                self._add(scorer, name if path is None else f"{path}.{name}", item)
        elif kind in _COUNTED:
            dimension = self.dimensions.get((scorer, path))
            if dimension is None:
                dimension = self.dimensions[scorer, path] = Dimension(scorer, path, _type_of(value))
            dimension.add(value)

    def shown(self, about: Json) -> Json:
        """The sums as clients read them, with what the evaluation's own call says."""
        return {
            "evaluation_call_id": self.evaluation,
            "trial_count": self.trials,
            "scorer_stats": [dimension.shown() for dimension in self.dimensions.values()],
            "predict_total_tokens": self.tokens,
            "predict_total_cost": self.cost,
            **about,
        }


def _type_of(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "binary"
    return "text" if isinstance(value, str) else "continuous"


def summing(prices: CostOf | None) -> Callable[[Iterable[TrialStats]], list[Sums]]:
    """A fold that sums trials by evaluation, in the order of their first rows; with prices also their cost."""

    def fold(trials: Iterable[TrialStats]) -> list[Sums]:
        found: dict[str, Sums] = {}
        for figures in trials:
            sums = found.get(figures.evaluation)
            if sums is None:
                sums = found[figures.evaluation] = Sums(figures.evaluation, (figures.row_digest, figures.started_at))
            sums.add(figures, None if prices is None else cost_of(figures.usage, figures.priced_at, prices))
        return sorted(found.values(), key=lambda sums: sums.first)

    return fold


def cost_of(usage: Iterable[Usage], at: int, prices: CostOf | None) -> float | None:
    """What the tokens of a call come to; None where no model of it has a price."""
    return None if prices is None else sum_of_costs(cost_of_tokens(prices, entry, at) for entry in usage)
