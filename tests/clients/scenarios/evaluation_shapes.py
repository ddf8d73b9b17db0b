"""Evaluations in less usual shapes: functions as models, all kinds of scores, preprocessing, loggers that end badly."""

import asyncio
from typing import Any

import weave
from common import plain, report, start
from pydantic import Field

client = start()
ROWS = [{"question": "a", "expected": "A"}, {"question": "bé", "expected": "X"}, {"question": "?", "expected": "?"}]


@weave.op
def shout(question: str) -> str:
    """A model that is a function, and fails at one row."""
    if question == "?":
        raise ValueError("no answer")
    return question.upper()


@weave.op
async def count(text: str) -> dict[str, int]:
    """A model that needs its row made ready."""
    return {"length": len(text)}


def ready(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `count` from a row."""
    return {"text": row["question"]}


@weave.op
def nothing(output: Any) -> None:
    """No score."""


@weave.op
async def parts(output: Any) -> dict[str, Any]:
    """A score of several kinds at once."""
    return {"a": {"b": True, "c": [1, 2]}, "d": 1.5, "e": "x", "f": None}


@weave.op
def word(output: Any) -> str:
    """A score that is a text."""
    return "good"


class Mapped(weave.Scorer):
    """Takes a column under another name."""

    column_map: dict[str, str] = Field(default_factory=lambda: {"wanted": "expected"})

    @weave.op
    def score(self, *, output: Any, wanted: str) -> bool:
        """True for the expected answer."""
        return bool(output == wanted)


class Judge(weave.Scorer):
    """Gives its name to scores that are logged; the SDK makes another one of it for the op."""

    @weave.op
    def score(self, *, output: Any) -> int:
        """Never called."""
        return 0


def run(evaluation: weave.Evaluation, model: Any) -> str:
    """The id of the call of a run."""
    _, call = asyncio.run(evaluation.evaluate.call(evaluation, model))
    return str(call.id)


def interleaved() -> tuple[str, str]:
    """Two predictions at once, a score behind the end, a summary of one's own."""
    log = weave.EvaluationLogger(name="interleaved", model="hand model", dataset="hand data")
    first, second = (log.log_prediction(inputs={"q": number}, output=number) for number in (1, 2))
    judge = Judge(name="answer relevance (1-5)")
    second.log_score(judge, 5)
    first.log_score(judge, 3)
    first.log_score("polite", True)
    second.finish()
    first.finish()
    refused = ""
    try:
        first.log_score("late", 9)
    except ValueError as problem:
        refused = str(problem)
    log.log_summary({"own": 1}, auto_summarize=False)
    return str(log._evaluate_call.id), refused


def broken() -> str:
    """An exception inside a prediction, and a run that is given up."""
    log = weave.EvaluationLogger(name="broken", model="hand model", dataset="hand data")
    with log.log_prediction(inputs={"q": 1}) as prediction:
        prediction.output = "fine"
    try:
        with log.log_prediction(inputs={"q": 2}):
            raise KeyError("inside")
    except KeyError:
        pass
    log.fail(RuntimeError("given up"))
    return str(log._evaluate_call.id)


scorers: list[Any] = [nothing, parts, word, Mapped(name="mapped")]
functions = weave.Evaluation(name="functions", dataset=ROWS, scorers=scorers, evaluation_name="naïve", trials=3)
prepared = weave.Evaluation(name="prepared", dataset=ROWS, scorers=[word], preprocess_model_input=ready)
with weave.attributes({"env": "test"}):
    ids = {"functions": run(functions, shout), "prepared": run(prepared, count)}
ids["interleaved"], refused = interleaved()
ids["broken"] = broken()
client.flush()
report(ids=plain(ids), refused=refused)
