"""Checks of the values that keywords carry; each failure names the place in the schema."""

import math
from typing import Any

from heddle.errors import InvalidRequest
from heddle.inference.structured.guidance import shortened

EXACT_INTEGER = 2**53
"""Integers beyond are not exact in the floating point numbers that most JSON readers use."""

CONTROL = {chr(code) for code in range(32)} - set("\b\f\n\r\t")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Refused(Exception):
    """A schema that cannot be enforced, and where."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{shortened(place)}: {reason}")


def refusal(param: str, reason: object) -> InvalidRequest:
    """The 400 that names the field of the request."""
    return InvalidRequest(f"{param}: {reason}", param=param)


def number(value: Any, place: str) -> int | float:
    """A finite number that is exact as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(place, "must be a number")
    if abs(value) > EXACT_INTEGER:
        raise Refused(place, "must lie within ±9007199254740992 (2^53)")
    if 0 < abs(value) < 1e-9:
        raise Refused(place, "must be 0 or at least 1e-9 in size")
    return int(value) if float(value).is_integer() else value


def count(value: Any, place: str) -> int:
    """A number of characters, items or properties."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        raise Refused(place, "must be a whole number, at least 0")
    if value > 100_000:
        raise Refused(place, "must be at most 100000")
    return int(value)


def step(value: Any, place: str) -> int | float:
    """A divisor: whole, or a sum of halves, so that binary arithmetic of validators agrees with decimal text."""
    found = number(value, place)
    if found <= 0:
        raise Refused(place, "must be greater than 0")
    if isinstance(found, float) and not (found * 16).is_integer():
        raise Refused(
            place, "fractions must be halves, quarters, eighths or sixteenths: others have no exact binary form"
        )
    return found


def listed(value: Any, place: str) -> list[Any]:
    """A list with at least one item."""
    if not isinstance(value, list) or not value:
        raise Refused(place, "must be a list with at least one item")
    return value


def mapping(value: Any, place: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise Refused(place, "must be an object")
    return value


def text(value: Any, place: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Refused(place, "must be a string")
    return value


def types(value: Any, place: str) -> str | list[str]:
    """One type name, or a list of them."""
    names = [value] if isinstance(value, str) else listed(value, place)
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise Refused(place, f"{shortened(repr(name))} is not one of {', '.join(TYPES)}")
    return value if isinstance(value, str) else list(dict.fromkeys(names))


def constant(value: Any, place: str) -> Any:
    """A value of `enum` or `const` that can be written in exactly the ways a validator reads as equal."""
    if isinstance(value, str):
        if CONTROL.intersection(value):
            raise Refused(place, "control characters without a short escape cannot be generated")
        return value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        found = number(value, place)
        if isinstance(found, float) and abs(found) >= 1e15:
            raise Refused(place, "fractions must be below 1e15 in size")
        return found
    if isinstance(value, list):
        return [constant(item, f"{place}/{index}") for index, item in enumerate(value)]
    return {key: constant(item, f"{place}/{key}") for key, item in mapping(value, place).items()}


def constants(value: Any, place: str) -> list[Any]:
    """The values of `enum`."""
    return [constant(item, f"{place}/{index}") for index, item in enumerate(listed(value, place))]


def names(value: Any, place: str) -> list[str]:
    """A list of names, each once."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Refused(place, "must be a list of names")
    return list(dict.fromkeys(value))
