"""The routers of ui."""

from heddle.ui import pages, session
from heddle.ui.reads import (
    calls,
    calls_export,
    costs,
    evaluations,
    ops,
    overview,
    projects,
    settings,
    threads,
    trace,
    trajectories,
)
from heddle.ui.reads import inference as ui_inference
from heddle.ui.reads import training as ui_training

ROUTERS = tuple(
    module.router
    for module in (
        session,
        calls,
        calls_export,
        costs,
        ops,
        projects,
        settings,
        overview,
        ui_training,
        ui_inference,
        trajectories,
        threads,
        evaluations,
        trace,
        pages,
    )
)
