"""Runs whose figures are easily told wrong: equal rows, rows that fail, unlike scales, nested scores, trials."""

import asyncio
import logging

import weave
from common import plain, report, start

client = start()
# The row that fails is meant to.
logging.getLogger("weave").setLevel(logging.CRITICAL)
ROWS = [{"question": f"question {number}", "number": number} for number in range(16)]
ROWS += [dict(row) for row in ROWS[:4]]


@weave.op
def exact(number: int, output: int) -> bool:
    """A truth; every sixth row is answered wrongly."""
    return output == number


@weave.op
def stars(number: int, output: int) -> int:
    """From 1 to 5."""
    return 1 + number % 5


class Nested(weave.Scorer):
    """Scores of two scales at two levels, one of them named like a scorer of another."""

    @weave.op
    def score(self, *, number: int, output: int) -> dict:
        """The scores."""
        return {"score": number % 2 == 0, "deep": {"score": number / 2}}


class Answerer(weave.Model):
    """Fails on one row."""

    @weave.op
    def predict(self, question: str, number: int) -> int:
        """The number, or another one."""
        if question == "question 7":
            raise ValueError("no answer")
        return number if number % 6 else -1


def evaluate(name: str, rows: list, trials: int = 1) -> dict:
    """The summary that a run prints."""
    dataset = weave.Dataset(name=f"{name}-data", rows=rows)
    scorers = [exact, stars, Nested(name="nested")]
    evaluation = weave.Evaluation(name=name, dataset=dataset, scorers=scorers, trials=trials)
    summary = asyncio.run(evaluation.evaluate(Answerer(name="answerer")))
    client.flush()
    return plain(summary)


def newest() -> str:
    """The id of the run that began last."""
    chosen = {"op_names": [f"weave:///{client.entity}/{client.project}/op/Evaluation.evaluate:*"]}
    newest_first = [{"field": "started_at", "direction": "desc"}]
    return client.get_calls(filter=chosen, sort_by=newest_first)[0].id


equal = {"summary": evaluate("equal-rows", ROWS), "run": newest()}
tried = {"summary": evaluate("tried-twice", [ROWS[1], ROWS[2], dict(ROWS[1])], trials=2), "run": newest()}
log = weave.EvaluationLogger(name="by-hand", model="hand-model", dataset="hand-data")
for number in range(5):
    prediction = log.log_prediction(inputs={"question": number % 2}, output=number)
    prediction.log_score("good", number > 2)
    prediction.finish()
log.log_summary({"note": 0.25})
client.flush()
report(equal=equal, tried=tried, logged={"run": newest()})
