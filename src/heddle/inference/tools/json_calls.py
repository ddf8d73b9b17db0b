"""Tool calls that are written as JSON, read while they grow."""

import json
from typing import Any, Literal

from heddle.inference.tools.calls import CallReader

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
                if self._open.pop() != character:
                    self._state = "broken"
                elif not self._open:
                    self._close_value()
        elif character in ",}" or character in _SPACE:
            self._close_value()
            if self._state == "after value":
                self.feed(character)
        else:
            self.value.append(character)

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


class JsonCall(CallReader):
    """Reads `{"name": ..., "arguments": {...}}`, or only the arguments when the name went before them."""

    def __init__(self, given_name: str | None = None) -> None:
        super().__init__()
        self._given_name = given_name
        self._scanner = ObjectScanner()
        self._text: list[str] = []
        self._read_name: str | None = None
        """The member `name`; empty when it is not a text."""

    @property
    def done(self) -> bool:
        """The object is closed."""
        return self._scanner.done

    @property
    def broken(self) -> bool:
        """This will never be a JSON object."""
        return self._scanner.broken

    def feed(self, text: str) -> int:
        """Read until the object ends or breaks; the number of characters read."""
        for number, character in enumerate(text):
            self._scanner.feed(character)
            self._text.append(character)
            if self.done or self.broken:
                return number + 1
        return len(text)

    def name(self) -> str | None:
        """The function's name, once it is known."""
        if self._given_name is None and "name" in self._scanner.members and self._read_name is None:
            name = parsed(self._scanner.members["name"])
            self._read_name = name if isinstance(name, str) else ""
        return self._given_name or self._read_name or None

    def is_call(self, needs_arguments: bool) -> bool:
        """Whether the finished object is a call; `needs_arguments`: one without them is not."""
        return self.name() is not None and (
            self.has_arguments() or not (needs_arguments or any(key in self._scanner.members for key in ARGUMENT_KEYS))
        )

    def written_arguments(self) -> str | list[str]:
        """The arguments as the model wrote them; only objects are seen before they are complete."""
        if self._given_name is not None:
            return self._text
        scanner = self._scanner
        if scanner.key in ARGUMENT_KEYS:
            return scanner.value if scanner.value[:1] == ["{"] else ""
        for key in ARGUMENT_KEYS:
            if key in scanner.members:
                value = scanner.members[key]
                if value.startswith("{"):
                    return value
                inner = parsed(value)
                if inner is None:
                    return "{}"
                return inner if isinstance(inner, str) and isinstance(parsed(inner), dict) else ""
        return ""
