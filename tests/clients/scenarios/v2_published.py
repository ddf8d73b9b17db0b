"""One of each object that evaluations are made of, published; and a run of them."""

import asyncio

import weave
from common import report, start

client = start()


class Doubler(weave.Model):
    """A model with an attribute."""

    factor: int = 2

    @weave.op
    def predict(self, n: int) -> int:
        """The product."""
        return n * self.factor


class Close(weave.Scorer):
    """A scorer with an attribute."""

    within: int = 0

    @weave.op
    def score(self, *, output: int, expected: int) -> bool:
        """Whether it is close enough."""
        return abs(output - expected) <= self.within


@weave.op
def exact(output: int, expected: int) -> bool:
    """A scorer that is a function."""
    return output == expected


dataset = weave.Dataset(name="doubles", description="numbers", rows=[{"n": n, "expected": 2 * n} for n in range(3)])
model = Doubler(name="doubler", factor=2)
scorer = Close(within=1)
evaluation = weave.Evaluation(name="doubling", dataset=dataset, scorers=[scorer, exact], trials=2)
published = {
    "dataset": weave.publish(dataset).uri(),
    "model": weave.publish(model).uri(),
    "scorer": weave.publish(scorer).uri(),
    "evaluation": weave.publish(evaluation).uri(),
    "op": weave.publish(exact).uri(),
}
asyncio.run(evaluation.evaluate(model))
log = weave.EvaluationLogger(name="by-hand", model="hand-model", dataset="hand-data")
prediction = log.log_prediction(inputs={"n": 4}, output=8)
prediction.log_score("right", True)
prediction.finish()
log.log_summary({"note": "by hand"})
client.flush()
report(**published)
