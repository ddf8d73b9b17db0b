"""The two fields of a request: which constraint they name, what the switches do, what is refused and why."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("llguidance")

from heddle.errors import InvalidRequest
from heddle.inference.structured.constraints import ResponseFormat, StructuredOutputs, constraint_for
from tests.unit.inference.structured.texts import grammar, matching

PAIR: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": 1}, "b": {"const": 2}},
    "required": ["a"],
}
SPACED = ['{"a":1,"b":2}', '{"a": 1, "b": 2}', '{"a":1,  "b":2}', '{\n  "a": 1,\n  "b": 2\n}', '{"a":1,\t"b":2}']


def refused(response_format: dict[str, Any] | None = None, **outputs: Any) -> tuple[str, str]:
    """The field and the reason of the refusal."""
    with pytest.raises(InvalidRequest) as caught:
        grammar(response_format, **outputs)
    reason = caught.value.reason
    param = getattr(caught.value, "param", None) or caught.value.extra["param"]
    assert "\n" not in reason and len(reason) < 600 and reason.startswith(param)
    return param, reason.removeprefix(f"{param}: ")


def test_no_constraint() -> None:
    """Nothing asked, or plain text."""
    assert constraint_for(None) is None
    assert constraint_for(None, ResponseFormat(type="text")) is None
    constraint_for(None, None)


@pytest.mark.parametrize(
    ("outputs", "good", "bad"),
    [
        ({"json": PAIR}, ['{"a": 1}', '{"a":1,"b":2}'], ['{"a":2}', '{"b":2}', '{"a":1', ' {"a":1}']),
        ({"json": json.dumps(PAIR)}, ['{"a": 1}'], ["{}"]),
        ({"json": True}, ["1", "[null]", '{"x": "y"}'], ["nul", "{1}"]),
        ({"regex": "[0-9]{3}-[a-c]{2}"}, ["123-ab"], ["123-ad", "123-abc", ""]),
        ({"regex": "^a/b.*$"}, ["a/b", "a/bc"], ["ba/b", "a/b\n"]),
        ({"regex": r"\p{Lu}\p{L}+"}, ["Éa"], ["éa"]),
        ({"choice": ["red", "redder", "größe", 'a"b\n']}, ["red", "redder", "größe", 'a"b\n'], ["redde", "re", ""]),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, ["x", "((x))"], ["((x)", ""]),
        ({"grammar": 'root ::= item ("," item)*\nitem ::= [a-z]+'}, ["a", "ab,c"], [",a", "a,"]),
        ({"grammar": 'start: "a" b c\nb: "b"+\nc: "c"'}, ["abc", "abbc"], ["ac"]),
        ({"grammar": 'start: "v" %json {"enum": [1, 2]}'}, ["v1"], ["v3"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", ""]),
    ],
)
def test_constraints(outputs: dict[str, Any], good: list[str], bad: list[str]) -> None:
    """What may be generated and what may not."""
    assert matching(grammar(**outputs), *good, *bad) == good


@pytest.mark.parametrize(
    ("outputs", "param", "words"),
    [
        ({"json_object": False}, "structured_outputs", "none is set"),
        ({"_backend": "auto"}, "structured_outputs", "exactly one"),
        ({"json": {}, "regex": "a"}, "structured_outputs", "not both json and regex"),
        ({"choice": []}, "structured_outputs.choice", "at least one string"),
        ({"choice": [""]}, "structured_outputs.choice", "only the empty text"),
        ({"choice": ["a"] * 10_001}, "structured_outputs.choice", "the limit is 10000"),
        ({"json": "{"}, "structured_outputs.json", "is not JSON"),
        ({"json": "[1]"}, "structured_outputs.json", "JSON object"),
        ({"json": '{"const": NaN}'}, "structured_outputs.json", "NaN"),
        ({"json": False}, "structured_outputs.json", "no finite value"),
        ({"regex": "(("}, "structured_outputs.regex", "unclosed group"),
        ({"regex": ""}, "structured_outputs.regex", "is empty"),
        ({"regex": "(?=a)"}, "structured_outputs.regex", "look-around"),
        ({"regex": "a" * 40_000}, "structured_outputs.regex", "the limit is 32768"),
        ({"regex": "\ud800"}, "structured_outputs.regex", "surrogate"),
        ({"grammar": "root ::= "}, "structured_outputs.grammar", "only the empty text"),
        ({"grammar": "root ::= nowhere"}, "structured_outputs.grammar", "Rule 'nowhere' not found"),
        ({"grammar": 'rule ::= "a"'}, "structured_outputs.grammar", "No 'root' rule"),
        ({"grammar": 'root ::= "a'}, "structured_outputs.grammar", "invalid EBNF"),
        ({"grammar": "root ::= " + "(" * 200 + '"a"' + ")" * 200}, "structured_outputs.grammar", "nested"),
        ({"grammar": "start: nowhere"}, "structured_outputs.grammar", "line 1, column 8: unknown name"),
        ({"grammar": "start: a\na: a"}, "structured_outputs.grammar", "no text can match"),
        ({"grammar": "hello"}, "structured_outputs.grammar", "Expected token"),
        ({"grammar": '{"grammars": []}'}, "structured_outputs.grammar", "EBNF or Lark"),
        ({"grammar": "start: <|nothing|>"}, "structured_outputs.grammar", "unknown special token"),
        ({"structural_tag": "{"}, "structured_outputs.structural_tag", "is not JSON"),
        ({"structural_tag": "[]"}, "structured_outputs.structural_tag", "JSON object"),
    ],
)
def test_refusals(outputs: dict[str, Any], param: str, words: str) -> None:
    """Each names the field and the reason in a line."""
    where, reason = refused(**outputs)
    assert (where, words in reason) == (param, True), reason


def test_default_whitespace() -> None:
    """One line or indented, but no rambling."""
    assert matching(grammar(json=PAIR), *SPACED) == [SPACED[0], SPACED[1], SPACED[3]]
    deep = "{\n" + " " * 41 + '"a": 1}'
    assert matching(grammar(json=PAIR), deep, deep.replace(" ", "", 1), '{\n\n"a":1}') == [deep.replace(" ", "", 1)]


def test_disable_any_whitespace() -> None:
    """Compact, also in json_object and in structural tags."""
    assert matching(grammar(json=PAIR, disable_any_whitespace=True), *SPACED) == SPACED[:1]
    assert matching(grammar(json_object=True, disable_any_whitespace=True), '{"a":1}', '{"a": 1}') == ['{"a":1}']
    tag = {"format": {"type": "json_schema", "json_schema": PAIR}}
    assert matching(grammar(structural_tag=tag, disable_any_whitespace=True), *SPACED) == SPACED[:1]
    assert matching(grammar(json=PAIR, disable_any_whitespace=False), *SPACED[:2]) == SPACED[:2]


@pytest.mark.parametrize(
    ("pattern", "good"),
    [
        ("[ ]{0,2}", SPACED[:3]),
        ("", SPACED[:1]),
        ("[ ]?", SPACED[:2]),
        (r"\s*", SPACED),
        (r"[\n\t ]+", SPACED),
        ("^\t$", [SPACED[0], SPACED[4]]),
    ],
)
def test_whitespace_pattern(pattern: str, good: list[str]) -> None:
    """Each gap is empty or matches the pattern once."""
    assert matching(grammar(json=PAIR, whitespace_pattern=pattern), *SPACED) == good


@pytest.mark.parametrize("pattern", ["x", " |x", r"\S", " +x?", ".", "\u00a0", "((", "(?=a)", " " * 300])
def test_whitespace_patterns_that_are_refused(pattern: str) -> None:
    """The output would not be JSON, or the pattern is no pattern."""
    assert refused(json_object=True, whitespace_pattern=pattern)[0] == "structured_outputs.whitespace_pattern"


def test_disable_additional_properties() -> None:
    """At every depth, unless the schema says otherwise."""
    schema = {
        "type": "object",
        "properties": {
            "one": {"properties": {"x": {}}},
            "many": {"items": {"type": ["object", "null"]}},
            "open": {"type": "object", "additionalProperties": {"type": "null"}},
            "named": {"$ref": "#/$defs/named"},
            "some": {"anyOf": [{"type": "object", "properties": {"y": {}}}]},
        },
        "$defs": {"named": {"type": "object", "properties": {"z": {"type": "null"}}}},
    }
    closed = [
        '{"one":{"x":1}}',
        '{"many":[null,{}]}',
        '{"open":{"q":null}}',
        '{"named":{"z":null}}',
        '{"some":{"y":1}}',
    ]
    opened = ['{"q":1}', '{"one":{"q":1}}', '{"many":[{"q":1}]}', '{"named":{"q":1}}', '{"some":{"q":1}}']
    assert matching(grammar(json=schema, disable_additional_properties=True), *closed, *opened) == closed
    assert matching(grammar(json=schema), *closed, *opened) == closed + opened
    tag = {"format": {"type": "json_schema", "json_schema": PAIR}}
    extra = '{"a":1,"c":3}'
    assert matching(grammar(structural_tag=tag), extra) == [extra]
    assert matching(grammar(structural_tag=tag, disable_additional_properties=True), extra) == []


@pytest.mark.parametrize(
    ("outputs", "param"),
    [
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace"),
        ({"choice": ["a"], "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        (
            {"grammar": 'start: "a"', "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"json_object": True, "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
def test_switches_without_meaning_are_refused(outputs: dict[str, Any], param: str) -> None:
    """Rather than ignored."""
    assert refused(**outputs)[0] == param


def test_backends() -> None:
    """Ours under its names; another only when nobody chose it, and not when fallback is disabled."""
    for name in ("auto", "guidance", "llguidance"):
        assert matching(grammar(regex="a", _backend=name, disable_fallback=True, _backend_was_auto=False), "a") == ["a"]
    assert refused(regex="a", _backend="xgrammar")[0] == "structured_outputs._backend"
    assert "unknown backend" in refused(regex="a", _backend="nonsense")[1]
    assert "unknown backend" in refused(regex="a", _backend="nonsense", _backend_was_auto=True)[1]
    assert matching(grammar(regex="a", _backend="outlines", _backend_was_auto=True), "a") == ["a"]
    assert (
        "disable_fallback" in refused(regex="a", _backend="outlines", _backend_was_auto=True, disable_fallback=True)[1]
    )


@pytest.mark.parametrize(
    ("response_format", "good", "bad"),
    [
        ({"type": "json_object"}, ["{}"], ["[]"]),
        ({"type": "json_schema", "json_schema": {"name": "pair", "schema": PAIR}}, ['{"a":1}'], ["{}"]),
        ({"type": "json_schema", "json_schema": {"name": "p", "schema": PAIR, "strict": True}}, ['{"a":1}'], ["{}"]),
        ({"type": "json_schema", "json_schema": {"name": "p", "schema": PAIR, "strict": False}}, ['{"a":1}'], ["{}"]),
        ({"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}, ["yes"], ["no"]),
        (
            {
                "type": "structural_tag",
                "structures": [{"begin": "<f=a>", "schema": PAIR, "end": "</f>"}],
                "triggers": ["<f="],
            },
            ["hi", 'hi <f=a>{"a":1}</f>'],
            ["<f=b>", "<f=a>{}</f>"],
        ),
    ],
)
def test_response_formats(response_format: dict[str, Any], good: list[str], bad: list[str]) -> None:
    """The same constraints by their other name."""
    assert matching(grammar(response_format), *good, *bad) == good


def test_response_format_replaces_the_constraint_and_keeps_the_switches() -> None:
    """As the older server does; plain text replaces nothing."""
    wanted = {"type": "json_schema", "json_schema": {"name": "pair", "schema": PAIR}}
    assert matching(grammar(wanted, regex="x"), "x", *SPACED[:2]) == SPACED[:2]
    assert matching(grammar(wanted, disable_any_whitespace=True), *SPACED[:2]) == SPACED[:1]
    assert matching(grammar({"type": "text"}, regex="x"), "x") == ["x"]


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ({"type": "json_schema"}, "response_format"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
            "response_format.json_schema.schema",
        ),
        ({"type": "structural_tag"}, "response_format"),
        ({"type": "structural_tag", "format": {"type": "dispatch"}}, "response_format"),
    ],
)
def test_response_formats_that_are_refused(response_format: dict[str, Any], param: str) -> None:
    """By the field of the request."""
    assert refused(response_format)[0] == param


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (StructuredOutputs, {"json": 3}),
        (StructuredOutputs, {"regex": ["a"]}),
        (StructuredOutputs, {"choice": "a"}),
        (StructuredOutputs, {"choice": [1]}),
        (StructuredOutputs, {"grammar": 1}),
        (StructuredOutputs, {"json_object": "yes"}),
        (StructuredOutputs, {"structural_tag": 1}),
        (StructuredOutputs, {"disable_fallback": 1}),
        (StructuredOutputs, {"disable_any_whitespace": "true"}),
        (StructuredOutputs, {"disable_additional_properties": []}),
        (StructuredOutputs, {"whitespace_pattern": 1}),
        (StructuredOutputs, {"_backend": 1}),
        (StructuredOutputs, {"_backend_was_auto": "x"}),
        (ResponseFormat, {}),
        (ResponseFormat, {"type": "xml"}),
        (ResponseFormat, {"type": "json_schema", "json_schema": {"schema": {}}}),
        (ResponseFormat, {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}}),
        (ResponseFormat, {"type": "json_schema", "json_schema": {"name": "x", "strict": "yes"}}),
    ],
)
def test_wrong_types(model: type[StructuredOutputs | ResponseFormat], body: dict[str, Any]) -> None:
    """Are failures of validation."""
    with pytest.raises(ValidationError):
        model.model_validate(body)


@pytest.mark.parametrize(
    "outputs",
    [
        {"regex": "(a{1000}){1000}"},
        {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
        {"regex": "[a-z]*" * 2000},
        {"regex": "(" * 20_000},
        {"choice": [f"word {number}" for number in range(10_000)]},
        {"grammar": 'start: (("a"{100}){100}){100}'},
        {"grammar": "start: " + " ".join(f'"a{number}"?' for number in range(3000))},
        {"grammar": "\n".join(f"R{n}: R{n + 1} R{n + 1}" for n in range(60)) + '\nR60: "a"\nstart: R0'},
        {"grammar": "start: " + "(" * 100_000},
        {"json": {"type": "string", "pattern": "^(a{1000}){1000}$"}},
        {"json": {"type": "object", "properties": {f"p{number}": {} for number in range(1500)}}},
        {"json": {"allOf": [{"anyOf": [{"minimum": n}, {"maximum": n}, {"maxLength": n}]} for n in range(20)]}},
        {"json": {"oneOf": [{"type": "object", "properties": {"k": {"const": n}}} for n in range(300)]}},
        {"json_object": True, "whitespace_pattern": "( *\n* *)*"},
    ],
)
def test_pathological_input_comes_to_an_end(outputs: dict[str, Any]) -> None:
    """Compiled or refused; a test that hangs fails."""
    try:
        assert grammar(**outputs)
    except InvalidRequest as error:
        assert len(error.reason) < 600
