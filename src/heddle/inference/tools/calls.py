"""Tool calls, read while they are written: what every syntax has in common, calls in JSON and in Python, and values."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from heddle.wire.jsontypes import Json

_NAMES = {"object": dict, "array": list, "string": str, "integer": int, "number": float, "boolean": bool}
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_MAX_DEPTH = 8


def property_schema(parameters: Json | None, name: str) -> Any:
    """The schema of one argument; None where the parameters do not name it."""
    properties = (parameters or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def find_types(schema: Any, root: Json | None = None, depth: int = 0) -> frozenset[str]:
    """The types that a schema allows, as far as they can be told; empty when it does not tell."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return frozenset()
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset((stated,))
    if isinstance(stated, list):
        return frozenset(item for item in stated if isinstance(item, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    target = find_target(root, schema.get("$ref"))
    if target is not None:
        return find_types(target, root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            found = [find_types(branch, root, depth + 1) for branch in branches]
            return frozenset().union(*found) if all(found) or keyword == "allOf" else frozenset()
    return frozenset()


def find_target(root: Json | None, reference: Any) -> Any:
    """What a reference within the schema leads to; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(name for name, kind in _NAMES.items() if type(value) is kind)


def read_value(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for: the text itself where the types allow nothing else or the text fits no type.

    Words and literals of Python are read as well as JSON, since models and their templates write both.
    """
    if types == {"string"}:
        return text
    value = read_literal(text)
    if value is NO_VALUE:
        return text
    found = _type_of(value)
    if found == "string":
        return text
    if found == "number" and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    fits = not types or found in types or (found == "integer" and "number" in types)
    return value if fits or "string" not in types else text


NO_VALUE = object()


def parse_json(text: str) -> Any:
    """The value of a JSON text; NO_VALUE when it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NO_VALUE


def read_literal(text: str) -> Any:
    """The value of a JSON text or a Python literal; NO_VALUE when it is neither."""
    plain = text.strip()
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if (value := parse_json(plain)) is not NO_VALUE:
        return value
    try:
        return json.loads(json.dumps(ast.literal_eval(plain), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_VALUE


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class CallReader(ABC):
    """One call while it is written, character by character: its name, and its arguments as JSON text."""

    def __init__(self, state: str) -> None:
        """`state` is where reading begins; a subclass ends it in "done" or "broken"."""
        self.index: int | None = None
        """Its number, once it has been given out."""
        self.hidden = False
        """It is one call too many: read, but not given out."""
        self.shown = 0
        """Characters of the arguments that were given out."""
        self._state = state
        self._held = ""
        """What is read of the part at hand."""
        self._written: list[str] = []

    @property
    def done(self) -> bool:
        """The call is written to its end."""
        return self._state == "done"

    @property
    def broken(self) -> bool:
        """This will never be a call."""
        return self._state == "broken"

    def feed(self, text: str) -> int:
        """Read until the call ends or breaks; the number of characters read, however the text is cut."""
        for number, character in enumerate(text):
            self._feed(character)
            if self.done or self.broken:
                return number + 1
        return len(text)

    @abstractmethod
    def _feed(self, character: str) -> None:
        """Read one more character."""

    @abstractmethod
    def name(self) -> str | None:
        """The function's name, once it is known."""

    def written_arguments(self) -> Sequence[str]:
        """The JSON text of the arguments so far, as one text or as its pieces; it only ever grows."""
        return self._written

    def is_call(self, needs_arguments: bool) -> bool:  # noqa: ARG002 (by its syntax alone)
        """Whether what is written to its end is a call; `needs_arguments`: one without them is not."""
        return self.done

    def take_arguments(self) -> str:
        """Arguments written since the last time."""
        new = "".join(self.written_arguments()[self.shown :])
        self.shown += len(new)
        return new

    def has_arguments(self) -> bool:
        """Whether arguments can be given out already."""
        return bool(self.written_arguments())


_JSON_CLOSES = {"{": "}", "[": "]"}
_SPACE = frozenset(" \t\n\r")
ARGUMENT_KEYS = ("arguments", "parameters")
"""Models mix them up; both are read."""
_AFTER = {
    ("start", "{"): "key or end",
    ("key or end", "}"): "done",
    ("colon", ":"): "value",
    ("after value", ","): "key",
    ("after value", "}"): "done",
}


class JsonCall(CallReader):
    """Reads `{"name": ..., "arguments": {...}}`, or only the arguments when the name went before them.

    Brackets, strings and separators are followed exactly; scalars and nested values are checked when they are complete.
    """

    def __init__(self, given_name: str | None = None) -> None:
        super().__init__("start")
        self._given_name = given_name
        self._read_name: str | None = None
        """The member `name`; empty when it is not a text."""
        self._members: dict[str, str] = {}
        """Complete members: the name, and the value as it was written."""
        self._key = ""
        """The member whose value is being written."""
        self._value: list[str] = []
        """The characters of that value as far as it is written; empty between values."""
        self._open: list[str] = []
        self._in_string = self._escaped = False

    def name(self) -> str | None:
        if self._given_name is None and "name" in self._members and self._read_name is None:
            name = parse_json(self._members["name"])
            self._read_name = name if isinstance(name, str) else ""
        return self._given_name or self._read_name or None

    def is_call(self, needs_arguments: bool) -> bool:
        return self.name() is not None and (
            self.has_arguments() or not (needs_arguments or any(key in self._members for key in ARGUMENT_KEYS))
        )

    def written_arguments(self) -> Sequence[str]:
        """As the model wrote them; only objects are seen before they are complete."""
        if self._given_name is not None:
            return self._written
        if self._key in ARGUMENT_KEYS:
            return self._value if self._value[:1] == ["{"] else ""
        value = next((self._members[key] for key in ARGUMENT_KEYS if key in self._members), "")
        if not value or value.startswith("{"):
            return value
        inner = parse_json(value)
        if inner is None:
            return "{}"
        return inner if isinstance(inner, str) and isinstance(parse_json(inner), dict) else ""

    def _feed(self, character: str) -> None:
        self._written.append(character)
        self._step(character)

    def _step(self, character: str) -> None:
        match self._state:
            case "in key":
                self._feed_key(character)
            case "in value":
                self._feed_value(character)
            case _ if character in _SPACE:
                pass
            case "value":
                self._key, self._state = self._held, "in value"
                self._feed_value(character)
            case "key or end" | "key" if character == '"':
                self._state, self._held = "in key", '"'
            case _:
                self._state = _AFTER.get((self._state, character), "broken")

    def _feed_key(self, character: str) -> None:
        self._held += character
        if self._in_text(character):
            return
        key = parse_json(self._held)
        self._state = "colon" if isinstance(key, str) and key not in self._members else "broken"
        self._held = key if isinstance(key, str) else ""

    def _feed_value(self, character: str) -> None:
        if self._in_string:
            self._value.append(character)
            self._in_string = self._in_text(character)
            if not self._in_string and not self._open:
                self._close_value()
        elif not self._open and (character in ",}" or character in _SPACE):
            self._close_value()
            if self._state == "after value":
                self._step(character)
        else:
            if not self._open and self._value and (character == '"' or character in _JSON_CLOSES):
                self._state = "broken"
            self._value.append(character)
            if character == '"':
                self._in_string = True
            elif character in _JSON_CLOSES:
                self._open.append(_JSON_CLOSES[character])
            elif self._open and character in "]}":
                if self._open.pop() != character:
                    self._state = "broken"
                elif not self._open:
                    self._close_value()

    def _close_value(self) -> None:
        text = "".join(self._value)
        if parse_json(text) is NO_VALUE:
            self._state = "broken"
            return
        self._members[self._key] = text
        self._key, self._value, self._state = "", [], "after value"

    def _in_text(self, character: str) -> bool:
        """Whether the string goes on after this character of it."""
        if self._escaped:
            self._escaped = False
            return True
        self._escaped = character == "\\"
        return character != '"'


_CLOSES = {"(": ")", "[": "]", "{": "}"}


class PythonicCall(CallReader):
    """Reads `f(city="Rome", days=3)`; each argument becomes JSON when its value is complete."""

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
                self._key, self._held, self._state = self._held.strip(), "", "value"
                if not self._key or self._key in self._keys:
                    self._state = "broken"
            case "key or end" | "key":
                self._held += character
                if not self._held.strip().isidentifier():
                    self._state = "broken"
            case _:
                self._feed_value(character)

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
        if value is NO_VALUE:
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
