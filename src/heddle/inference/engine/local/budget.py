"""How many prompt tokens one step computes: few enough that nobody waits long for the end of the step.

A token costs more the more tokens stand before it. What it costs is learned from the times of the steps, for each
doubling of the position.
"""

from collections.abc import Iterable, Sequence

from heddle.inference.engine.local.options import LocalOptions

SECONDS_ALONE = 0.5
SECONDS_BESIDE = 0.1
"""Longest step that is wanted when nothing, or something, is being generated."""
LEAST = 16
"""Tokens that the first in order always gets, however long they take."""
TELLING = 8
"""Steps with fewer prompt tokens say nothing about the cost of one."""
MEMORY = 0.7


class PrefillBudget:
    """The settings' limits in tokens, and limits in seconds on what they may take."""

    def __init__(self, options: LocalOptions) -> None:
        self._alone = options.max_prefill
        self._beside = options.max_prefill_beside
        self._costs: list[float] = []
        """Seconds of a token, by the length of its position in bits; the last one holds for all beyond."""

    def share(self, wanted: Sequence[tuple[int, int]], beside: bool) -> list[int]:
        """Tokens for each (position, tokens left), best first; `beside` = sequences that generate take part.

        The first gets at least half, the shortest ones share the rest, and what is left goes to anybody.
        """
        tokens, seconds = (self._beside, SECONDS_BESIDE) if beside else (self._alone, SECONDS_ALONE)
        purse = _Purse([self._cost(position) for position, _ in wanted], [left for _, left in wanted])
        others = sorted(range(1, len(wanted)), key=lambda place: wanted[place][1])
        purse.spend(others, tokens // 2, seconds / 2)
        purse.spend([0], tokens, seconds)
        purse.spend([0], min(tokens, sum(purse.given[1:]) + LEAST), float("inf"))
        purse.spend(others, tokens, seconds)
        return purse.given

    def observe(self, prompts: Iterable[tuple[int, int]], seconds: float) -> None:
        """Take the time of a step that computed (first position, tokens) of some prompts."""
        steps = list(prompts)
        tokens = sum(count for _, count in steps)
        if tokens < TELLING:
            return
        expected = sum(self._cost(position) * count for position, count in steps)
        for length in {position.bit_length() for position, _ in steps}:
            if length >= len(self._costs):
                first = self._costs[-1] if self._costs else seconds / tokens
                self._costs += [first] * (length + 1 - len(self._costs))
            known = self._costs[length]
            seen = known * seconds / expected if expected else known
            self._costs[length] = known * MEMORY + seen * (1.0 - MEMORY)

    def _cost(self, position: int) -> float:
        if not self._costs:
            return 0.0
        return self._costs[min(position.bit_length(), len(self._costs) - 1)]


class _Purse:
    """Tokens and seconds that are given out."""

    def __init__(self, costs: list[float], wanted: list[int]) -> None:
        self._costs = costs
        self._wanted = wanted
        self.given = [0] * len(wanted)
        self._tokens = 0
        self._seconds = 0.0

    def spend(self, places: Iterable[int], tokens: int, seconds: float) -> None:
        """Give in order, until so many tokens and seconds are given altogether."""
        for place in places:
            more = min(self._wanted[place] - self.given[place], tokens - self._tokens)
            cost = self._costs[place]
            if cost * more > seconds - self._seconds:
                more = int((seconds - self._seconds) / cost)
            if more > 0:
                self.given[place] += more
                self._tokens += more
                self._seconds += more * cost
