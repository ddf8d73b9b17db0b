"""The fields of a chat request that constrain its output, and the constraint that they mean."""

import json
from typing import Any, Literal

from pydantic import Field, StrictBool, StrictStr

from heddle.inference.structured import lark
from heddle.inference.structured.checks import MAX_VALUE_BYTES, check_size, check_text
from heddle.inference.structured.guidance import (
    Constraint,
    LLTokenizer,
    check_grammar,
    find_failure,
    llguidance,
    refusal,
    shorten,
)
from heddle.inference.structured.lark import to_lark
from heddle.inference.structured.patterns import translate_pattern
from heddle.inference.structured.schema import JsonStyle
from heddle.inference.structured.structural_tag import structural_tag_grammar
from heddle.wire.lazy_model import LazyModel


class StructuredOutputs(LazyModel):
    """Exactly one constraint, and switches that say how it is met."""

    json_schema: StrictStr | dict[str, Any] | StrictBool | None = Field(
        default=None, alias="json", description="A JSON Schema, as an object or as its text."
    )
    regex: StrictStr | None = Field(default=None, description="A regular expression for the whole output.")
    choice: list[StrictStr] | None = Field(default=None, description="The output is one of these texts.")
    grammar: StrictStr | None = Field(default=None, description="A grammar in EBNF (GBNF) or Lark syntax.")
    json_object: StrictBool | None = Field(default=None, description="Any JSON object.")
    structural_tag: StrictStr | dict[str, Any] | None = Field(
        default=None, description="Free text with constrained parts, as an object or as its text."
    )
    disable_fallback: StrictBool | None = Field(
        default=None, description="Refuse the request when the compiler named in `_backend` is not the one used."
    )
    disable_any_whitespace: StrictBool | None = Field(
        default=None, description="Compact JSON: no whitespace between tokens."
    )
    disable_additional_properties: StrictBool | None = Field(
        default=None, description="Objects hold only the properties that the schema names, unless it says otherwise."
    )
    whitespace_pattern: StrictStr | None = Field(
        default=None, description="A regular expression for the whitespace between two tokens of JSON."
    )
    backend: StrictStr | None = Field(default=None, alias="_backend", description="auto, guidance or llguidance.")
    backend_was_auto: StrictBool | None = Field(
        default=None, alias="_backend_was_auto", description="`_backend` was not chosen by the client."
    )


class JsonSchemaFormat(LazyModel):
    """A named JSON Schema."""

    name: StrictStr
    description: StrictStr | None = None
    json_schema: dict[str, Any] | StrictBool | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(LazyModel):
    """What form the answer has; decides over `structured_outputs`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = Field(default=None, description="Tree of a structural tag.")
    structures: list[dict[str, Any]] | None = Field(default=None, description="Older form of a structural tag.")
    triggers: list[StrictStr] | None = None


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
    tokenizer: LLTokenizer | None = None,
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
    style = _read_style(wanted, kind)
    grammar = _build_grammar(kind, value, style, param, tokenizer)
    return Constraint(check_grammar(grammar, tokenizer, param))


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
        raise refusal(FIELD, f"set exactly one of {', '.join(given)}; {named}")
    kind = chosen[0]
    param = f"{FIELD}.{kind}"
    value = given[kind]
    if kind in ("json", "structural_tag") and isinstance(value, str):
        value = _parse(value, param)
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


def _parse(text: str, param: str) -> Any:
    """The JSON value of a text; duplicates of a key and constants such as NaN are refused."""
    check_text(text, MAX_VALUE_BYTES, param)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise refusal(param, "is nested too deeply") from None
    except ValueError as error:
        raise refusal(param, f"is not JSON: {shorten(str(error))}") from None
    allowed = dict | bool if param.endswith(".json") else dict
    if not isinstance(value, allowed):
        raise refusal(param, "must be a JSON object as a string")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _check_backend(wanted: StructuredOutputs) -> None:
    name = wanted.backend
    if name is None or name in OURS:
        return
    param = f"{FIELD}._backend"
    if name not in FOREIGN:
        raise refusal(param, f"unknown backend {shorten(repr(name))}; expected one of {', '.join(OURS)}")
    if not wanted.backend_was_auto:
        raise refusal(param, f"{name!r} is not installed; use one of {', '.join(OURS)}")
    if wanted.disable_fallback:
        raise refusal(param, f"{name!r} is not installed, and disable_fallback does not allow another")


def _read_style(wanted: StructuredOutputs, kind: str) -> JsonStyle:
    switched = [name for name in JSON_SWITCHES if getattr(wanted, name)]
    if switched and kind not in ("json", "json_object", "structural_tag"):
        raise refusal(f"{FIELD}.{switched[0]}", f"only applies to JSON; the constraint is {kind}")
    if wanted.disable_additional_properties and kind == "json_object":
        raise refusal(f"{FIELD}.disable_additional_properties", "requires a schema; json_object has none")
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
    gap = translate_pattern(pattern).replace(r" \t\n\r\f\x0b", r" \t\n\r")
    check_grammar(_strings(gap, ".*"), None, param)
    if not find_failure(_strings(gap, r"[^ \t\n\r]"), None):
        raise refusal(param, "matches more than spaces, tabs and line breaks; the output would not be JSON")
    return None if find_failure(_strings(gap, ".|\n"), None) else gap


def _strings(gap: str, pattern: str) -> str:
    """A grammar of the strings that match both patterns."""
    both = {"type": "string", "pattern": f"^(?:{gap})$", "allOf": [{"pattern": pattern}]}
    return json.dumps({"grammars": [{"json_schema": both}]})


def _build_grammar(kind: str, value: Any, style: JsonStyle, param: str, tokenizer: LLTokenizer | None) -> str:
    """The grammar, in JSON form, of one constraint."""
    match kind:
        case "json" | "json_object":
            schema = value if kind == "json" else {"type": "object"}
            return lark.whole_grammar(f"start: {lark.json_rule(schema, style, param)}")
        case "regex":
            check_text(value, MAX_REGEX_BYTES, param)
            return lark.whole_grammar(f"start: /{llguidance().regex_to_lark(value)}/")
        case "choice":
            if not value:
                raise refusal(param, "must have at least one string")
            if len(value) > MAX_CHOICES:
                raise refusal(param, f"has {len(value)} strings; the limit is {MAX_CHOICES}")
            check_size(value, param)
            return lark.whole_grammar("start: CHOICE\nCHOICE: " + " | ".join(lark.literal(text) for text in value))
        case "grammar":
            return lark.whole_grammar(to_lark(value, param))
        case _:
            check_size(value, param)
            return structural_tag_grammar(value, style, param, tokenizer)
