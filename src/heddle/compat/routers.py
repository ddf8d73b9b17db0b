"""The routers of compat."""

from heddle.compat import graphql, pages
from heddle.compat.langfuse import datasets, ingestion, prompts, runs, scores, service, traces

ROUTERS = (
    *(module.router for module in (graphql, pages, service, prompts, scores, ingestion, traces, datasets, runs)),
    service.last_router,
)
