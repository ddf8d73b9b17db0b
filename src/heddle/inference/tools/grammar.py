"""Grammars that force valid tool calls, in the syntax in which a model writes them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from heddle.inference.structured.guidance import LLTokenizer, refusal
from heddle.inference.structured.lark import ANYTHING, json_rule, literal, mark, text_up_to, text_without
from heddle.inference.structured.patterns import FORMATS
from heddle.inference.tools.calls import find_target, find_types
from heddle.inference.tools.channels import answer_head, call_head, message_rules
from heddle.inference.tools.element_calls import ElementMarks
from heddle.inference.tools.formats import FunctionDefinition, ToolFormat
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
                "it cannot be enforced at the top level of the arguments, which this model writes one by one",
            )
        found = schema.get("properties")
        properties = found if isinstance(found, dict) else {}
        unnamed = sorted(set(schema.get("required") or ()) - set(properties))
        if unnamed:
            raise refusal(f"{self._param}.required", f"property '{unnamed[0]}' is not defined")
        for key in properties:
            of_element = key.strip() == key and re.fullmatch(r"[^<>\"\n]+", key)
            if not (key.isidentifier() if self._marks is None else of_element):
                raise refusal(f"{self._param}.properties", f"this model cannot write an argument named {key!r}")
        return properties

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
                    "this model writes strings without quotes, where only patterns of the form ^...$ can be enforced",
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


ANY_OBJECT = {"type": "object"}


class CallGrammar:
    """The calls of one request in the syntax of one model."""

    def __init__(self, tokenizer: LLTokenizer, style: ToolFormat, functions: Sequence[tuple[FunctionDefinition, str]]):
        """`functions`: those that may be called, each with the name of its field for error messages."""
        self._tokenizer = tokenizer
        self._style = style
        self._functions = functions

    def forced(self, several: bool) -> str:
        """Lark for nothing but calls: one, or as many as the model likes."""
        rules = self._rules([True] * len(self._functions))
        if self._style.layout == "harmony":
            return "\n".join(["start: thoughts call", *message_rules(self._tokenizer), *rules])
        return "\n".join([f"start: {self._calls(several)}", *rules])

    def free(self, several: bool) -> str:
        """Lark for any text, in which the calls that occur have valid arguments where the function is strict."""
        style = self._style
        if style.layout == "harmony":
            start = f"thoughts (call | {answer_head(self._tokenizer)} TEXT)"
            rules = [*message_rules(self._tokenizer), f"TEXT: {text_without([])}"]
        elif style.brackets and not (style.layout == "pythonic" and style.start):
            start = f"{self._calls(several)} | PLAIN"
            rules = [rf"PLAIN: /([^{re.escape(style.brackets)}\s](.|\n)*)?/"]
        else:
            opening = style.section_start or style.start
            rules = [*text_up_to(self._tokenizer, "opening", opening), f"TEXT: {text_without([opening])}"]
            start = f"(opening {self._after_opening(several)}){'*' if several else '?'} TEXT"
        strict = [bool(function.strict) for function, _ in self._functions]
        return "\n".join([f"start: {start}", *rules, *self._rules(strict)])

    def beside(self, several: bool, other: str) -> str:
        """Lark for calls, valid where their function is strict, or for what the grammar named `other` matches."""
        rules = self._rules([bool(function.strict) for function, _ in self._functions])
        if self._style.layout == "harmony":
            head = answer_head(self._tokenizer)
            return "\n".join([f"start: thoughts (call | {head} @{other})", *message_rules(self._tokenizer), *rules])
        return "\n".join([f"start: {self._calls(several)} | @{other}", *rules])

    def _rules(self, strict: Sequence[bool]) -> list[str]:
        """One rule per function for its call, and those of its arguments."""
        rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(self._functions)))}"]
        for number, ((function, param), exact) in enumerate(zip(self._functions, strict, strict=True)):
            schema: dict[str, Any] = ANY_OBJECT | (function.parameters or {}) if exact else ANY_OBJECT
            rules += self._call_rules(number, function.name, schema, f"{param}.parameters")
        return rules

    def _call_rules(self, number: int, name: str, schema: dict[str, Any], param: str) -> list[str]:
        style, call = self._style, f"call_{number}"
        if style.layout == "elements" and style.elements is not None:
            if not name or re.search(r"[\s<>{}\[\]\"'=]", name):
                raise refusal(param.replace(".parameters", ".name"), "this model cannot call a function with this name")
            return ElementRules(self._tokenizer, style.elements, call, param).rules(name, schema)
        if style.layout == "pythonic":
            return ElementRules(self._tokenizer, None, call, param).rules(name, schema)
        arguments = f"arguments_{number}"
        rule = f"{arguments}: {json_rule(schema, param=param)}"
        if style.layout == "harmony":
            return [rule, f"{call}: {call_head(self._tokenizer, name)} {arguments}"]
        if style.layout == "named":
            head, tail = self._text(f"{style.before_name}{name}{style.after_name}"), self._text(style.after_arguments)
            return [rule, f"{call}: {head} {arguments} {tail}"]
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{style.arguments_key}": '
        return [rule, f'{call}: {literal(head)} {arguments} "}}"']

    def _text(self, text: str) -> str:
        """Lark for a text that may hold marks."""
        marks = "|".join(re.escape(inner) for inner in self._style.inner_marks)
        parts = re.split(f"({marks})", text) if marks else [text]
        return " ".join(
            mark(self._tokenizer, part) if part in self._style.inner_marks else literal(part) for part in parts if part
        )

    def _calls(self, several: bool) -> str:
        """Lark for one call, or for one or more, with the marks around them."""
        style = self._style
        if style.layout == "bare":
            return "call (/; ?/ call)*" if several else "call"
        if not style.openings:
            return self._after_opening(several)
        opening = mark(self._tokenizer, style.section_start or style.start)
        one = f"{opening} {self._after_opening(several)}"
        if style.layout in ("list", "pythonic") or style.section_start or not several:
            return one
        between = "/\\n?/ " if style.layout in ("tagged", "elements") else ""
        return f"{one} ({between}{one})*"

    def _after_opening(self, several: bool) -> str:
        """Lark for what follows the mark before a call, or before all of them."""
        style = self._style
        end = mark(self._tokenizer, style.end) if style.end else ""
        if style.section_start:
            one = f"{mark(self._tokenizer, style.start)} call {end}"
            more = f" (/\\n?/ {one})*" if several else ""
            return f"{one}{more} {mark(self._tokenizer, style.section_end)}"
        if style.layout == "named":
            return "call"
        if style.layout in ("list", "pythonic"):
            return f'{literal(style.gap + "[")} call{" (/, ?/ call)*" if several else ""} "]" {end}'
        gap = f"{literal(style.gap)} " if style.gap else ""
        closes_itself = style.elements is not None and style.elements.close == style.end
        return f"{gap}call" if closes_itself else f"{gap}call {gap}{end}"
