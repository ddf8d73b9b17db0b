"""An evaluation that runs, and one that is logged by hand."""

import asyncio

import weave
from common import plain, report, start

client = start()
ROWS = [{"question": "1+1", "expected": 2}, {"question": "2+3", "expected": 5}, {"question": "2*4", "expected": 0}]
dataset = weave.Dataset(name="sums", rows=ROWS)


@weave.op
def exact(expected: int, output: int) -> dict:
    """A function scorer."""
    return {"correct": expected == output}


class Distance(weave.Scorer):
    """A class scorer."""

    factor: float = 1.0

    @weave.op
    def score(self, *, expected: int, output: int) -> float:
        """How far off."""
        return abs(expected - output) * self.factor


class Calculator(weave.Model):
    """The model under test."""

    precise: bool = True

    @weave.op
    def predict(self, question: str) -> int:
        """The value of the expression."""
        left, sign, right = question
        return int(left) + int(right) if sign == "+" else int(left) * int(right)


log = weave.EvaluationLogger(name="by-hand", model="hand-model", dataset="hand-data")
for question, output, correct in (("a", "A", True), ("b", "x", False)):
    prediction = log.log_prediction(inputs={"question": question}, output=output)
    prediction.log_score("correct", correct)
    prediction.log_score("length", len(output))
    prediction.finish()
log.log_summary({"note": "by hand"})
client.flush()
evaluations = sorted(item.name for item in client.get_evaluations())
EVALUATE = {"op_names": [f"weave:///{client.entity}/{client.project}/op/Evaluation.evaluate:*"]}
logged = client.get_calls(filter=EVALUATE)[0]

evaluation = weave.Evaluation(name="arithmetic", dataset=dataset, scorers=[exact, Distance(factor=0.5)], trials=2)
summary = asyncio.run(evaluation.evaluate(Calculator(name="calculator")))
client.flush()
run = client.get_calls(filter=EVALUATE, sort_by=[{"field": "started_at", "direction": "desc"}])[0]

report(
    summary=plain(summary),
    run=run.id,
    output=plain(run.output),
    children=[child.func_name for child in run.children()],
    logged=logged.id,
    logged_output=plain(logged.output),
    logged_children=[child.func_name for child in logged.children()],
    evaluations=evaluations,
    count=len(client.get_calls()),
)
