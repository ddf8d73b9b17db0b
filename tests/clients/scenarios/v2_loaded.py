"""Objects that were made over the /v2 routes, loaded by their refs and used."""

import os

import weave
from common import plain, report, start

client = start()
dataset = weave.ref(os.environ["DATASET"]).get()
evaluation = weave.ref(os.environ["EVALUATION"]).get()
scorer = weave.ref(os.environ["SCORER"]).get()
op = weave.ref(os.environ["OP"]).get()
report(
    dataset_class=type(dataset).__name__,
    dataset_name=dataset.name,
    rows=plain([dict(row) for row in dataset.rows]),
    evaluation_class=type(evaluation).__name__,
    evaluation_name=evaluation.name,
    trials=evaluation.trials,
    evaluation_rows=plain([dict(row) for row in evaluation.dataset.rows]),
    scorers=[item.name for item in evaluation.scorers],
    scorer_name=scorer.name,
    answer=op(20),
)
