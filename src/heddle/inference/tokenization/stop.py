"""Stop strings found in a growing text."""

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings and holds back text that may still become one.

    The match that is complete earliest wins; of two that are complete at the same character, the longer one. What
    comes out does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        """`stops` are non-empty; `include_in_output`: the text ends after the match, not before it."""
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include_in_output
        self._tail = ""
        self._searched = 0
        """Length of the part of the tail in which no match may end any more."""
        self._shown = 0
        """Length of the part of the tail that was given out already."""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text; gives what may be shown now and the stop string that ended the text, if one did."""
        if self.matched is not None:
            return "", self.matched
        self._tail += text
        found = min((match for stop in self._stops if (match := self._find(stop))), default=None)
        if found is None:
            return self._advance(), None
        end, start, self.matched = found
        shown = self._tail[self._shown : end if self._include else start]
        self._tail = ""
        return shown, self.matched

    def skip(self, text: str) -> str:
        """Add text in which no stop string may end (below `min_tokens`), though one may begin; as `push`."""
        if self.matched is not None:
            return ""
        self._tail += text
        return self._advance()

    def flush(self) -> str:
        """What is still held back, at the end of the text."""
        shown, self._tail = self._tail[self._shown :], ""
        self._searched = self._shown = 0
        return shown

    def _find(self, stop: str) -> tuple[int, int, str] | None:
        start = self._tail.find(stop, max(0, self._searched - len(stop) + 1))
        return (start + len(stop), start, stop) if start >= 0 else None

    def _advance(self) -> str:
        """Keep the longest end of the text that begins a stop string; show the rest (all of it when included)."""
        keep = max((overlap(self._tail, stop) for stop in self._stops), default=0)
        cut = len(self._tail) - keep
        shown = self._tail[self._shown :] if self._include else self._tail[self._shown : cut]
        self._tail = self._tail[cut:]
        self._searched = keep
        self._shown = keep if self._include else 0
        return shown


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that is a true beginning of the mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
