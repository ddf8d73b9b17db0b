"""One rendering of a chat template, apart from the library that does it."""

from dataclasses import dataclass, field
from typing import Any


class TemplateFailed(Exception):
    """A template that cannot be read or cannot render these messages; the text is for the client's user."""


def too_long(max_chars: int) -> str:
    """What is said of a text that is longer than may come out."""
    return f"the chat template writes more than {max_chars} characters"


@dataclass(frozen=True, slots=True)
class RenderJob:
    """One rendering; everything in it can be written as JSON."""

    source: str
    messages: list[dict[str, Any]]
    """From `template_messages`."""
    variables: dict[str, Any] = field(default_factory=dict)
    max_chars: int = 1 << 24
    """Longest text that may come out."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, and the names that the template takes from outside."""

    text: str
    names: frozenset[str]
