"""The OpenAPI description, made in the test's own process; test_service.py compares it with the server's."""

import tempfile
from functools import cache
from typing import Any

from heddle.app import create_app
from heddle.settings import Settings


@cache
def openapi() -> dict[str, Any]:
    """What `/openapi.json` answers."""
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(data=folder)).openapi()
