"""The OpenAPI description in the test's own process."""

import json
from functools import cache
from typing import Any

from heddle.app import served_routes
from heddle.compat.description import read_description
from heddle.http.description import describe_routes


@cache
def openapi() -> dict[str, Any]:
    """The description that is kept with the package, as `/openapi.json` answers it."""
    return dict(json.loads(read_description()))


def make_openapi() -> dict[str, Any]:
    """The same, made anew; takes seconds."""
    return describe_routes(served_routes())
