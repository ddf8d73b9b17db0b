"""The routes that every process loads at its start: the writing and the reading of traces, and how the server is."""

from heddle.compat.langfuse import service as langfuse
from heddle.http.application import order_routes
from heddle.http.routing import Route
from heddle.trace import files, objects, refs, service, tables, threads
from heddle.trace.calls import read, write
from heddle.trace.feedback import routes as feedback
from heddle.trace.otel import routes as otel


def first_routes() -> list[Route]:
    """Those routes, in the order in which they are tried; all that are marked `@hot` or `@local` are among them."""
    modules = (write, read, otel, threads, feedback, objects, refs, tables, files, service, langfuse)
    return order_routes(module.router for module in modules)
