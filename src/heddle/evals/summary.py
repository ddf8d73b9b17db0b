"""What the scores of many rows come to, in the shape in which SDKs summarise evaluations; values come one by one."""

from collections.abc import Sequence
from typing import Any

from heddle.evals.scorers.base import is_number
from heddle.wire.jsontypes import Json


class Column:
    """One column of values: truths as count and fraction, numbers as their mean, objects key by key.

    The first value that is not null says which of these it is. An empty object stands for a row without a score: it
    counts in the fractions of truths, and in nothing else.
    """

    def __init__(self) -> None:
        self._kind: type | None = None
        self._count = 0
        self._total = 0.0
        self._parts: dict[str, Column] = {}

    def add(self, value: Any) -> None:
        """Take one value."""
        if value is None or value == {}:
            return
        kind = bool if isinstance(value, bool) else float if is_number(value) else type(value)
        self._kind = self._kind or kind
        if kind is not self._kind:
            return
        self._count += 1
        if kind in (bool, float):
            self._total += value
        elif isinstance(value, dict):
            for key, item in value.items():
                self._parts.setdefault(key, Column()).add(item)

    def result(self, unscored: int = 0) -> Json | None:
        """What it comes to with so many rows without a score; None where there is nothing to sum."""
        if self._kind is bool:
            return {"true_count": int(self._total), "true_fraction": self._total / (self._count + unscored)}
        if self._kind is float:
            return {"mean": self._total / self._count}
        made: Json = {}
        for key, column in self._parts.items():
            part = column.result(unscored)
            if part is not None:
                # As the SDK has it: a part that is named as one of its own keys is not nested once more.
                made.update(part if key in part else {key: part})
        return made or None


class Summary:
    """The summary of an evaluation."""

    def __init__(self, scorers: Sequence[str]) -> None:
        self.rows = 0
        self._scored = dict.fromkeys(scorers, 0)
        self._scores = {name: Column() for name in scorers}
        self._output, self._latency = Column(), Column()

    def add(self, output: Any, scores: Json, latency: float | None) -> None:
        """Take one row and trial; a scorer that is not in its scores gave none."""
        self.rows += 1
        self._output.add(output)
        self._latency.add(latency)
        for name, value in scores.items():
            self._scores.setdefault(name, Column()).add(value)
            self._scored[name] = self._scored.get(name, 0) + (value != {})

    def result(self) -> Json:
        """Per scorer the summary of its values; the mean latency in seconds; that of the answers where it has one."""
        made: Json = {"output": self._output.result()}
        made |= {name: column.result(self.rows - self._scored[name]) for name, column in self._scores.items()}
        made["model_latency"] = self._latency.result()
        return {name: value for name, value in made.items() if value is not None}
