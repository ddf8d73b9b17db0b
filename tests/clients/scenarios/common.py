"""Shared by the scenario scripts, which run inside an SDK's own environment."""

import json
import os
from typing import Any

import weave
from weave.trace.box import unbox
from weave.trace.weave_client import WeaveClient

PROJECT = os.environ["SCENARIO_PROJECT"]
FOLDER = os.environ["SCENARIO_FOLDER"]


def start() -> WeaveClient:
    """The client of a traced program."""
    return weave.init(PROJECT)


def plain(value: Any) -> Any:
    """The value as JSON types; what has none becomes its text."""
    value = unbox(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def report(**values: Any) -> None:
    """Hand what the SDK saw to the test."""
    print("RESULT " + json.dumps(plain(values)), flush=True)
