"""The routers of trace."""

from heddle.trace import (
    costs,
    dataset_sources,
    file_urls,
    files,
    objects,
    project,
    refs,
    registry,
    service,
    stats,
    tables,
    threads,
    usage,
)
from heddle.trace.agents import routes as agents
from heddle.trace.alerts import routes as alerts
from heddle.trace.calls import routes as calls
from heddle.trace.feedback import routes as feedback
from heddle.trace.otel import routes as otel

ROUTERS = tuple(
    module.router
    for module in (
        calls,
        otel,
        agents,
        usage,
        stats,
        threads,
        costs,
        feedback,
        files,
        file_urls,
        objects,
        registry,
        dataset_sources,
        refs,
        tables,
        project,
        alerts,
        service,
    )
)
