"""The text of GraphQL requests, as far as clients of this API write it: operations, fields, aliases, arguments."""

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

_TOKEN = re.compile(
    r'[\s,﻿]+|#[^\n]*|("""(?s:.*?)"""|"(?:[^"\\\n]|\\.)*"|-?\d[\d.eE+-]*|\.\.\.|\$?[A-Za-z_]\w*|[{}()\[\]:!=@|&])'
)
MAX_DEPTH = 20
MAX_TEXT = 100_000
_WORDS = {"true": True, "false": False, "null": None}


class GraphQLProblem(Exception):
    """Something that goes into the `errors` list; `code` becomes an extension."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name`."""

    name: str


@dataclass(slots=True)
class Field:
    """One selected field; `key` is its name in the answer."""

    name: str
    key: str
    arguments: dict[str, Any] = field(default_factory=dict)
    selection: list["Field"] = field(default_factory=list)


@dataclass(slots=True)
class Operation:
    """A query or a mutation."""

    kind: str
    name: str | None
    selection: list[Field]


def parse(text: str) -> list[Operation]:
    """The operations of a document; raises GraphQLProblem for anything that is not understood."""
    if len(text) > MAX_TEXT:
        raise GraphQLProblem(f"The query is longer than {MAX_TEXT} characters")
    return _Parser(_tokens(text)).document()


def fill(value: Any, variables: dict[str, Any]) -> Any:
    """An argument with its variables replaced; one that was not given is null."""
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, dict):
        return {key: fill(item, variables) for key, item in value.items()}
    return [fill(item, variables) for item in value] if isinstance(value, list) else value


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise GraphQLProblem(f"Syntax Error: Unexpected character {text[position]!r}")
        if match[1]:
            tokens.append(match[1])
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    def document(self) -> list[Operation]:
        operations = []
        while self._peek():
            operations.append(self._operation())
        if not operations:
            raise GraphQLProblem("Syntax Error: Unexpected <EOF>")
        return operations

    def _operation(self) -> Operation:
        if self._peek() == "{":
            return Operation("query", None, self._selection(1))
        kind = self._take()
        if kind not in ("query", "mutation"):
            raise GraphQLProblem(f"Syntax Error: Unexpected {kind!r}; queries and mutations are served here")
        name = self._take() if self._peek() not in ("{", "(") else None
        if self._peek() == "(":
            while self._take() != ")":
                pass
        return Operation(kind, name, self._selection(1))

    def _selection(self, depth: int) -> list[Field]:
        self._expect("{")
        fields = []
        while self._peek() != "}":
            fields.append(self._field(depth))
        self._take()
        return fields

    def _field(self, depth: int) -> Field:
        key = name = self._name()
        if self._peek() == ":":
            self._take()
            name = self._name()
        found = Field(name, key)
        if self._peek() == "(":
            found.arguments = self._entries("(", ")", depth)
        if self._peek() == "{":
            if depth >= MAX_DEPTH:
                raise GraphQLProblem(f"The query is nested deeper than {MAX_DEPTH} levels")
            found.selection = self._selection(depth + 1)
        return found

    def _entries(self, opening: str, closing: str, depth: int) -> dict[str, Any]:
        self._expect(opening)
        entries = {}
        while self._peek() != closing:
            key = self._name()
            self._expect(":")
            entries[key] = self._value(depth + 1)
        self._take()
        return entries

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise GraphQLProblem(f"The query is nested deeper than {MAX_DEPTH} levels")
        if self._peek() == "{":
            return self._entries("{", "}", depth)
        token = self._take()
        if token == "[":
            items = []
            while self._peek() != "]":
                items.append(self._value(depth + 1))
            self._take()
            return items
        if token.startswith("$"):
            return Variable(token[1:])
        if token.startswith('"""'):
            return token[3:-3]
        if token in _WORDS:
            return _WORDS[token]
        try:
            return orjson.loads(token) if not token[0].isalpha() else token
        except orjson.JSONDecodeError:
            raise GraphQLProblem(f"Syntax Error: Unexpected {token[:50]!r}") from None

    def _name(self) -> str:
        token = self._take()
        if not (token[0].isalpha() or token[0] == "_"):
            raise GraphQLProblem(f"Syntax Error: Expected Name, found {token[:50]!r}")
        return token

    def _expect(self, token: str) -> None:
        found = self._take()
        if found != token:
            raise GraphQLProblem(f"Syntax Error: Expected {token!r}, found {found[:50]!r}")

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise GraphQLProblem("Syntax Error: Unexpected <EOF>")
        self._next += 1
        return token
