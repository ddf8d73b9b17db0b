"""The routers of compat."""

from heddle.compat import description, graphql, logfire
from heddle.compat.langfuse import datasets, prompts, runs, scores, service, traces

ROUTERS = (
    *(module.router for module in (graphql, description, logfire, service, prompts, scores, traces, datasets, runs)),
    service.last_router,
)
