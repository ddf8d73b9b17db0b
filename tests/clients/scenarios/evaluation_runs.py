"""Evaluations run by the SDK, sync and async, with trials, a failing row and scorers of all kinds; a leaderboard."""

import asyncio
import os
from typing import Any

import weave
from common import plain, report, start
from weave.flow.leaderboard import Leaderboard, LeaderboardColumn, get_leaderboard_results

client = start()
ROWS = [
    {"id": "0", "question": "1+1", "expected": 2},
    {"id": "1", "question": "2+3", "expected": 5},
    {"id": "2", "question": "2*4", "expected": 0},
    {"id": "3", "question": "?", "expected": 1},
]
dataset = weave.Dataset(name="sums", rows=ROWS)


def value_of(question: str) -> int:
    """The value of an expression; raises ValueError when it is none."""
    left, sign, right = question
    return int(left) + int(right) if sign == "+" else int(left) * int(right)


@weave.op
def exact(expected: int, output: int) -> dict[str, bool]:
    """A function scorer."""
    return {"correct": expected == output}


class Distance(weave.Scorer):
    """A class scorer with a name of its own."""

    factor: float = 1.0

    @weave.op
    def score(self, *, expected: int, output: int) -> float:
        """How far off."""
        return abs(expected - output) * self.factor


class Weighted(weave.Scorer):
    """A scorer whose score is a field of itself, which is stored as a ref."""

    weight: float = 0.25

    @weave.op
    async def score(self, *, output: int) -> float:
        """Always the weight."""
        return self.weight


class Calculator(weave.Model):
    """A model that answers at once."""

    @weave.op
    def predict(self, question: str) -> int:
        """The value of the expression."""
        return value_of(question)


class SlowCalculator(weave.Model):
    """A model that answers later, and one more."""

    @weave.op
    async def predict(self, question: str) -> int:
        """The value of the expression and one."""
        await asyncio.sleep(0)
        return value_of(question) + 1


@weave.op
def plain_model(question: str) -> int:
    """A model that is a function."""
    return value_of(question) - 1


scorers: list[Any] = [exact, Distance(name="far-off", factor=0.5), Weighted()]
evaluation = weave.Evaluation(name="arithmetic", dataset=dataset, scorers=scorers, trials=2)
models = [Calculator(name="sync"), SlowCalculator(name="async"), plain_model]
summaries = []
for model in models:
    summaries.append(plain(asyncio.run(evaluation.evaluate(model))))
# The SDK finds scorer calls again only where no scorer summarises itself.
functions = weave.Evaluation(name="functions", dataset=dataset, scorers=[exact])
asyncio.run(functions.evaluate(models[0]))
client.flush()
(functions_run,) = functions.get_evaluate_calls()
runs = list(evaluation.get_evaluate_calls())

ref = evaluation.ref.uri()
board = Leaderboard(
    name="board",
    description="who is best",
    columns=[
        LeaderboardColumn(evaluation_object_ref=ref, scorer_name="exact", summary_metric_path="correct.true_fraction"),
        LeaderboardColumn(
            evaluation_object_ref=ref, scorer_name="far-off", summary_metric_path="mean", should_minimize=True
        ),
    ],
)
board_ref = weave.publish(board)
read_back = board_ref.get()
results = get_leaderboard_results(read_back, client)

body = {
    "project_id": os.environ["SCENARIO_PROJECT"],
    "evaluation_call_ids": [run.id for run in runs],
    "include_summary": True,
    "include_raw_data_rows": True,
    "resolve_row_refs": True,
    "sort_by": [{"field": "inputs.id", "direction": "asc"}],
}
compared = None
if hasattr(client.server, "eval_results_query") and os.environ.get("SCENARIO_ASKS") == "1":
    compared = client.server.eval_results_query(body).model_dump(by_alias=True)

report(
    ref=ref,
    summaries=summaries,
    runs=[{"id": run.id, "output": plain(run.output), "model": run.inputs["model"].ref.uri()} for run in runs],
    functions_trace=functions_run.trace_id,
    score_calls={
        trace: [[call.id, call.parent_id] for call in calls] for trace, calls in functions.get_score_calls().items()
    },
    scores=plain(functions.get_scores()),
    board=[
        {
            "model": result.model_ref,
            "columns": [[score.value for score in column.scores] for column in result.column_scores],
            "calls": [[score.evaluate_call_ref for score in column.scores] for column in result.column_scores],
        }
        for result in results
    ],
    columns=[column.scorer_name for column in read_back.columns],
    compared=compared,
)
