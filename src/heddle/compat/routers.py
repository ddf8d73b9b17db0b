"""The routers of compat."""

from heddle.compat import graphql, pages

ROUTERS = tuple(module.router for module in (graphql, pages))
