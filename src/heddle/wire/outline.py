"""One trace as a view of all its calls needs it: heads only, in the order of their starts."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from heddle.wire.calls import Usage

ROOT, ORPHAN = -1, -2
"""In place of a parent's position: there is none, or it is not in this trace."""


class Span(NamedTuple):
    """The head of one call; `op` is the name that people read."""

    id: str
    op: str
    kind: str
    display_name: str | None
    started_at: int
    ended_at: int | None
    status: int
    usage: list[Usage]


Head = tuple[int, str, str | None, int | None, int]
"""Of a call: its row number, id, parent's id, parent's row number, start."""


@dataclass(slots=True)
class Outline:
    """Which calls a trace has: row numbers and starts, the position of each one's parent, parents that are elsewhere.

    `total` and `ended` count all live calls of the trace, also those beyond the limit that was given.
    """

    project: str
    trace_id: str
    rids: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    parents: "array[int]" = field(default_factory=lambda: array("q"))
    orphans: dict[int, str] = field(default_factory=dict)
    selected: int = -1
    total: int = 0
    ended: int = 0

    def fill(self, heads: Iterable[Head], selected: str | None) -> None:
        """Take the calls in, which come in their order; `selected` is the id of the one whose position is wanted."""
        positions: dict[int, int] = {}
        above: list[int | None] = []
        for position, (rid, call_id, parent_id, parent_rid, started_at) in enumerate(heads):
            self.rids.append(rid)
            self.starts.append(started_at)
            positions[rid] = position
            above.append(parent_rid)
            self.parents.append(ROOT if parent_id is None else ORPHAN)
            if parent_id is not None:
                self.orphans[position] = parent_id
            if call_id == selected:
                self.selected = position
        for position, parent_rid in enumerate(above):
            if parent_rid is not None and (found := positions.get(parent_rid)) is not None and found != position:
                self.parents[position] = found
                self.orphans.pop(position, None)

    @property
    def version(self) -> str:
        """Another text whenever calls came, ended or went."""
        return f"{self.total}.{self.ended}"
