"""One tool call while it is being written, as a JSON object that is followed character by character."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

_State = Literal["start", "key or end", "key", "in key", "colon", "value", "in value", "after value", "done", "broken"]
_CLOSES = {"{": "}", "[": "]"}
_SPACE = frozenset(" \t\n\r")


class ObjectScanner:
    """Takes the characters of a JSON object one by one and knows its top-level members so far.

    Brackets, strings and separators are followed exactly; scalars and nested values are checked when they are complete.
    """

    def __init__(self) -> None:
        self.members: dict[str, str] = {}
        """Complete members: the name, and the value as it was written."""
        self.key = ""
        """The member whose value is being written."""
        self.value: list[str] = []
        """The characters of that value as far as it is written; empty between values."""
        self._state: _State = "start"
        self._key = ""
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    @property
    def done(self) -> bool:
        """The object is closed."""
        return self._state == "done"

    @property
    def broken(self) -> bool:
        """This will never be a JSON object."""
        return self._state == "broken"

    def feed(self, character: str) -> None:
        """The next character; none may follow once the object is done or broken."""
        match self._state:
            case "in key":
                self._feed_key(character)
            case "in value":
                self._feed_value(character)
            case _ if character in _SPACE:
                pass
            case "value":
                self.key, self._state = self._key, "in value"
                self._feed_value(character)
            case "key or end" if character == "}":
                self._state = "done"
            case "key or end" | "key" if character == '"':
                self._state, self._key = "in key", '"'
            case _:
                expected: dict[tuple[_State, str], _State] = {
                    ("start", "{"): "key or end",
                    ("colon", ":"): "value",
                    ("after value", ","): "key",
                    ("after value", "}"): "done",
                }
                self._state = expected.get((self._state, character), "broken")

    def _feed_key(self, character: str) -> None:
        self._key += character
        if self._in_text(character):
            return
        key = parsed(self._key)
        self._state = "colon" if isinstance(key, str) and key not in self.members else "broken"
        self._key = key if isinstance(key, str) else ""

    def _feed_value(self, character: str) -> None:
        if self._in_string:
            self.value.append(character)
            self._in_string = self._in_text(character)
            if not self._in_string and not self._open:
                self._close_value()
        elif character == '"':
            self.value.append(character)
            self._in_string = True
            if not self._open and len(self.value) > 1:
                self._state = "broken"
        elif character in _CLOSES:
            if not self._open and self.value:
                self._state = "broken"
            self.value.append(character)
            self._open.append(_CLOSES[character])
        elif self._open:
            self.value.append(character)
            if character in "]}":
                self._close_bracket(character)
        elif character in ",}" or character in _SPACE:
            self._close_value()
            if self._state == "after value":
                self.feed(character)
        else:
            self.value.append(character)

    def _close_bracket(self, character: str) -> None:
        if self._open.pop() != character:
            self._state = "broken"
        elif not self._open:
            self._close_value()

    def _close_value(self) -> None:
        text = "".join(self.value)
        if parsed(text) is INVALID:
            self._state = "broken"
            return
        self.members[self.key] = text
        self.key, self.value, self._state = "", [], "after value"

    def _in_text(self, character: str) -> bool:
        """Whether the string goes on after this character of it."""
        if self._escaped:
            self._escaped = False
            return True
        self._escaped = character == "\\"
        return character != '"'


INVALID = object()


def parsed(text: str) -> Any:
    """The JSON value of a text, or INVALID."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return INVALID


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


ARGUMENT_KEYS = ("arguments", "parameters")
"""Models mix them up; both are read."""


@dataclass(slots=True)
class GrowingCall:
    """Reads `{"name": ..., "arguments": {...}}`, or only the arguments when the name went before them."""

    given_name: str | None = None
    scanner: ObjectScanner = field(default_factory=ObjectScanner)
    index: int | None = None
    """Its number, once it has been given out."""
    hidden: bool = False
    """It is one call too many: read, but not given out."""
    shown: int = 0
    """Characters of the arguments that were given out."""
    _text: list[str] = field(default_factory=list)
    _read_name: str | None = None
    """The member `name`; empty when it is not a text."""

    def feed(self, text: str) -> int:
        """Read until the object ends or breaks; the number of characters read."""
        for number, character in enumerate(text):
            self.scanner.feed(character)
            self._text.append(character)
            if self.scanner.done or self.scanner.broken:
                return number + 1
        return len(text)

    def name(self) -> str | None:
        """The function's name, once it is known."""
        if self.given_name is None and "name" in self.scanner.members and self._read_name is None:
            name = parsed(self.scanner.members["name"])
            self._read_name = name if isinstance(name, str) else ""
        return self.given_name or self._read_name or None

    def take_arguments(self) -> str:
        """Arguments written since the last time; only objects are seen before they are complete."""
        text = self._arguments()
        new = "".join(text[self.shown :])
        self.shown += len(new)
        return new

    def has_arguments(self) -> bool:
        """Whether arguments can be given out already."""
        return bool(self._arguments())

    def is_call(self, needs_arguments: bool) -> bool:
        """Whether the finished object is a call; `needs_arguments`: one without them is not."""
        return self.name() is not None and (self.has_arguments() or not (needs_arguments or self._stated()))

    def _stated(self) -> bool:
        """The object has a member for arguments, though not one that can be used."""
        return any(key in self.scanner.members for key in ARGUMENT_KEYS)

    def _arguments(self) -> str | list[str]:
        if self.given_name is not None:
            return self._text
        scanner = self.scanner
        if scanner.key in ARGUMENT_KEYS:
            return scanner.value if scanner.value[:1] == ["{"] else ""
        for key in ARGUMENT_KEYS:
            if key in scanner.members:
                return _as_object_text(scanner.members[key])
        return ""


def _as_object_text(value: str) -> str:
    """Arguments as the text of an object: they may be null or an object within a string; empty for anything else."""
    if value.startswith("{"):
        return value
    inner = parsed(value)
    if inner is None:
        return "{}"
    return inner if isinstance(inner, str) and isinstance(parsed(inner), dict) else ""
