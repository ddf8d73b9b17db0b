"""Grammars of arguments that are written one after another: between tags, or as keywords of a Python call."""

import json
import re
from collections.abc import Sequence
from typing import Any

from heddle.inference.structured.guidance import LLTokenizer, refusal
from heddle.inference.structured.lark import ANYTHING, json_rule, literal, mark, text_up_to
from heddle.inference.structured.patterns import FORMATS
from heddle.inference.tools.element_calls import ElementMarks
from heddle.inference.tools.values import find_target, find_types
from heddle.wire.jsontypes import Json

_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_SAYS_NOTHING = frozenset({"$defs", "definitions", "title", "description", "$schema", "$id", "default", "examples"})
_OF_TEXTS = frozenset({"enum", "const", "minLength", "maxLength", "format", "pattern"})
_MAX_DEPTH = 8
_ANCHORED = re.compile(r"\^([^|^$]*)\$")


class ElementRules:
    """The rules of one function's call."""

    def __init__(self, tokenizer: LLTokenizer, marks: ElementMarks | None, call: str, param: str) -> None:
        """`marks`: None for keywords of Python; `call`: the name of the rule; `param`: the field of the schema."""
        self._tokenizer = tokenizer
        self._marks = marks
        self._call = call
        self._param = param

    def rules(self, name: str, schema: Json) -> list[str]:
        """The rule of the call and those of its arguments; InvalidRequest for what cannot be enforced."""
        properties = self._properties(schema)
        required = set(schema.get("required") or ())
        parts = [f"{self._call}_{index}" for index in range(len(properties))]
        rules: list[str] = []
        for part, (key, value) in zip(parts, properties.items(), strict=True):
            rules += self._element(part, key, value, schema)
        optional = [key not in required for key in properties]
        if self._marks is None:
            head = literal(f"{name}(")
            return [f'{self._call}: {head} {self._keywords(parts, optional, rules)} ")"', *rules]
        marks = self._marks
        head = f"{self._tag(marks.name)} {literal(f'{name}{marks.name_end}{marks.line if marks.name else str()}')}"
        elements = " ".join(f"{part}{'?' if may_miss else ''}" for part, may_miss in zip(parts, optional, strict=True))
        return [f"{self._call}: {head} {elements} {self._tag(marks.close)}", *rules]

    def _properties(self, schema: Json) -> dict[str, Any]:
        strange = sorted(key for key in schema if key not in _OF_OBJECTS | _SAYS_NOTHING and not key.startswith("x-"))
        if strange:
            raise refusal(
                f"{self._param}.{strange[0]}",
                "it cannot be enforced at the top of arguments, which this model writes one by one",
            )
        found = schema.get("properties")
        properties = found if isinstance(found, dict) else {}
        unnamed = sorted(set(schema.get("required") or ()) - set(properties))
        if unnamed:
            raise refusal(f"{self._param}.required", f"there is no property '{unnamed[0]}'")
        bad = next((key for key in properties if not self._can_write(key)), None)
        if bad is not None:
            raise refusal(f"{self._param}.properties", f"this model can write no argument named {bad!r}")
        return properties

    def _can_write(self, key: str) -> bool:
        return (
            key.isidentifier() if self._marks is None else bool(key.strip() == key and re.fullmatch(r"[^<>\"\n]+", key))
        )

    def _keywords(self, parts: Sequence[str], optional: Sequence[bool], rules: list[str]) -> str:
        """The rule of all keywords; which commas stand between them depends on those that are left out."""
        first, later = literal(""), literal("")
        for number in range(len(parts) - 1, -1, -1):
            names = (f"{self._call}_first_{number}", f"{self._call}_later_{number}")
            for name, comma, rest in ((names[0], "", first), (names[1], '", " ', later)):
                rules.append(f"{name}: {comma}{parts[number]} {later}{f' | {rest}' if optional[number] else ''}")
            first, later = names
        return first

    def _element(self, part: str, key: str, schema: Any, root: Json) -> list[str]:
        value = f"{part}_value"
        if self._marks is None:
            return [f"{part}: {literal(key + '=')} {value}", f"{value}: {self._json(schema, root)}"]
        marks = self._marks
        gap = literal(marks.line) if marks.line else ""
        head = f"{self._tag(marks.key)} {literal(key)} {self._tag(marks.key_end)}"
        if marks.value:
            head += f" {gap} {self._tag(marks.value)}"
        if marks.padding:
            head += f" {literal(marks.padding)}"
        return [f"{part}: {head} {value} {gap}", *self._value_rules(value, schema, root)]

    def _value_rules(self, value: str, schema: Any, root: Json) -> list[str]:
        """Rules of a value and its end tag: one for each alternative, unless one of them is any text."""
        alternatives = _find_alternatives(schema, root)
        rules: list[str] = []
        names = [f"{value}_{number}" for number in range(len(alternatives))]
        for name, alternative in zip(names, alternatives, strict=True):
            types = find_types(alternative, root)
            if types and "string" not in types:
                rules += [f"{name}: {name}_json {self._value_end()}", f"{name}_json: {self._json(alternative, root)}"]
                continue
            constraints = alternative if isinstance(alternative, dict) else {}
            if not any(constraints.get(key) is not None for key in _OF_TEXTS):
                return self._text_rules(value, {})
            rules += self._text_rules(name, constraints)
        return [f"{value}: {' | '.join(names)}", *rules]

    def _text_rules(self, value: str, constraints: Json) -> list[str]:
        """Rules of a text that is written as it is, up to its end tag."""
        choices = constraints.get("enum", [constraints["const"]] if "const" in constraints else None)
        if choices is not None:
            texts = " | ".join(literal(choice if isinstance(choice, str) else json.dumps(choice)) for choice in choices)
            return [f"{value}: ({texts}) {self._value_end()}"]
        inner = self._inner_pattern(constraints)
        end = f"{self._marks.padding}{self._marks.value_end}" if self._marks is not None else ""
        if inner is None:
            return text_up_to(self._tokenizer, value, end)
        closing = self._value_end()
        if closing.startswith("<"):
            return [f"{value}: {value.upper()} {closing}", f"{value.upper()}: {inner}"]
        without = f"({inner}) & ~({ANYTHING} {literal(end)} {ANYTHING})"
        return [f"{value}: {value.upper()}", f"{value.upper()}: ({without}) {literal(end)}"]

    def _inner_pattern(self, schema: Json) -> str | None:
        """The regular expression that a text must match; None where every text is valid."""
        low, high, pattern, name = (schema.get(key) for key in ("minLength", "maxLength", "pattern", "format"))
        parts = []
        if low is not None or high is not None:
            parts.append(f"/(?s:.{{{low or 0},{'' if high is None else high}}})/")
        if isinstance(name, str) and name in FORMATS:
            parts.append(f"/{FORMATS[name].replace('/', chr(92) + '/')}/")
        if pattern is not None:
            found = _ANCHORED.fullmatch(str(pattern))
            if found is None:
                raise refusal(
                    f"{self._param}: pattern",
                    "this model writes texts without quotes; there only ^...$ can be enforced",
                )
            parts.append(f"/{found[1].replace('/', chr(92) + '/')}/")
        return " & ".join(parts) or None

    def _json(self, schema: Any, root: Json) -> str:
        """The body of a rule for a JSON value; references lead into the whole schema."""
        shared: Json = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return json_rule({**schema, **shared} if isinstance(schema, dict) else schema, param=self._param)

    def _value_end(self) -> str:
        marks = self._marks
        assert marks is not None
        return literal(marks.padding + marks.value_end) if marks.padding else self._tag(marks.value_end)

    def _tag(self, text: str) -> str:
        """A tag, by its id where it is a token; ordinary text as it is."""
        return mark(self._tokenizer, text) if text.startswith("<") else literal(text)


def _find_alternatives(schema: Any, root: Json, depth: int = 0) -> list[Any]:
    """The schemas of which a value fulfils one: what references, `anyOf` and `oneOf` lead to."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return [schema]
    target = find_target(root, schema.get("$ref"))
    if target is not None:
        return _find_alternatives(target, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            return [found for branch in branches for found in _find_alternatives(branch, root, depth + 1)]
    return [schema]
