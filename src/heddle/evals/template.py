"""Templates with `{name}` places, by Python's format rules as far as they are safe.

A place is a name and keys (`{row[answer][0]}`), with a conversion or a layout (`{price:.2f}`) where wanted. Attributes
are never reached, and a layout cannot ask for more than a few hundred characters.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from heddle.errors import InvalidRequest

_PLACE = re.compile(r"(\w+)((?:\[[^\[\]]+\])*)")
_LAYOUT = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?\d{0,3}[,_]?(?:\.\d{1,2})?[bcdeEfFgGnosxX%]?", re.DOTALL)
_CONVERSIONS: Mapping[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}
_KEPT = ("role", "type")
_SHOWN = 100
LONGEST_TEXT = 8_000_000
"""Characters that all places of a template may come to."""

Part = tuple[str, str | None, tuple[str, ...], str, str | None]
"""Text before a place; the place's name (None: no place), keys, layout, conversion."""


@lru_cache(maxsize=1024)
def parse(template: str) -> tuple[Part, ...]:
    """The parts of a template; raises ValueError for a place that is more than it may be."""
    made: list[Part] = []
    for text, place, layout, conversion in string.Formatter().parse(template):
        if place is None:
            made.append((text, None, (), "", None))
            continue
        found = _PLACE.fullmatch(place)
        if found is None:
            raise ValueError(f"{{{place[:_SHOWN]}}} is no name of a column")
        if layout and _LAYOUT.fullmatch(layout) is None:
            raise ValueError(f"{{{place[:_SHOWN]}}} has a layout that is not allowed: {layout[:_SHOWN]!r}")
        if conversion and conversion not in _CONVERSIONS:
            raise ValueError(f"{{{place[:_SHOWN]}}} has an unknown conversion {conversion[:_SHOWN]!r}")
        keys = tuple(re.findall(r"\[([^\[\]]+)\]", found[2]))
        made.append((text, found[1], keys, layout or "", conversion or None))
    return tuple(made)


def names(template: Any) -> set[str]:
    """The names that the texts of a template use; raises ValueError for a place that is more than it may be."""
    if isinstance(template, str):
        return {name for _, name, *_ in parse(template) if name is not None}
    if isinstance(template, Mapping):
        return {name for key, item in template.items() if key not in _KEPT for name in names(item)}
    if isinstance(template, Sequence):
        return {name for item in template for name in names(item)}
    return set()


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with every text in it filled; roles and types stay. Raises InvalidRequest for what is not there."""
    return _Filling(values).filled(template)


class _Filling:
    """The filling of one template; many places, each with all of a large row, are more than memory has."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._room = LONGEST_TEXT

    def filled(self, template: Any) -> Any:
        if isinstance(template, str):
            return self._text(template)
        if isinstance(template, Mapping):
            return {key: item if key in _KEPT else self.filled(item) for key, item in template.items()}
        if isinstance(template, list):
            return [self.filled(item) for item in template]
        return template

    def _text(self, template: str) -> str:
        made = []
        for text, name, keys, layout, conversion in _parts(template):
            made.append(text)
            if name is not None:
                made.append(_shown(_inside(self._values, (name, *keys)), layout, conversion))
                self._room -= len(made[-1])
            if self._room < 0:
                raise InvalidRequest(f"The places of the template come to more than {LONGEST_TEXT} characters")
        return "".join(made)


def _parts(template: str) -> tuple[Part, ...]:
    try:
        return parse(template)
    except ValueError as error:
        raise InvalidRequest(f"The template cannot be filled in: {error}") from None


def _inside(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and len(key) < 10 and int(key) < len(value):
            value = value[int(key)]
        else:
            raise InvalidRequest(f"The template names [{key[:_SHOWN]}], which the row does not have")
    return value


def _shown(value: Any, layout: str, conversion: str | None) -> str:
    value = _CONVERSIONS[conversion](value) if conversion else value
    if not layout:
        return value if isinstance(value, str) else str(value)
    plain = value if isinstance(value, str | int | float) else str(value)
    try:
        return format(plain, layout)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"The template's layout {layout[:_SHOWN]!r} does not fit its value: {error}") from None
