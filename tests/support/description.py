"""The OpenAPI description, made in the test's own process; test_service.py compares it with the server's."""

from functools import cache
from typing import Any

from heddle.app import served_routes
from heddle.http.application import describe_routes


@cache
def openapi() -> dict[str, Any]:
    """What `/openapi.json` answers."""
    return describe_routes(served_routes())
