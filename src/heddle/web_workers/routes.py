"""What a worker serves itself: the writing and the reading of traces. It imports nothing else, which is half of it."""

from heddle.compat.langfuse import service as langfuse
from heddle.http.application import order_routes
from heddle.http.routing import Route
from heddle.trace import objects, refs, tables, threads
from heddle.trace.calls import read, write
from heddle.trace.feedback import routes as feedback
from heddle.trace.otel import routes as otel


def local_routes() -> list[Route]:
    """Every route that is marked `@local`, in the order in which they are tried."""
    modules = (write, read, otel, threads, feedback, objects, refs, tables, langfuse)
    return [route for route in order_routes(module.router for module in modules) if route.is_local]
