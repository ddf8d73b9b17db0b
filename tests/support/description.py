"""The OpenAPI description in the test's own process."""

import json
import tempfile
from functools import cache
from typing import Any

from heddle.app import create_app
from heddle.compat.description import read_description
from heddle.settings import Settings


@cache
def openapi() -> dict[str, Any]:
    """The description that is kept with the package, as `/openapi.json` answers it."""
    return dict(json.loads(read_description()))


def make_openapi() -> dict[str, Any]:
    """The same, made anew; takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(data=folder)).openapi()
