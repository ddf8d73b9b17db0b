"""The name of what a JSON text holds, and the places in it."""

from typing import Any

Json = dict[str, Any]
"""A JSON object."""


def is_index(part: str) -> bool:
    """True for a part of a path that names a place in a list: `int` reads it."""
    return part.isascii() and part.isdigit() and len(part) < 10
