"""What a convention does: it reads the attributes of its family into the one form of `AgentSpan`."""

from typing import Protocol

from heddle.trace.otel.span import OtelSpan
from heddle.wire.spans import AgentSpan


class Convention(Protocol):
    """One family of instrumentation libraries.

    A span may follow several; they are asked in order, and each fills only what is still empty.
    """

    name: str
    keys: frozenset[str]
    """Attributes that belong to the family: they are no custom attributes."""
    prefixes: tuple[str, ...]
    """Beginnings of numbered attributes of the family."""
    shared: frozenset[str]
    """Attributes of others that it reads too."""

    def recognises(self, span: OtelSpan) -> bool:
        """True when the span holds anything of this family; cheap, it is asked for every span."""
        ...

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """Fill names, models, numbers: every scalar, so that ingest needs no more than this."""
        ...

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Fill messages, system instructions, tool definitions, arguments and results, reasoning."""
        ...
