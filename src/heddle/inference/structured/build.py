"""From the fields of a request to the constraint that an engine enforces."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heddle.inference.structured import lark
from heddle.inference.structured.compiler import checked, failure
from heddle.inference.structured.constraint import Constraint
from heddle.inference.structured.grammars import lark_of
from heddle.inference.structured.guidance import llguidance, shortened
from heddle.inference.structured.limits import MAX_VALUE_BYTES, check_size, check_text
from heddle.inference.structured.models import ResponseFormat, StructuredOutputs
from heddle.inference.structured.patterns import translated
from heddle.inference.structured.schema import JsonStyle
from heddle.inference.structured.structural_tag import structural_tag_grammar
from heddle.inference.structured.values import refusal

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OURS = ("auto", "guidance", "llguidance")
FOREIGN = ("xgrammar", "outlines", "lm-format-enforcer")
JSON_SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
MAX_REGEX_BYTES = 32 * 1024
MAX_CHOICES = 10_000
MAX_WHITESPACE_PATTERN = 200
FIELD = "structured_outputs"


def constraint_for(
    structured_outputs: StructuredOutputs | None,
    response_format: ResponseFormat | None = None,
    tokenizer: "LLTokenizer | None" = None,
) -> Constraint | None:
    """The constraint of a request, None when it has none.

    A constraint in `response_format` replaces the one in `structured_outputs`, whose switches go on acting.
    `tokenizer` is the served model's; it resolves the special tokens that a grammar names. Compiling takes
    milliseconds, for pathological input up to a second: call it in a thread. Raises InvalidRequest with `param`.
    """
    wanted = structured_outputs or StructuredOutputs()
    found = _of_format(response_format)
    if found is None:
        if structured_outputs is None:
            return None
        found = _of_outputs(structured_outputs)
    kind, value, param = found
    _check_backend(wanted)
    style = _style(wanted, kind)
    grammar = _GRAMMARS[kind](value, style, param, tokenizer)
    return Constraint(checked(grammar, tokenizer, param))


def _of_outputs(wanted: StructuredOutputs) -> tuple[str, Any, str]:
    given = {
        "json": wanted.json_schema,
        "regex": wanted.regex,
        "choice": wanted.choice,
        "grammar": wanted.grammar,
        "json_object": wanted.json_object or None,
        "structural_tag": wanted.structural_tag,
    }
    chosen = [kind for kind, value in given.items() if value is not None]
    if len(chosen) != 1:
        named = f"not both {' and '.join(chosen)}" if chosen else "none is set"
        raise refusal(FIELD, f"set exactly one of {', '.join(CONSTRAINTS)}; {named}")
    kind = chosen[0]
    param = f"{FIELD}.{kind}"
    value = given[kind]
    if kind in ("json", "structural_tag") and isinstance(value, str):
        value = _parsed(value, param)
    return kind, value, param


def _of_format(wanted: ResponseFormat | None) -> tuple[str, Any, str] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return "json_object", True, "response_format"
    if wanted.type == "structural_tag":
        parts = {"format": wanted.format, "structures": wanted.structures, "triggers": wanted.triggers}
        given = {name: part for name, part in parts.items() if part is not None}
        return "structural_tag", given, "response_format"
    if wanted.json_schema is None:
        raise refusal("response_format", "with type 'json_schema' the field 'json_schema' must be set")
    if wanted.json_schema.json_schema is None:
        raise refusal("response_format.json_schema", "the field 'schema' must be set")
    return "json", wanted.json_schema.json_schema, "response_format.json_schema.schema"


def _parsed(text: str, param: str) -> Any:
    """The JSON value of a text; duplicates of a key and constants such as NaN are refused."""
    check_text(text, MAX_VALUE_BYTES, param)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise refusal(param, "is nested too deeply") from None
    except ValueError as error:
        raise refusal(param, f"is not JSON: {shortened(str(error))}") from None
    allowed = dict | bool if param.endswith(".json") else dict
    if not isinstance(value, allowed):
        raise refusal(param, "must be the text of a JSON object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _check_backend(wanted: StructuredOutputs) -> None:
    name = wanted.backend
    if name is None or name in OURS:
        return
    param = f"{FIELD}._backend"
    if name not in FOREIGN:
        raise refusal(param, f"{shortened(repr(name))} is not known; use {', '.join(OURS)}")
    if not wanted.backend_was_auto:
        raise refusal(param, f"{name!r} is not installed here; use {', '.join(OURS)}")
    if wanted.disable_fallback:
        raise refusal(param, f"{name!r} is not installed here, and disable_fallback forbids another")


def _style(wanted: StructuredOutputs, kind: str) -> JsonStyle:
    switched = [name for name in JSON_SWITCHES if getattr(wanted, name)]
    if switched and kind not in ("json", "json_object", "structural_tag"):
        raise refusal(f"{FIELD}.{switched[0]}", f"acts on JSON only; the constraint is {kind}")
    if wanted.disable_additional_properties and kind == "json_object":
        raise refusal(f"{FIELD}.disable_additional_properties", "needs a schema; json_object has none")
    gap = JsonStyle().gap
    if wanted.whitespace_pattern is not None:
        gap = _gap(wanted.whitespace_pattern)
        if wanted.disable_any_whitespace:
            raise refusal(f"{FIELD}.whitespace_pattern", "contradicts disable_any_whitespace")
    return JsonStyle(None if wanted.disable_any_whitespace else gap, bool(wanted.disable_additional_properties))


def _gap(pattern: str) -> str | None:
    """The pattern of a gap, None when it matches nothing but the empty text; it may match JSON's whitespace only."""
    param = f"{FIELD}.whitespace_pattern"
    if not pattern:
        return None
    check_text(pattern + "x", MAX_WHITESPACE_PATTERN, param)
    gap = translated(pattern).replace(r" \t\n\r\f\x0b", r" \t\n\r")
    checked(_strings(gap, ".*"), None, param)
    if _compiles(_strings(gap, r"[^ \t\n\r]")):
        raise refusal(param, "matches more than blanks, tabs and line breaks; the output would not be JSON")
    return gap if _compiles(_strings(gap, ".|\n")) else None


def _strings(gap: str, pattern: str) -> str:
    """A grammar of the strings that match both patterns."""
    both = {"type": "string", "pattern": f"^(?:{gap})$", "allOf": [{"pattern": pattern}]}
    return json.dumps({"grammars": [{"json_schema": both}]})


def _compiles(grammar: str) -> bool:
    return not failure(grammar, None)


def _json(schema: Any, style: JsonStyle, param: str, _tokenizer: "LLTokenizer | None") -> str:
    return lark.whole_grammar(f"start: {lark.json_rule(schema, style, param)}")


def _json_object(_value: Any, style: JsonStyle, param: str, tokenizer: "LLTokenizer | None") -> str:
    return _json({"type": "object"}, style, param, tokenizer)


def _regex(pattern: str, _style: JsonStyle, param: str, _tokenizer: "LLTokenizer | None") -> str:
    check_text(pattern, MAX_REGEX_BYTES, param)
    return lark.whole_grammar(f"start: /{llguidance().regex_to_lark(pattern)}/")


def _choice(choices: list[str], _style: JsonStyle, param: str, _tokenizer: "LLTokenizer | None") -> str:
    if not choices:
        raise refusal(param, "must name at least one text")
    if len(choices) > MAX_CHOICES:
        raise refusal(param, f"has {len(choices)} texts; the limit is {MAX_CHOICES}")
    check_size(choices, param)
    return lark.whole_grammar("start: CHOICE\nCHOICE: " + " | ".join(lark.literal(text) for text in choices))


def _grammar(text: str, _style: JsonStyle, param: str, _tokenizer: "LLTokenizer | None") -> str:
    return lark.whole_grammar(lark_of(text, param))


def _structural_tag(tag: Any, style: JsonStyle, param: str, tokenizer: "LLTokenizer | None") -> str:
    check_size(tag, param)
    return structural_tag_grammar(tag, style, param, tokenizer)


_GRAMMARS: dict[str, Callable[[Any, JsonStyle, str, "LLTokenizer | None"], str]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
