"""Every keyword: what is generated under it is valid, for two validators; what is not enforced is refused."""

import json
import warnings
from typing import Any

import jsonschema_rs
import pytest

pytest.importorskip("llguidance")

from jsonschema import Draft202012Validator

from heddle.errors import InvalidRequest
from heddle.inference.structured.schema import ANNOTATIONS, REFUSED
from tests.soak.schemas import Case, Schema, cases
from tests.support.selection import with_breadth
from tests.unit.inference.structured.texts import accepts, grammar, matching, random_text

TEXTS_PER_SCHEMA = 3

TRICKY: list[Schema] = [
    {"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {
        "type": "object",
        "allOf": [{"properties": {"a": {"const": 1}}, "additionalProperties": False}, {"minLength": 9}],
    },
    {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "integer", "maximum": 3}}},
            {"additionalProperties": {"type": "integer", "minimum": 2}},
        ],
    },
    {
        "type": "object",
        "required": ["x_1", "y"],
        "patternProperties": {"^x_": {"type": "boolean"}},
        "additionalProperties": {"type": "null"},
    },
    {
        "type": "object",
        "properties": {"x_1": {"type": ["boolean", "null"]}},
        "patternProperties": {"^x_": {"type": ["boolean", "integer"]}},
        "required": ["x_1"],
    },
    {"type": "object", "patternProperties": {"^.$": {"const": 1}}, "additionalProperties": {"const": 2}},
    {"type": "object", "properties": {'a"b\n': {"const": 1}}, "additionalProperties": {"const": 2}},
    {"type": "object", "properties": {"\\": {}, "\x7f": {}, "\x01": {}, "/": {}}, "required": ["\\", "\x7f", "\x01"]},
    {"type": "object", "propertyNames": {"const": "only"}},
    {"enum": [1, 2, "a", None], "type": ["integer", "null"]},
    {"enum": [1, 5, 10], "minimum": 4},
    {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 2},
    {"enum": [0.1, 0.30000000000000004, 1e-7, 123456789.123, -0.0, 1e15, 2.50]},
    {"type": "array", "prefixItems": [{"const": 1}, False], "items": {"const": 3}},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 4},
    {"type": "array", "allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 5}}, {"maxItems": 3}]},
    {"type": ["object", "array"], "minItems": 1, "maxItems": 2, "required": ["q"]},
    {"format": "date"},
    {"pattern": "^a$"},
    {"required": ["a"]},
    {"items": {"const": 1}},
    {"additionalProperties": False},
    {"type": "number", "minimum": 0.1, "maximum": 0.7},
    {"type": "number", "exclusiveMinimum": 1e-9, "maximum": 3e-9},
    {"type": "number", "exclusiveMinimum": 9007199254740990, "exclusiveMaximum": 9007199254740992},
    {"type": "number", "exclusiveMinimum": 999999.999, "exclusiveMaximum": 1000000},
    {"type": "number", "multipleOf": 0.0625, "minimum": 0, "maximum": 9},
    {"type": "number", "multipleOf": 2, "exclusiveMinimum": 0.5},
    {"type": "integer", "multipleOf": 1.5, "minimum": 0, "maximum": 40},
    {"type": "number", "allOf": [{"multipleOf": 2}, {"multipleOf": 3}, {"minimum": 0, "maximum": 100}]},
    {"type": "number", "allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.75}, {"exclusiveMinimum": 0}]},
    {"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 3},
    {"type": "string", "pattern": r"^[^\x00-\x7f]{2}$"},
    {"type": "string", "pattern": "a|^b$|c$", "maxLength": 4},
    {"type": "string", "pattern": r"^[\W\d]$"},
    {"type": "string", "pattern": r"^[^\W]$"},
    {"type": "string", "pattern": r"^[^\w]$"},
    {"type": "string", "pattern": r"^[^\S]$"},
    {"type": "string", "pattern": r"^[^\s\d]$"},
    {"type": "string", "pattern": "^[a-c[]+$", "maxLength": 3},
    {"type": "string", "pattern": "^[a&&b]$"},
    {"type": "string", "pattern": r"^\.\-\/\@$"},
    {"type": "string", "pattern": "^a{2}?b*?$", "maxLength": 4},
    {"type": "string", "format": "email", "pattern": r"@example\.com$"},
    {"type": "string", "format": "date", "pattern": "-02-29$"},
    *({"type": "string", "format": name} for name in ("uri", "iri", "uri-reference", "idn-hostname", "idn-email")),
    {"oneOf": [{"const": 1}, {"const": True}, {"enum": ["a", [1]]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"const": "b"}}},
        ]
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
            {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": False},
        ]
    },
    {
        "oneOf": [{"type": "null"}, {"$ref": "#/$defs/t"}],
        "$defs": {"t": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}]}},
    },
    {"anyOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer", "oneOf": [{"maximum": 9}, {"minimum": 20}]},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
]

CASES = [*cases(160), *(Case(f"tricky-{index}", schema, False) for index, schema in enumerate(TRICKY))]


@pytest.mark.parametrize("case", with_breadth(CASES, every=3), ids=lambda case: case.name)
def test_what_is_generated_is_valid(case: Case) -> None:
    """Bytes at random, so also what no model would write."""
    compiled = grammar(json=case.schema)
    validator = Draft202012Validator(case.schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    other = jsonschema_rs.validator_for(case.schema, validate_formats=True)
    finished = 0
    for seed in range(TEXTS_PER_SCHEMA * 2):
        text = random_text(compiled, f"{case.name}/{seed}")
        if text is None:
            continue
        finished += 1
        value = json.loads(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            problems = [error.message for error in validator.iter_errors(value)]
        assert not problems, (text, problems)
        assert other.is_valid(value), text
    assert finished >= TEXTS_PER_SCHEMA


def test_every_keyword_of_the_draft_has_its_row() -> None:
    """Each keyword that the draft's own schemas name is enforced, an annotation, or refused."""
    named: set[str] = set()
    for resource in Draft202012Validator.META_SCHEMA["allOf"]:
        named |= set(_meta(resource["$ref"])["properties"])
    assert len(named) > 50
    assert not ANNOTATIONS & set(REFUSED)
    enforced = named - ANNOTATIONS - set(REFUSED)
    assert len(enforced) > 25
    assert not [keyword for keyword in enforced if "is not a keyword" in _problem(keyword)]
    assert "is not a keyword" in _problem("minimumLength")


def _problem(keyword: str) -> str:
    """Why a keyword is refused with a value that few take; empty where it is not."""
    try:
        grammar(json={keyword: -1})
    except InvalidRequest as refusal:
        return refusal.reason
    return ""


def _meta(reference: str) -> dict[str, Any]:
    from jsonschema_specifications import REGISTRY

    return dict(REGISTRY.contents(f"https://json-schema.org/draft/2020-12/{reference}"))


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_refused_keywords_are_named(keyword: str) -> None:
    """Also deep inside."""
    with pytest.raises(InvalidRequest, match=r"#/properties/a/items: '.*' is not supported: ") as refused:
        grammar(json={"properties": {"a": {"items": {keyword: {}}}}})
    assert refused.value.reason.startswith(f"structured_outputs.json: #/properties/a/items: {keyword!r}")


def test_annotations_change_nothing() -> None:
    """And extension keywords; least of all those that the compiler would obey."""
    plain = grammar(json={"type": "integer"})
    noted = dict.fromkeys(ANNOTATIONS, "said") | {"x-guidance": {"lenient": True}, "x-order": 3}
    assert grammar(json={"type": "integer", **noted}) == plain


def test_a_key_has_one_spelling() -> None:
    """A property that is named cannot come back as an additional one, spelt with an escape."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    texts = ['{"a":1}', '{"a":"x"}', r'{"\u0061":"x"}', '{"b":"x"}', r'{"b":"\u0041"}']
    assert matching(grammar(json=schema), *texts) == ['{"a":1}', '{"b":"x"}']


def test_bounds_hold_for_floats() -> None:
    """Texts that a reader would round onto an excluded bound are excluded too."""
    compiled = grammar(json={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10})
    texts = ["0.000000001", "9.999999999", "5", "0", "10", "9.99999999999999999999", "0." + "0" * 400 + "1", "1e-400"]
    assert matching(compiled, *texts) == texts[:3]


def test_february() -> None:
    """Dates are dates."""
    compiled = grammar(json={"type": "string", "format": "date"})
    texts = [
        f'"{text}"' for text in ("2024-02-29", "2000-02-29", "2023-02-28", "2023-02-29", "1900-02-29", "2024-04-31")
    ]
    assert matching(compiled, *texts) == texts[:3]


def test_properties_come_in_the_order_of_the_schema() -> None:
    """Named ones first."""
    compiled = grammar(json={"properties": {"b": {}, "a": {}}, "type": "object"})
    assert matching(compiled, '{"b":1,"a":1}', '{"a":1,"b":1}', '{"a":1,"c":1}') == ['{"b":1,"a":1}', '{"a":1,"c":1}']


def test_limits_on_size_and_depth() -> None:
    """Each names the limit."""
    deep: Schema = {"type": "null"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="nested more than 64 levels"):
        grammar(json=deep)
    for _ in range(600):
        deep = {"const": [deep]}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        grammar(json=deep)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        grammar(structural_tag={"format": {"type": "or", "elements": [deep]}})
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        grammar(json="[" * 100_000)
    with pytest.raises(InvalidRequest, match="the limit is 262144"):
        grammar(json={"enum": ["x" * 300_000]})
    with pytest.raises(InvalidRequest, match="the limit is 32"):
        grammar(json={"patternProperties": {f"^{number}$": {} for number in range(40)}})
    with pytest.raises(InvalidRequest, match="at most 5000"):
        grammar(json={"type": "integer", "multipleOf": 1_000_000})
    with pytest.raises(InvalidRequest, match="surrogate"):
        grammar(json={"const": "\ud800"})


def test_a_deep_schema_within_the_limit() -> None:
    """Sixty levels work."""
    deep: Schema = {"const": 1}
    for _ in range(60):
        deep = {"type": "array", "items": deep, "minItems": 1, "maxItems": 1}
    assert accepts(grammar(json=deep), "[" * 60 + "1" + "]" * 60)
