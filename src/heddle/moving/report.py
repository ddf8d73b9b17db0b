"""What came over, what was there already, and what stayed behind, as people read it."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Counts per group; `left_out` says why something did not come over, with how often."""

    new: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, group: str, new: int, known: int = 0) -> None:
        """Count records that were stored now, and those that had been there."""
        if new or known:
            self.new[group] = self.new.get(group, 0) + new
            self.known[group] = self.known.get(group, 0) + known

    def leave(self, why: str, count: int = 1) -> None:
        """Count records that did not come over."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count

    def lines(self) -> Iterator[str]:
        """One line per group, then what was left out, then the notes."""
        for group in self.new:
            known = self.known[group]
            yield f"  {group}: {self.new[group]} stored" + (f", {known} there already" if known else "")
        if not self.new:
            yield "  nothing"
        for why, count in self.left_out.items():
            yield f"  left out: {count} {why}"
        yield from (f"  note: {note}" for note in self.notes)
