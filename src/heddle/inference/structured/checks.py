"""Checks of JSON Schemas and grammars: values of keywords, sizes, and numbers that a float keeps."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from heddle.inference.structured.guidance import refusal, shorten

EXACT_INTEGER = 2**53
"""Integers beyond are not exact in the floating point numbers that most JSON readers use."""

CONTROL = {chr(code) for code in range(32)} - set("\b\f\n\r\t")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Refused(Exception):
    """A schema that cannot be enforced, and where."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{shorten(place)}: {reason}")


def read_number(value: Any, place: str) -> int | float:
    """A finite number that is exact as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(place, "must be a number")
    if abs(value) > EXACT_INTEGER:
        raise Refused(place, "must be within ±9007199254740992 (2^53)")
    if 0 < abs(value) < 1e-9:
        raise Refused(place, "must be 0 or at least 1e-9 in size")
    return int(value) if float(value).is_integer() else value


def read_count(value: Any, place: str) -> int:
    """A number of characters, items or properties."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        raise Refused(place, "must be a whole number, at least 0")
    if value > 100_000:
        raise Refused(place, "must be at most 100000")
    return int(value)


def read_step(value: Any, place: str) -> int | float:
    """A divisor: whole, or a sum of halves, so that binary arithmetic of validators agrees with decimal text."""
    found = read_number(value, place)
    if found <= 0:
        raise Refused(place, "must be greater than 0")
    if isinstance(found, float) and not (found * 16).is_integer():
        raise Refused(
            place, "fractions must be halves, quarters, eighths or sixteenths: others have no exact binary form"
        )
    return found


def read_list(value: Any, place: str) -> list[Any]:
    """A list with at least one item."""
    if not isinstance(value, list) or not value:
        raise Refused(place, "must be a list with at least one item")
    return value


def read_object(value: Any, place: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise Refused(place, "must be an object")
    return value


def read_text(value: Any, place: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Refused(place, "must be a string")
    return value


def read_types(value: Any, place: str) -> str | list[str]:
    """One type name, or a list of them."""
    names = [value] if isinstance(value, str) else read_list(value, place)
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise Refused(place, f"{shorten(repr(name))} is not one of {', '.join(TYPES)}")
    return value if isinstance(value, str) else list(dict.fromkeys(names))


def read_constant(value: Any, place: str) -> Any:
    """A value of `enum` or `const` that can be written in exactly the ways a validator reads as equal."""
    if isinstance(value, str):
        if CONTROL.intersection(value):
            raise Refused(place, "control characters without a short escape cannot be generated")
        return value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        found = read_number(value, place)
        if isinstance(found, float) and abs(found) >= 1e15:
            raise Refused(place, "fractions must be below 1e15 in size")
        return found
    if isinstance(value, list):
        return [read_constant(item, f"{place}/{index}") for index, item in enumerate(value)]
    return {key: read_constant(item, f"{place}/{key}") for key, item in read_object(value, place).items()}


def read_constants(value: Any, place: str) -> list[Any]:
    """The values of `enum`."""
    return [read_constant(item, f"{place}/{index}") for index, item in enumerate(read_list(value, place))]


def read_names(value: Any, place: str) -> list[str]:
    """A list of names, each once."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Refused(place, "must be a list of names")
    return list(dict.fromkeys(value))


MAX_VALUE_BYTES = 256 * 1024
MAX_LEVELS = 200
"""Of lists and objects in each other, whatever they are."""

MAX_RULES = 5_000
"""Of a grammar."""
MAX_RULE_CHAIN = 400
"""Rules of a grammar that refer to each other in a row; the compiler follows them by recursion."""
MAX_REFERENCE_CHAIN = 150
"""`$ref`s of a schema that lead to each other in a row; the compiler needs more room for each."""


def check_size(value: Any, param: str) -> None:
    """Refuse a JSON value that is too large, nested too deeply, or not expressible as UTF-8."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise refusal(param, "is nested too deeply") from None
    _check_bytes(text, MAX_VALUE_BYTES, param)
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            item
            for part in level
            if isinstance(part, list | dict)
            for item in (part if isinstance(part, list) else part.values())
        ]
    if level:
        raise refusal(param, "is nested too deeply")


def check_text(text: str, limit: int, param: str) -> None:
    """Refuse a text that is empty, too long or not expressible as UTF-8."""
    _check_bytes(text, limit, param)
    if not text.strip():
        raise refusal(param, "is empty")


def _check_bytes(text: str, limit: int, param: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refusal(param, "contains an unpaired surrogate") from None
    if size > limit:
        raise refusal(param, f"is {size} bytes long; the limit is {limit}")


def chain_length(starts: Sequence[str], references: Mapping[str, Sequence[str]]) -> int:
    """How deep a walk goes that follows each reference once, as compilers do."""
    seen, path, deepest = set(starts), [iter(starts)], 0
    while path:
        name = next(path[-1], None)
        if name is None:
            path.pop()
            continue
        path.append(_unseen(references.get(name, ()), seen))
        deepest = max(deepest, len(path) - 1)
    return deepest


def _unseen(names: Sequence[str], seen: set[str]) -> Iterator[str]:
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


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
        _make_inclusive(built, "exclusiveMinimum", "minimum", 1)
        _make_inclusive(built, "exclusiveMaximum", "maximum", -1)
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
            decimals = max(max(-int(step.as_tuple().exponent), 0) for step in self._steps)
            _check_step(Decimal(math.lcm(*(int(step.scaleb(decimals)) for step in self._steps))).scaleb(-decimals))
            return
        for built in self._bounded:
            built["multipleOf"] = float(f"1e-{DECIMALS}")


def check_step(value: int | float, place: str) -> None:
    """Refuse a step whose remainders the compiler cannot compute."""
    try:
        _check_step(Decimal(str(value)))
    except Refused:
        raise Refused(place, f"must be at most {LARGEST_STEP} in units of its last decimal place") from None


def _check_step(step: Decimal) -> None:
    _sign, digits, exponent = step.normalize().as_tuple()
    size = int("".join(map(str, digits))) * 10 ** max(int(exponent), 0)
    if size > LARGEST_STEP:
        raise Refused("multipleOf", f"the least common multiple of its steps must be below {LARGEST_STEP}")


def _make_inclusive(built: dict[str, Any], exclusive: str, inclusive: str, direction: int) -> None:
    """Move the bound by the smallest step that floats of its size keep: 9.99999999999999999 would be read as 10."""
    if exclusive not in built:
        return
    bound = built.pop(exclusive)
    decimals = max(0, min(DECIMALS, DIGITS - len(str(int(abs(bound))))))
    moved = Decimal(str(bound)) + direction * Decimal(10) ** -decimals
    found = int(moved) if moved == int(moved) else float(moved)
    tighter = max if direction > 0 else min
    built[inclusive] = tighter(found, built[inclusive]) if inclusive in built else found
