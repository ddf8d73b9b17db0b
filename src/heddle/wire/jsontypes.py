"""The name of what a JSON text holds."""

from typing import Any

Json = dict[str, Any]
"""A JSON object."""
