"""What the rows of an evaluation run come to, summed while they are read."""

from typing import Any

from heddle.wire.jsontypes import Json

OUTPUT = "output"


class Total:
    """The values of one scorer, or of the model: numbers and truths count, everything else is passed over."""

    def __init__(self) -> None:
        self.numbers = 0
        self.truths = 0
        self.true = 0
        self.sum = 0.0

    def add(self, value: Any) -> None:
        """Take one value in."""
        if isinstance(value, bool):
            self.truths += 1
            self.true += value
        elif isinstance(value, int | float):
            self.numbers += 1
            self.sum += value

    @property
    def summary(self) -> Json | None:
        """A mean, or how many are true where there are only truths; beside numbers a truth counts 1 or 0."""
        if self.numbers:
            return {"mean": (self.sum + self.true) / (self.numbers + self.truths)}
        if self.truths:
            return {"true_count": self.true, "true_fraction": self.true / self.truths}
        return None


class Totals:
    """The totals of a run: one per scorer, and one of the model's outputs."""

    def __init__(self) -> None:
        self._scorers: dict[str, Total] = {}
        self._outputs = Total()

    def add(self, output: Json) -> None:
        """Take in the output of one row's call: `{output, scores}` (`model_output` in TypeScript)."""
        self._outputs.add(output.get("output", output.get("model_output")))
        scores = output.get("scores")
        for name, value in scores.items() if isinstance(scores, dict) else ():
            self._scorers.setdefault(name, Total()).add(value)

    @property
    def summary(self) -> Json:
        """`{scorer: summary}`, and the model's as `output`; what has neither numbers nor truths is left out."""
        every = {OUTPUT: self._outputs.summary}
        every |= {name: summary for name, total in self._scorers.items() if (summary := total.summary) is not None}
        scorers = {name: summary for name, summary in every.items() if name != OUTPUT}
        return scorers | ({OUTPUT: every[OUTPUT]} if every[OUTPUT] is not None else {})
