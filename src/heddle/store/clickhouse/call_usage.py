"""The usage that calls report, as their rows hold it."""

from collections.abc import Sequence
from typing import Any

from heddle.wire.calls import Usage

USAGE = "c.usage_model, c.usage_requests, c.usage_prompt, c.usage_completion, c.usage_total"
USAGE += ", c.usage_cache_read, c.usage_cache_creation"
"""The columns that `usage_of` takes."""
IS_SPAN = "isNotNull(c.otel_dump)"


def usage_of(values: Sequence[Sequence[Any]]) -> list[Usage]:
    """The usage of a call by model, from the arrays of its row."""
    return [Usage(*entry) for entry in zip(*values, strict=True)]
