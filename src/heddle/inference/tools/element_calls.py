"""Tool calls whose arguments stand between tags, one after another, as plain text."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from heddle.inference.detokenizer import overlap
from heddle.inference.tools.calls import CallReader, find_types, property_schema, read_value
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class ElementMarks:
    """The tags of one syntax: `<name>NAME<name_end>`, `<key>KEY<key_end><value>VALUE<value_end>` each, `<close>`."""

    name: str
    """Goes before the function's name; empty when the name follows the mark of the call at once."""
    name_end: str
    key: str
    key_end: str
    value: str
    """Goes before a value; empty when a value follows its key at once."""
    value_end: str
    close: str
    padding: str = ""
    """White space around each value that is no part of it."""
    line: str = ""
    """What goes between the elements."""


_NAME = re.compile(r"[^\s<>{}\[\]\"'=]{1,256}")
_State = Literal["open", "name", "between", "key", "value mark", "value", "after value", "done", "broken"]


class ElementCall(CallReader):
    """Reads the elements of one call, and writes their values as a JSON object by the types of the schema."""

    def __init__(self, marks: ElementMarks, schemas: Mapping[str, Json | None]) -> None:
        """`schemas`: the parameters of each function."""
        super().__init__("open" if marks.name else "name")
        self._marks = marks
        self._schemas = schemas
        self._name: str | None = None
        self._keys: set[str] = set()
        self._types: frozenset[str] = frozenset()
        self._value = ""
        self._told = 0
        """Characters of the value that are written already, where it can be nothing but a text."""

    def name(self) -> str | None:
        return self._name

    def _feed(self, character: str) -> None:
        marks = self._marks
        match self._state:
            case "open":
                self._match(character, {marks.name: "name"})
            case "name":
                self._feed_name(character)
            case "between":
                if self._held or not character.isspace():
                    self._match(character, {marks.key: "key", marks.close: "done"})
            case "key":
                self._feed_key(character)
            case "value mark":
                if self._held or not character.isspace():
                    self._match(character, {marks.value: "value"})
            case "value":
                self._feed_value(character)
            case _:
                self._feed_after_value(character)
        if self._state == "done":
            self._write("}" if self._keys else "{}")

    def _match(self, character: str, expected: Mapping[str, _State]) -> None:
        self._held += character
        if self._held in expected:
            self._state, self._held = expected[self._held], ""
        elif not any(mark.startswith(self._held) for mark in expected):
            self._state = "broken"

    def _feed_name(self, character: str) -> None:
        """A name that no tag ends is ended by white space or by the next tag."""
        end = self._marks.name_end
        self._held += character
        if end.strip():
            name, ended = self._held.removesuffix(end), self._held.endswith(end)
        else:
            name, ended = self._held[:-1], character.isspace() or character == "<"
            if not name and character.isspace():
                self._held, ended = "", False
        if ended:
            if not _NAME.fullmatch(name):
                self._state = "broken"
                return
            self._name, self._state = name, "between"
            self._held = "<" if character == "<" else ""
        elif (begin := self._held[: len(self._held) - overlap(self._held, end)]) and not _NAME.fullmatch(begin):
            self._state = "broken"

    def _feed_key(self, character: str) -> None:
        self._held += character
        if not self._held.endswith(self._marks.key_end):
            if len(self._held) > 512 or "\n" in self._held:
                self._state = "broken"
            return
        key = self._held.removesuffix(self._marks.key_end).strip()
        self._held = ""
        if not key or key in self._keys:
            self._state = "broken"
            return
        parameters = self._schemas.get(self._name or "")
        self._types = find_types(property_schema(parameters, key), parameters)
        self._write(f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._keys.add(key)
        self._value, self._told = "", 0
        if self._is_text:
            self._write('"')
        self._state = "value mark" if self._marks.value else "value"

    @property
    def _is_text(self) -> bool:
        return self._types == {"string"}

    def _feed_value(self, character: str) -> None:
        self._value += character
        if self._value.endswith(self._marks.value_end):
            self._state, self._held = "after value", ""
        elif self._is_text:
            self._tell(len(self._value) - self._length_of_possible_end())

    def _length_of_possible_end(self) -> int:
        """How many characters at the end of the value may belong to its end tag and the padding before it."""
        marks = self._marks
        tail = self._value[-len(marks.value_end) - len(marks.padding) :]
        held = overlap(tail, marks.value_end)
        before = tail[: len(tail) - held]
        return held + (len(marks.padding) if marks.padding and before.endswith(marks.padding) else 0)

    def _feed_after_value(self, character: str) -> None:
        """An end tag ends a value only where the next tag follows; otherwise it is a part of the text."""
        self._held += character
        tag = self._held.lstrip()
        followers: dict[str, _State] = {self._marks.key: "key", self._marks.close: "done"}
        if tag in followers:
            self._end_value()
            self._state, self._held = followers[tag], ""
        elif not any(mark.startswith(tag) for mark in followers):
            self._value += self._held
            self._held, self._state = "", "value"
            if self._value.endswith(self._marks.value_end):
                self._state = "after value"

    def _end_value(self) -> None:
        marks = self._marks
        text = self._value.removesuffix(marks.value_end).removesuffix(marks.padding)
        if self._is_text:
            self._value = text
            self._tell(len(text))
            self._write('"')
            return
        value = read_value(text.removeprefix(marks.padding), self._types)
        self._write(json.dumps(value, ensure_ascii=False))

    def _tell(self, length: int) -> None:
        """Write the text up to this length, without the padding before it."""
        if not self._told and self._marks.padding and self._value.startswith(self._marks.padding):
            self._told = len(self._marks.padding)
        if length > self._told:
            self._write(json.dumps(self._value[self._told : length], ensure_ascii=False)[1:-1])
            self._told = length

    def _write(self, text: str) -> None:
        self._written += text
