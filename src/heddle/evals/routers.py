"""The routers of evals."""

from heddle.evals import routes as evaluations
from heddle.evals.families import datasets as v2_datasets
from heddle.evals.families import evaluations as v2_evaluations
from heddle.evals.families import models as v2_models
from heddle.evals.families import ops as v2_ops
from heddle.evals.families import predictions as v2_predictions
from heddle.evals.families import runs as v2_runs
from heddle.evals.families import scorers as v2_scorers
from heddle.evals.families import scores as v2_scores
from heddle.evals.monitors import routes as monitors
from heddle.evals.queues import routes as annotation_queues
from heddle.evals.replay import routes as replays
from heddle.evals.results import routes as eval_results

ROUTERS = tuple(
    module.router
    for module in (
        annotation_queues,
        monitors,
        replays,
        v2_ops,
        v2_datasets,
        v2_scorers,
        v2_evaluations,
        v2_models,
        v2_runs,
        v2_predictions,
        v2_scores,
        eval_results,
        evaluations,
    )
)
