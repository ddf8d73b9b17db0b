"""Structured outputs and response formats: what comes out obeys, and what cannot be obeyed is refused."""

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.support.chat import FORCED, Chat, containing, joined

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TINY = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
HOT = {"temperature": 1.0, "max_tokens": 200}


def hold(chat: Chat, **fields: Any) -> str:
    """The text of a chat that must come to its own end."""
    choice = chat.choice(**{**HOT, **fields})
    assert choice["finish_reason"] == "stop", choice
    return str(choice["message"]["content"])


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["object", "string"])
def test_json(chat: Chat, schema: Any) -> None:
    for seed in range(3):
        jsonschema.validate(json.loads(hold(chat, structured_outputs={"json": schema}, seed=seed)), SCHEMA)


def test_regex(chat: Chat) -> None:
    for seed in range(3):
        text = hold(chat, structured_outputs={"regex": "[0-9]{3}-[a-c]{2}"}, seed=seed)
        assert re.fullmatch("[0-9]{3}-[a-c]{2}", text)


def test_choice(chat: Chat) -> None:
    texts = {hold(chat, structured_outputs={"choice": ["red", "green", "a.b"]}, seed=seed) for seed in range(6)}
    assert texts <= {"red", "green", "a.b"}
    assert hold(chat, structured_outputs={"choice": ["only this"]}) == "only this"


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" ("b" | "c") tail\ntail ::= "d"',
        'start: "a" middle "d"\nmiddle: "b" | "c"',
        '?start: "a" /[bc]/ "d"',
    ],
    ids=["ebnf", "lark", "lark with a pattern"],
)
def test_grammar(chat: Chat, grammar: str) -> None:
    assert hold(chat, structured_outputs={"grammar": grammar}) in ("abd", "acd")


@pytest.mark.parametrize("text", ["a <think> b", "<tool_call>x", "<|im_end|>"])
def test_texts_of_special_tokens_are_spelled(chat: Chat, text: str) -> None:
    """A text that looks like a special token is written with ordinary ones."""
    choice = chat.choice(structured_outputs={"choice": [text]}, max_tokens=40, return_token_ids=True)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", text)
    assert len(choice["token_ids"]) > len(text) // 3


def test_json_object(chat: Chat) -> None:
    """Any object: without quotes and blanks it can only be the empty one."""
    bias = {**containing("}", 30), **containing('"', -100), **containing(" ", -100), **containing("\n", -100)}
    fields = {"logit_bias": bias, "max_tokens": 20}
    for form in ({"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}}):
        assert json.loads(hold(chat, **form, **fields)) == {}


@pytest.mark.parametrize("where", ["structured_outputs", "response_format"])
def test_structural_tag(chat: Chat, where: str) -> None:
    """A tag that must be written: its content follows the schema."""
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": TINY},
            "end": "</f>",
        },
    }
    fields = {"response_format": tag} if where == "response_format" else {where: {"structural_tag": json.dumps(tag)}}
    text = hold(chat, **fields)
    assert text.startswith("<f>") and text.endswith("</f>")
    assert json.loads(text[3:-4]) == {"a": 1}


def test_disable_any_whitespace(chat: Chat) -> None:
    """With blanks favoured they fill what may hold them; compact JSON has none."""
    bias = {**containing(" ", 50), **containing("\n", 50)}
    spaced = chat.choice(**HOT, structured_outputs={"json": SCHEMA}, logit_bias=bias)["message"]["content"]
    assert any(character.isspace() for character in spaced)
    text = hold(chat, structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}, logit_bias=bias)
    assert not any(character.isspace() for character in text)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_whitespace_pattern(chat: Chat) -> None:
    bias = containing("\n", FORCED)
    wide = chat.choice(**HOT, structured_outputs={"json": TINY}, logit_bias=bias)["message"]["content"]
    assert "\n" in wide
    text = hold(chat, structured_outputs={"json": TINY, "whitespace_pattern": "[ ]{0,2}"}, logit_bias=bias)
    assert "\n" not in text and "   " not in text and json.loads(text) == {"a": 1}


def test_disable_additional_properties(chat: Chat) -> None:
    """With the closing brace unlikely an open object grows; a closed one cannot."""
    schema = {key: value for key, value in TINY.items() if key != "additionalProperties"}
    bias = {**containing("}", -100), **containing(",", 50)}
    fields = {"temperature": 0, "logit_bias": bias, "max_tokens": 30}
    open_objects = {"json": schema, "disable_any_whitespace": True}
    assert "," in chat.choice(**fields, structured_outputs=open_objects)["message"]["content"]
    closed = {**open_objects, "disable_additional_properties": True}
    assert json.loads(hold(chat, **fields, structured_outputs=closed)) == {"a": 1}


def test_disable_fallback(chat: Chat) -> None:
    for flag in (True, False, None):
        assert hold(chat, structured_outputs={"regex": "ab", "disable_fallback": flag}) == "ab"


@pytest.mark.parametrize("flag", [True, False, None])
def test_backend_was_auto(chat: Chat, flag: bool | None) -> None:
    assert hold(chat, structured_outputs={"regex": "ab", "_backend_was_auto": flag}) == "ab"


@pytest.mark.parametrize("backend", ["guidance", "auto", None])
def test_backend(chat: Chat, backend: str | None) -> None:
    assert hold(chat, structured_outputs={"regex": "ab", "_backend": backend}) == "ab"


@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer", "zzz"])
def test_backends_that_are_not_here_are_named(chat: Chat, backend: str) -> None:
    error = chat.refused(400, structured_outputs={"regex": "ab", "_backend": backend, "disable_fallback": True})
    assert backend in error["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"regex": "a", "choice": ["a"]},
        {"choice": []},
        {"regex": "(("},
        {"json": "{"},
        {"json": '"text"'},
        {"grammar": "root ::= "},
        {"grammar": ""},
        {"grammar": "start: missing_rule"},
        {"structural_tag": "{"},
        {"structural_tag": "{}"},
        {"json": {"type": "no such type"}},
    ],
    ids=json.dumps,
)
def test_constraints_that_cannot_be_are_400(chat: Chat, wrong: dict[str, Any]) -> None:
    error = chat.refused(400, structured_outputs=wrong)
    assert (error["param"] or "").startswith("structured_outputs"), error


@pytest.mark.parametrize(
    "schema",
    [{"type": "array", "uniqueItems": True}, {"not": {"type": "string"}}],
    ids=["uniqueItems", "not"],
)
def test_schema_features_that_cannot_be_enforced_are_400(chat: Chat, schema: dict[str, Any]) -> None:
    chat.refused(400, structured_outputs={"json": schema})
    chat.refused(400, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def test_response_format_json_schema(chat: Chat) -> None:
    for strict in (True, False, None):
        form = {"name": "pair", "description": "Two things.", "schema": SCHEMA, "strict": strict}
        text = hold(chat, response_format={"type": "json_schema", "json_schema": form}, seed=1)
        jsonschema.validate(json.loads(text), SCHEMA)


def test_response_format_text_and_null(chat: Chat) -> None:
    plain = chat.token_ids()
    assert chat.token_ids(response_format={"type": "text"}) == plain
    assert chat.token_ids(response_format=None) == plain


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"type": "json_schema"}, 400),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, 400),
        ({"type": "zzz"}, 422),
        ({}, 422),
        ({"type": "json_schema", "json_schema": {"name": 5, "schema": {}}}, 422),
        ("json_object", 422),
    ],
    ids=json.dumps,
)
def test_response_formats_that_cannot_be(chat: Chat, form: Any, status: int) -> None:
    assert "response_format" in chat.refused(status, response_format=form)["param"]


def test_response_format_goes_before_structured_outputs(chat: Chat) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": TINY}}
    text = hold(chat, response_format=form, structured_outputs={"json": SCHEMA})
    assert json.loads(text) == {"a": 1}


def test_constraints_stream(chat: Chat) -> None:
    chunks = chat.chunks(**HOT, structured_outputs={"json": SCHEMA}, seed=4)
    jsonschema.validate(json.loads(joined(chunks)), SCHEMA)
    assert joined(chunks) == hold(chat, structured_outputs={"json": SCHEMA}, seed=4)


def test_constraints_of_neighbours_do_not_mix(chat: Chat) -> None:
    """Four choices of one request, each with its own state of the constraint."""
    answer = chat.answer(**HOT, n=4, seed=2, structured_outputs={"json": SCHEMA})
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_a_constraint_outlasts_a_bias(chat: Chat) -> None:
    """A token that the grammar forbids is not drawn, however it is favoured."""
    assert hold(chat, structured_outputs={"choice": ["red"]}, logit_bias=containing("x", FORCED)) == "red"
