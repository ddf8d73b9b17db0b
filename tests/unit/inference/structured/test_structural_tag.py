"""Structural tags: each kind of node, and where free text ends."""

from typing import Any

import pytest

pytest.importorskip("llguidance")

from heddle.errors import InvalidRequest
from heddle.inference.structured.guidance import byte_tokenizer
from heddle.inference.structured.schema import JsonStyle
from heddle.inference.structured.structural_tag import structural_tag_grammar
from tests.unit.inference.structured.texts import END, accepts, grammar, matching

ONE: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}
CALLS: dict[str, Any] = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        {"type": "tag", "begin": "<f=x>", "content": ONE, "end": "</f>"},
        {"begin": "<f=y>", "content": DIGITS, "end": "</f>"},
    ],
}
TEXTS = [
    "",
    "hi",
    'hi <f=x>{"a":1}</f> and <f=y>12</f> end',
    '<f=x>{"a": 1}</f>',
    "<f=y>1</f> b",
    "a<f=y>1</f>",
    "a <f",
]
WRONG = ["<f=z>", "<f=", '<f=x>{"a":2}</f>', "<f=y>1"]


def tagged(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    """A tag node."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def constant(text: str) -> dict[str, Any]:
    """A node of fixed text."""
    return {"type": "const_string", "value": text}


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        (constant('a"b\n'), ['a"b\n'], ["", "a"]),
        (ONE, ['{"a":1}', '{"a": 1}'], ["{}"]),
        ({"type": "regex", "pattern": "a|b/c"}, ["a", "b/c"], ["ab"]),
        ({"type": "grammar", "grammar": 'root ::= [0-9] "+" [0-9]'}, ["1+2"], ["1+"]),
        ({"type": "grammar", "grammar": 'start: "x" y\ny: "y"*'}, ["x", "xyy"], ["y"]),
        ({"type": "any_text"}, ["", "anything\nat <all>"], []),
        ({"type": "any_text", "excludes": ["<", "no"]}, ["n o"], ["a<b", "not"]),
        ({"type": "any_text", "max_chars": 3}, ["", "äöü"], ["abcd"]),
        ({"type": "sequence", "elements": [constant("a"), DIGITS, constant("b")]}, ["a1b", "a22b"], ["ab", "a1"]),
        ({"type": "or", "elements": [constant("yes"), constant("no")]}, ["yes", "no"], ["yesno", ""]),
        ({"type": "optional", "content": constant("x")}, ["", "x"], ["xx"]),
        ({"type": "plus", "content": constant("x")}, ["x", "xxx"], [""]),
        ({"type": "star", "content": constant("x")}, ["", "xxx"], ["y"]),
        ({"type": "repeat", "min": 2, "max": 3, "content": constant("x")}, ["xx", "xxx"], ["x", "xxxx"]),
        ({"type": "repeat", "min": 2, "max": -1, "content": constant("x")}, ["xx", "xxxxx"], ["x"]),
        (tagged("<t>", ONE, "</t>"), ['<t>{"a":1}</t>'], ['<t>{"a":1}', "<t></t>"]),
        (tagged("<t>", {"type": "any_text"}, "</t>"), ["<t></t>", "<t>a < b </ t</t>"], ["<t>a", "<t>a</t>b"]),
        (tagged("<t>", {"type": "any_text"}, ["</t>", "|"]), ["<t>a</t>", "<t>a|"], ["<t>a|</t>"]),
        (tagged("<t>", {"type": "any_text", "max_chars": 2}, "</t>"), ["<t>ab</t>"], ["<t>abc</t>"]),
        (tagged("<t>", {"type": "any_text", "excludes": ["n"]}, "</t>"), ["<t>ab</t>"], ["<t>an</t>"]),
        (tagged("<t>", {"type": "regex", "pattern": ".*"}, "</t>"), ["<t>ab</t>", "<t></t>"], ["<t>ab"]),
        (tagged("<t>", constant("x"), ""), ["<t>x"], ["<t>"]),
        (CALLS, TEXTS, WRONG),
        ({**CALLS, "at_least_one": True}, TEXTS[3:5], [*TEXTS[:3], *TEXTS[5:], *WRONG]),
        ({**CALLS, "stop_after_first": True}, ["", "hi", TEXTS[3], TEXTS[5], "a <f"], [TEXTS[2], TEXTS[4], *WRONG]),
        ({**CALLS, "at_least_one": True, "stop_after_first": True}, [TEXTS[3]], [TEXTS[4], TEXTS[5], "hi", *WRONG]),
        ({**CALLS, "excludes": ["hi"]}, ["", TEXTS[3], "a <f"], ["hi", TEXTS[2]]),
        (tagged("<r>", CALLS, "</r>"), ["<r></r>", "<r>hi <f=y>1</f> x</r>"], ["<r>hi <f=q</r>", "<r></r>b", "<r>"]),
        (
            {"type": "tags_with_separator", "tags": [tagged("<i>", DIGITS, "</i>")], "separator": ","},
            ["", "<i>1</i>", "<i>1</i>,<i>22</i>"],
            ["<i>1</i>,", "<i>1</i><i>2</i>"],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [tagged("<i>", DIGITS, "</i>")],
                "separator": ",",
                "at_least_one": True,
                "stop_after_first": True,
            },
            ["<i>1</i>"],
            ["", "<i>1</i>,<i>2</i>"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    tagged("<think>", {"type": "any_text"}, "</think>"),
                    {"type": "or", "elements": [CALLS, constant("never")]},
                ],
            },
            ["<think>hm</think>hi", "<think></think>a<f=y>1</f>"],
            ["hi", "<think>hm</think><f=z>"],
        ),
    ],
)
def test_nodes(node: dict[str, Any], good: list[str], bad: list[str]) -> None:
    """Which texts each node allows."""
    assert matching(grammar(structural_tag={"type": "structural_tag", "format": node}), *good, *bad) == good


def test_two_schemas_with_definitions_of_the_same_name() -> None:
    """Do not mix."""
    parts = [
        {"type": "json_schema", "json_schema": {"$ref": "#/$defs/q", "$defs": {"q": {"const": value}}}}
        for value in (1, 2)
    ]
    compiled = grammar(structural_tag={"format": {"type": "sequence", "elements": [parts[0], constant(" "), parts[1]]}})
    assert matching(compiled, "1 2", "1 1", "2 2") == ["1 2"]


def test_the_older_form() -> None:
    """Structures with triggers, as an object or as text."""
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=x>", "schema": ONE["json_schema"], "end": "</f>"}],
        "triggers": ["<f="],
    }
    good = ["", "hi", 'a <f=x>{"a":1}</f> b <f=x>{"a": 1}</f>']
    assert matching(grammar(structural_tag=tag), *good, *WRONG) == good


def test_tokens_as_delimiters() -> None:
    """By id; the token itself, not its text."""
    node = {
        "type": "tag",
        "begin": {"type": "token", "token": ord("[")},
        "content": DIGITS,
        "end": {"type": "token", "token": ord("]")},
    }
    tag = {"format": node}
    assert accepts(structural_tag_grammar(tag, JsonStyle(), "structural_tag", byte_tokenizer()), "[12]")
    named = {"format": {**node, "begin": {"type": "token", "token": "<none such>"}}}
    with pytest.raises(InvalidRequest, match="is not one token of this model"):
        structural_tag_grammar(named, JsonStyle(), "structural_tag", byte_tokenizer())
    assert END not in (ord("["), ord("]"))


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ({}, "requires 'format'"),
        ({"type": "other", "format": constant("a")}, "must be 'structural_tag'"),
        ({"format": 3}, "must be an object"),
        ({"format": {"type": "dispatch", "rules": []}}, "'dispatch' is not a node type"),
        ({"format": {"type": ["tag"]}}, "is not a node type"),
        ({"format": {"type": "const_string"}}, "format/value: must be a string"),
        ({"format": {**ONE, "style": "qwen_xml"}}, "format/style: only 'json'"),
        ({"format": {**ONE, "any_order": True}}, "any_order"),
        ({"format": {"type": "json_schema", "json_schema": {"not": {}}}}, "'not' is not supported"),
        ({"format": {"type": "any_text", "max_tokens": 3}}, "use max_chars"),
        ({"format": {"type": "any_text", "excludes": "a"}}, "must be a list of strings"),
        ({"format": {"type": "sequence", "elements": []}}, "at least one item"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, constant("a")]}}, "must be last"),
        ({"format": {"type": "star", "content": {"type": "any_text"}}}, "cannot be repeated"),
        ({"format": {"type": "repeat", "min": 3, "max": 2, "content": constant("a")}}, "format/max"),
        ({"format": tagged("<t>", {"type": "any_text"}, "")}, "must not be empty"),
        ({"format": {"type": "tag", "begin": 1, "content": ONE, "end": "x"}}, "format/begin"),
        ({"format": {**CALLS, "triggers": []}}, "triggers"),
        ({"format": {**CALLS, "triggers": ["<g="]}}, "exactly one of the triggers"),
        ({"format": {**CALLS, "at_least_one": "yes"}}, "true or false"),
        ({"structures": [], "triggers": ["a"]}, "at least one item"),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "must be a schema"),
        ({"format": {"type": "grammar", "grammar": "root ::= nowhere"}}, "invalid EBNF"),
        ({"format": {"type": "regex", "pattern": "(("}}, "unclosed group"),
    ],
)
def test_refusals(tag: dict[str, Any], words: str) -> None:
    """Each names the node."""
    with pytest.raises(InvalidRequest) as refused:
        grammar(structural_tag=tag)
    assert refused.value.reason.startswith("structured_outputs.structural_tag: ")
    assert words in refused.value.reason
