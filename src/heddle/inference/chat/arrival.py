"""What is known about a completion request beside its body."""

from dataclasses import dataclass

from heddle.auth import Caller


@dataclass(frozen=True, slots=True)
class Arrival:
    """Who asks, for which project, and what came in headers."""

    caller: Caller
    project: str | None = None
    request_id: str | None = None
    priority: int | None = None
    size: int = 0
    """Bytes of the body; 0 where nobody counted."""
    traced: bool = False
    """True when the one who asks shows the completion in a trace already."""
