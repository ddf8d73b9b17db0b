"""Evaluations logged by hand: plainly, in context managers with calls inside, and from several threads."""

import threading
from typing import Any

import weave
from common import plain, report, start

client = start()
EVALUATE = f"weave:///{client.entity}/{client.project}/op/Evaluation.evaluate:*"


@weave.op
def think(question: str) -> str:
    """A call inside a prediction."""
    return question.upper()


@weave.op
def judge(text: str) -> float:
    """A call inside a score."""
    return len(text) / 10


def plainly() -> None:
    """Predictions and scores one after the other, the second row twice."""
    log = weave.EvaluationLogger(name="plain", model="hand-model", dataset="hand-data", scorers=["correct", "length"])
    for question, output, correct in (("a", "A", True), ("b", "x", False), ("b", "B", True)):
        prediction = log.log_prediction(inputs={"question": question}, output=output)
        prediction.log_score("correct", correct)
        prediction.log_score("length", len(output))
        prediction.finish()
    log.log_summary({"note": "by hand"})


def in_contexts() -> None:
    """What runs inside becomes part of the trace; scores with several parts, and none."""
    log = weave.EvaluationLogger(name="contexts", model={"name": "ctx-model", "temperature": 0.5}, dataset="hand-data")
    for question in ("a", "b"):
        with log.log_prediction(inputs={"question": question}) as prediction:
            prediction.output = think(question)
            with prediction.log_score("quality") as score:
                score.value = judge(prediction.output * (2 if question == "b" else 1))
            prediction.log_score("parts", {"ok": question == "a", "share": 0.5})
            prediction.log_score("skipped", None)
    log.log_summary()


def in_threads() -> None:
    """One logger, one thread for each prediction."""
    log = weave.EvaluationLogger(name="threads", model="thread-model", dataset="hand-data")

    def one(number: int) -> None:
        prediction = log.log_prediction(inputs={"number": number}, output={"square": number * number})
        prediction.log_score("even", number % 2 == 0)
        prediction.finish()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.log_summary()


for write in (plainly, in_contexts, in_threads):
    write()
client.flush()
runs: list[Any] = list(client.get_calls(filter={"op_names": [EVALUATE]}))
report(
    runs=[{"id": run.id, "name": run.display_name, "output": plain(run.output)} for run in runs],
    evaluations=sorted(item.name for item in client.get_evaluations()),
)
