"""How constrained JSON is written: whitespace, escapes, and whether objects are closed."""

from dataclasses import dataclass
from typing import Any

GAP = r" |\r?\n(?: {0,40}|\t{0,12})"
"""The whitespace that JSON may have between two tokens by default: one blank, or a line break and its indentation.

Free whitespace lets a model fill its budget with blanks; this accepts one-line and indented JSON alike and no more.
"""

ESCAPES = 'nrbtf\\"'
"""Escapes in strings. Without \\u one text has one spelling, so a key cannot hide behind another spelling."""


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The switches of a request that act on JSON."""

    gap: str | None = GAP
    """Regular expression of one gap, which may also be empty; None = compact, no whitespace anywhere."""
    close_objects: bool = False
    """Object schemas that do not speak of additional properties forbid them."""

    def options(self) -> dict[str, Any]:
        """The same as options of the compiler, for the key `x-guidance` of a schema."""
        if self.gap is None:
            return {
                "whitespace_flexible": False,
                "item_separator": ",",
                "key_separator": ":",
                "json_allowed_escapes": ESCAPES,
            }
        return {"whitespace_pattern": self.gap, "json_allowed_escapes": ESCAPES}
