"""One trace as a view of all its calls needs it: heads only, in the order of their starts."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from heddle.wire.calls import Usage

ROOT, ORPHAN = -1, -2
"""In place of a parent's position: there is none, or it is not in this trace."""


class Span(NamedTuple):
    """The head of one call; `op` is the name that people read, `kind` what the call says it is, if anything."""

    id: str
    op: str
    kind: str | None
    display_name: str | None
    started_at: int
    ended_at: int | None
    status: int
    usage: list[Usage]


@dataclass(slots=True)
class Outline:
    """Which calls a trace has: row numbers by start, the position of each one's parent, parents that are elsewhere.

    `total` and `ended` count all live calls of the trace, also those beyond the limit that was given; `kinds` is what
    the readers of the spans have learnt about ops.
    """

    project: str
    rids: "array[int]" = field(default_factory=lambda: array("q"))
    parents: "array[int]" = field(default_factory=lambda: array("q"))
    orphans: dict[int, str] = field(default_factory=dict)
    selected: int = -1
    total: int = 0
    ended: int = 0
    kinds: dict[int, str | None] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Another text whenever calls came, ended or went."""
        return f"{self.total}.{self.ended}"
