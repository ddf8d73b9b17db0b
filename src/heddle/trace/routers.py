"""The routers of trace."""

from heddle.trace import (
    audit,
    charts,
    costs,
    dataset_sources,
    files,
    metrics,
    objects,
    project,
    refs,
    registry,
    service,
    stats,
    tables,
    threads,
)
from heddle.trace.agents import routes as agents
from heddle.trace.alerts import routes as alerts
from heddle.trace.calls import read as calls_read
from heddle.trace.calls import write as calls_write
from heddle.trace.feedback import routes as feedback
from heddle.trace.otel import routes as otel

ROUTERS = tuple(
    module.router
    for module in (
        calls_write,
        calls_read,
        otel,
        agents,
        stats,
        charts,
        metrics,
        threads,
        costs,
        feedback,
        files,
        objects,
        registry,
        dataset_sources,
        refs,
        tables,
        project,
        alerts,
        audit,
        service,
    )
)
