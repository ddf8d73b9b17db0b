"""Tool calls that are written as calls of Python functions with keywords: `f(city="Rome", days=3)`."""

import json
from typing import Literal

from heddle.inference.tools.calls import CharacterCallReader
from heddle.inference.tools.values import is_literal, read_literal

_CLOSES = {"(": ")", "[": "]", "{": "}"}
_State = Literal["name", "key or end", "key", "value", "done", "broken"]


class PythonicCall(CharacterCallReader):
    """Reads one such call; each argument becomes JSON when its value is complete."""

    def __init__(self) -> None:
        super().__init__("name")
        self._name = ""
        self._key = ""
        self._keys: set[str] = set()
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def name(self) -> str | None:
        return self._name or None

    def _feed(self, character: str) -> None:
        match self._state:
            case "name" if character == "(":
                self._name, self._held, self._state = self._held, "", "key or end"
                if not is_name(self._name):
                    self._name, self._state = "", "broken"
            case "name":
                self._held += character
                if not (is_name(self._held) or is_name(self._held.rstrip(".-") + "x")):
                    self._state = "broken"
            case "key or end" | "key" if not self._held and character.isspace():
                pass
            case "key or end" if character == ")" and not self._held:
                self._end()
            case "key or end" | "key" if character == "=":
                self._start_value()
            case "key or end" | "key":
                self._held += character
                if not self._held.strip().isidentifier():
                    self._state = "broken"
            case _:
                self._feed_value(character)

    def _start_value(self) -> None:
        self._key, self._held, self._state = self._held.strip(), "", "value"
        if not self._key or self._key in self._keys:
            self._state = "broken"

    def _feed_value(self, character: str) -> None:
        if self._quote:
            self._held += character
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif not self._open and character in ",)":
            self._end_value(character)
        else:
            self._held += character
            if character in "\"'":
                self._quote = character
            elif character in _CLOSES:
                self._open.append(_CLOSES[character])
            elif character in ")]}" and (not self._open or self._open.pop() != character):
                self._state = "broken"

    def _end_value(self, character: str) -> None:
        value = read_literal(self._held)
        if not is_literal(value):
            self._state = "broken"
            return
        key = json.dumps(self._key, ensure_ascii=False)
        self._written += f"{', ' if self._keys else '{'}{key}: {json.dumps(value, ensure_ascii=False)}"
        self._keys.add(self._key)
        self._held, self._state = "", "key or end"
        if character == ")":
            self._end()

    def _end(self) -> None:
        self._written += "}" if self._keys else "{}"
        self._state = "done"


def is_name(text: str) -> bool:
    """Whether a function may be called like this: words with dots or hyphens between them."""
    return all(part.isidentifier() for part in text.replace("-", "_").split("."))
