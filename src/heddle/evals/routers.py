"""The routers of evals."""

from heddle.evals import annotation_queues, monitors, routes
from heddle.evals.replay import routes as replays
from heddle.evals.results import query as results
from heddle.evals.v2 import objects, predictions, runs

ROUTERS = (
    annotation_queues.router,
    monitors.router,
    replays.router,
    *objects.ROUTERS,
    runs.router,
    predictions.predictions_router,
    predictions.scores_router,
    results.router,
    routes.router,
)
