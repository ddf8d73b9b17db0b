"""The routers of ui."""

from heddle.ui import pages, session, sign_in
from heddle.ui.reads import (
    access,
    calls,
    calls_change,
    calls_export,
    errors,
    evaluations,
    example,
    overview,
    trace,
    values,
)
from heddle.ui.reads import inference as ui_inference
from heddle.ui.reads import training as ui_training

ROUTERS = tuple(
    module.router
    for module in (
        session,
        sign_in,
        calls,
        calls_change,
        calls_export,
        errors,
        access,
        overview,
        ui_training,
        ui_inference,
        evaluations,
        example,
        trace,
        values,
        pages,
    )
)
