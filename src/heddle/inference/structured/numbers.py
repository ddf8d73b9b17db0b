"""Numbers whose text, read as a float, still meets what the schema says of them."""

import math
from decimal import Decimal
from typing import Any

from heddle.inference.structured.values import Refused

DIGITS = 15
"""Decimal digits that a float always keeps."""

DECIMALS = 9
"""Decimals of numbers that have bounds."""

MULTIPLES = 10**9
"""Size of multiples of a number when the schema sets no bound."""

LARGEST_STEP = 5000
"""Counted in units of its last decimal; the compiler keeps a state for each remainder."""

_COMBINING = ("allOf", "anyOf", "$ref")


class Numbers:
    """The numeric schemas of one document, finished when all are known."""

    def __init__(self) -> None:
        self._bounded: list[dict[str, Any]] = []
        self._steps: set[Decimal] = set()
        self._combined = False

    def add(self, built: dict[str, Any]) -> None:
        """Make bounds inclusive and bound multiples; `built` is one rebuilt schema."""
        self._combined = self._combined or any(keyword in built for keyword in _COMBINING)
        if "multipleOf" in built:
            self._steps.add(Decimal(str(built["multipleOf"])))
        kinds = built.get("type", "number")
        if "number" not in ([kinds] if isinstance(kinds, str) else kinds):
            return
        _inclusive(built, "exclusiveMinimum", "minimum", 1)
        _inclusive(built, "exclusiveMaximum", "maximum", -1)
        if "multipleOf" in built:
            built.setdefault("minimum", min(-MULTIPLES, built.get("maximum", 0)))
            built.setdefault("maximum", max(MULTIPLES, built["minimum"]))
        elif "minimum" in built or "maximum" in built:
            self._bounded.append(built)

    def finish(self) -> None:
        """Limit decimals, where that cannot meet a step in another part of the document.

        The compiler enforces the least common multiple of all steps that meet.
        """
        if self._combined and self._steps:
            _check_step(_common(self._steps))
            return
        for built in self._bounded:
            built["multipleOf"] = float(f"1e-{DECIMALS}")


def check_step(value: int | float, place: str) -> None:
    """Refuse a step whose remainders the compiler cannot compute."""
    try:
        _check_step(Decimal(str(value)))
    except Refused:
        raise Refused(place, f"must be at most {LARGEST_STEP} in units of its last decimal") from None


def _check_step(step: Decimal) -> None:
    _sign, digits, exponent = step.normalize().as_tuple()
    size = int("".join(map(str, digits))) * 10 ** max(int(exponent), 0)
    if size > LARGEST_STEP:
        raise Refused("multipleOf", f"the least common multiple of its steps has to stay below {LARGEST_STEP}")


def _common(steps: set[Decimal]) -> Decimal:
    """The least common multiple."""
    decimals = max(max(-int(step.as_tuple().exponent), 0) for step in steps)
    return Decimal(math.lcm(*(int(step.scaleb(decimals)) for step in steps))).scaleb(-decimals)


def _inclusive(built: dict[str, Any], exclusive: str, inclusive: str, direction: int) -> None:
    """Move the bound by the smallest step that floats of its size keep: 9.99999999999999999 would be read as 10."""
    if exclusive not in built:
        return
    bound = built.pop(exclusive)
    decimals = max(0, min(DECIMALS, DIGITS - len(str(int(abs(bound))))))
    moved = Decimal(str(bound)) + direction * Decimal(10) ** -decimals
    found = int(moved) if moved == int(moved) else float(moved)
    tighter = max if direction > 0 else min
    built[inclusive] = tighter(found, built[inclusive]) if inclusive in built else found
