"""What tools and tool_choice of a request lead to; the grammars are run by the library that enforces them."""

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from pydantic import TypeAdapter, ValidationError
from tokenizers import AddedToken

from heddle.errors import InvalidRequest
from heddle.inference.prompt.reasoning import allow_reasoning_before, detect_marks
from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.structured.constraints import ResponseFormat, constraint_for
from heddle.inference.tokenizer import Tokenizer
from heddle.inference.tools.channels import MARKS as CHANNEL_MARKS
from heddle.inference.tools.formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    GLM,
    GLM_COMPACT,
    GRANITE,
    HARMONY,
    HERMES,
    JSON,
    KIMI,
    LFM2,
    LLAMA,
    LLAMA4_PYTHONIC,
    MINIMAX,
    MISTRAL,
    MISTRAL_NAMED,
    NEMOTRON,
    PYTHONIC,
    QWEN_XML,
    SEED_OSS,
    NamedToolChoice,
    Tool,
    ToolChoice,
    ToolFormat,
    detect_format,
)
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta
from heddle.inference.tools.plan import ToolPlan
from tests.unit.inference.vocabularies import CHATML, backend, tokenizer

SCHEMA = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}
NAMED = NamedToolChoice.model_validate({"type": "function", "function": {"name": "f"}})
F, G = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {"any": [1, "a"]}}'
BAD_F = F.replace("1", "2")


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    """The byte-level vocabulary as the constraint library reads it; the marks of Hermes are tokens in it."""
    made = tokenizer()
    return LLTokenizer(made.backend.to_str(), eos_token=made.token_id("<|im_end|>"))


def tool(name: str = "f", parameters: Any = SCHEMA, strict: bool | None = None) -> Tool:
    """A tool of the request."""
    function = {"name": name, "parameters": parameters, "strict": strict}
    return Tool.model_validate(
        {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
    )


def plan(
    choice: ToolChoice | None = None,
    parallel: bool = True,
    style: ToolFormat | None = HERMES,
    tools: list[Tool] | None = None,
) -> ToolPlan:
    """The plan of two tools: f takes only {"x": 1}, g takes any object."""
    made = ToolPlan.of([tool(), tool("g", None)] if tools is None else tools, choice, parallel, style)
    assert made is not None
    return made


def refused(
    tools: list[Tool] | None, choice: ToolChoice | None = None, style: ToolFormat | None = HERMES
) -> str | None:
    """The field by whose name tools are refused."""
    with pytest.raises(InvalidRequest) as caught:
        ToolPlan.of(tools, choice, True, style)
    return caught.value.param


def accepted(grammar: str, vocabulary: LLTokenizer, text: str) -> tuple[str, bool]:
    """The part of a text that the grammar lets a model write, and whether the model may end there."""
    matcher = LLMatcher(vocabulary, grammar)
    assert matcher.get_error() == ""
    written: list[int] = []
    for token_id in tokenizer().encode(text):
        if not matcher.try_consume_tokens([token_id]):
            break
        written.append(token_id)
    return tokenizer().decode(written), matcher.is_accepting()


def test_without_tools_there_is_no_plan() -> None:
    assert ToolPlan.of(None, None, True, HERMES) is None
    assert ToolPlan.of(None, "none", True, None) is None
    assert ToolPlan.of([], "auto", True, None) is None
    assert refused([], None) == "tools"


def test_an_explicit_none_hides_the_tools_and_still_checks_them() -> None:
    assert ToolPlan.of([tool()], "none", True, None) is None
    assert refused([tool(), tool()], "none") == "tools.1.function.name"


@pytest.mark.parametrize(
    ("tools", "choice", "style", "param"),
    [
        ([], "required", HERMES, "tool_choice"),
        (None, "auto", HERMES, "tool_choice"),
        (None, NAMED, HERMES, "tool_choice"),
        ([tool("g")], NAMED, HERMES, "tool_choice"),
        ([tool(), tool()], None, HERMES, "tools.1.function.name"),
        ([tool()], "auto", None, "tools"),
        ([tool(), tool("g", {"type": 3})], None, HERMES, "tools.1.function.parameters"),
        ([tool(parameters={"type": "array"})], None, HERMES, "tools.0.function.parameters"),
    ],
)
def test_combinations_that_cannot_work_are_refused_by_name(
    tools: list[Tool] | None, choice: ToolChoice | None, style: ToolFormat | None, param: str
) -> None:
    assert refused(tools, choice, style) == param


def test_the_choice_decides_the_mode() -> None:
    assert [plan(choice).mode for choice in (None, "auto", "required", NAMED)] == ["auto", "auto", "required", "named"]
    assert [plan(choice).is_forced for choice in (None, "required", NAMED)] == [False, True, True]
    assert (plan(NAMED).is_named, plan("required").is_named) == (True, False)
    assert (plan("auto").several, plan("auto", parallel=False).several, plan(NAMED).several) == (True, False, False)


def test_the_template_sees_the_tools_as_they_were_sent() -> None:
    sent = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "mine": 1}}
    assert plan(tools=[Tool.model_validate(sent)]).shown == [sent]


CALL = "<tool_call>\n{}\n</tool_call>".format


@pytest.mark.parametrize(
    ("choice", "parallel", "text", "expected"),
    [
        ("required", True, CALL(F), (CALL(F), True)),
        ("required", True, CALL(G), (CALL(G), True)),
        ("required", True, CALL(F) + "\n" + CALL(G), (CALL(F) + "\n" + CALL(G), True)),
        ("required", True, CALL(F) + CALL(F), (CALL(F) + CALL(F), True)),
        ("required", False, CALL(F) + "\n" + CALL(G), (CALL(F), True)),
        (NAMED, True, CALL(F), (CALL(F), True)),
        (NAMED, True, CALL(F) + "\n" + CALL(F), (CALL(F), True)),
        ("required", True, "text", ("", False)),
        ("required", True, CALL(F)[:-13], (CALL(F)[:-13], False)),
        (NAMED, True, CALL(G), (CALL(G)[: CALL(G).index("g")], False)),
        ("required", True, CALL(BAD_F), (CALL(BAD_F)[: CALL(BAD_F).index("2")], False)),
    ],
)
def test_a_forced_call_is_all_that_can_be_written(
    vocabulary: LLTokenizer, choice: ToolChoice, parallel: bool, text: str, expected: tuple[str, bool]
) -> None:
    constraint = plan(choice, parallel).constraint(vocabulary)
    assert constraint is not None
    assert accepted(constraint.grammar, vocabulary, text) == expected
    assert constraint.after == ()


QWEN_F = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
DEEPSEEK_F = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>'
BARE_F, BARE_G = F.replace("arguments", "parameters"), G.replace("arguments", "parameters")


WRITTEN: list[tuple[ToolFormat, str]] = [
    (LLAMA, BARE_F),
    (LLAMA, f"{BARE_F}; {BARE_G}"),
    (JSON, F),
    (MISTRAL, f"[TOOL_CALLS][{F}, {G}]"),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'),
    (QWEN_XML, f"{QWEN_F}\n{QWEN_F}"),
    (GLM, "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
    (GLM_COMPACT, "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"),
    (
        MINIMAX,
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    (NEMOTRON, f"<TOOLCALL>[{F}, {G}]</TOOLCALL>"),
    (GRANITE, f"<|tool_call|>[{F}, {G}]"),
    (
        SEED_OSS,
        "<seed:tool_call>\n<function=f>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>",
    ),
    (PYTHONIC, "[f(x=1), g()]"),
    (LLAMA4_PYTHONIC, "<|python_start|>[f(x=1), g()]<|python_end|>"),
    (LFM2, "<|tool_call_start|>[f(x=1)]<|tool_call_end|>"),
    (DEEPSEEK, f"<｜tool▁calls▁begin｜>{DEEPSEEK_F}\n{DEEPSEEK_F}<｜tool▁calls▁end｜>"),
    (
        DEEPSEEK_V31,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    (
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"x": 1}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    (HARMONY, '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'),
]


@pytest.mark.parametrize(("style", "text"), WRITTEN)
def test_what_a_grammar_allows_its_parser_reads(vocabulary: LLTokenizer, style: ToolFormat, text: str) -> None:
    forced = plan("required", style=style)
    constraint = forced.constraint(vocabulary)
    assert constraint is not None
    assert accepted(constraint.grammar, vocabulary, text) == (text, True)
    parser = forced.parser()
    pieces = [*parser.push(text), *parser.finish()]
    assert {type(piece) for piece in pieces} == {CallStart, CallArguments}
    called = re.findall(r"(?<![\w.])(?:functions\.)?([fg])(?=[\"\[>\n<(: ]|<)", text)
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == called
    arguments = [piece.text for piece in pieces if isinstance(piece, CallArguments)]
    assert json.loads(arguments[0]) == {"x": 1}


def test_names_of_every_alphabet_can_be_called(vocabulary: LLTokenizer) -> None:
    name = 'größe "你" \\'
    constraint = plan("required", tools=[tool(name)]).constraint(vocabulary)
    assert constraint is not None
    text = CALL(json.dumps({"name": name, "arguments": {"x": 1}}, ensure_ascii=False))
    assert accepted(constraint.grammar, vocabulary, text) == (text, True)


BOUNDED = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x}", '{"y', None]}},
    "required": ["b"],
    "additionalProperties": False,
}


def written_at_random(grammar: str, vocabulary: LLTokenizer, random: Random) -> list[int] | None:
    """Tokens of an output drawn from what a grammar allows; None when it did not end in time."""
    matcher, ids = LLMatcher(vocabulary, grammar), list[int]()
    while not matcher.is_stopped() and len(ids) < 1500:
        allowed = [token_id for token_id, bias in enumerate(matcher.compute_logit_bias()) if bias]
        chosen = random.choice(allowed)
        if vocabulary.eos_token in allowed and (random.random() < 0.6 or chosen == vocabulary.eos_token):
            return ids
        assert matcher.consume_token(chosen)
        ids.append(chosen)
    return ids if matcher.is_accepting() else None


STYLES = [HERMES, LLAMA, JSON, MISTRAL, MISTRAL_NAMED, QWEN_XML, GLM, PYTHONIC, DEEPSEEK, KIMI]
AS_TEXT = (QWEN_XML, GLM, PYTHONIC)
"""Syntaxes without quotes around names."""


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize("early", [False, True])
def test_whatever_is_written_under_constraint_is_read_as_valid_calls(
    vocabulary: LLTokenizer, style: ToolFormat, early: bool
) -> None:
    name = "fö" if style in AS_TEXT else 'f"ö'
    forced = plan("required", style=style, tools=[tool(name, BOUNDED), tool("g", BOUNDED)])
    constraint = forced.constraint(vocabulary)
    assert constraint is not None
    outputs = [written_at_random(constraint.grammar, vocabulary, Random(seed)) for seed in range(12)]
    complete = [ids for ids in outputs if ids is not None]
    assert len(complete) >= 10
    for ids in complete:
        parser, calls = forced.parser(early), dict[int, str]()
        detokenizer = tokenizer().detokenizer()
        pieces = [piece for token_id in ids for piece in parser.push(detokenizer.push([token_id]))]
        for piece in [*pieces, *parser.finish()]:
            assert not isinstance(piece, ContentDelta)
            if isinstance(piece, CallStart):
                assert piece.name in (name, "g")
            calls[piece.index] = calls.get(piece.index, "") + getattr(piece, "text", "")
        assert len(calls) == parser.num_calls >= 1
        for arguments in calls.values():
            jsonschema.validate(json.loads(arguments), BOUNDED)


def test_text_is_free_in_auto_mode_unless_a_function_is_strict(vocabulary: LLTokenizer) -> None:
    assert plan("auto").constraint(vocabulary) is None


@pytest.mark.parametrize(
    ("style", "text", "written"),
    [
        (HERMES, "Hello <b> {", None),
        (HERMES, "", None),
        (HERMES, f"Wait. {CALL(F)}\n{CALL(G)} bye", None),
        (HERMES, f"Wait. {CALL(BAD_F)}", '<tool_call>\n{"name": "f", "arguments": {"x": '),
        (LLAMA, "Hello {", None),
        (LLAMA, BARE_F, None),
        (LLAMA, BARE_F.replace("1", "2"), '{"name": "f", "parameters": {"x": '),
        (MISTRAL, f"ok [TOOL_CALLS][{F}, {G}] bye", None),
        (MISTRAL, f"ok [TOOL_CALLS][{BAD_F}", '{"x": '),
        (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"x": 2', '{"x": '),
    ],
)
def test_calls_of_strict_functions_are_valid_in_auto_mode(
    vocabulary: LLTokenizer, style: ToolFormat, text: str, written: str | None
) -> None:
    strict = plan("auto", style=style, tools=[tool(strict=True), tool("g", SCHEMA)])
    constraint = strict.constraint(vocabulary)
    assert constraint is not None
    seen, may_end = accepted(constraint.grammar, vocabulary, text)
    if written is None:
        assert (seen, may_end) == (text, True)
    else:
        assert (seen.endswith(written), may_end) == (True, False)


def test_reasoning_may_go_before_a_forced_call(vocabulary: LLTokenizer) -> None:
    marks = detect_marks(tokenizer())
    constraint = plan("required").constraint(vocabulary)
    assert marks is not None and constraint is not None
    grammar = allow_reasoning_before(constraint.grammar, vocabulary, marks)
    for text in (CALL(F), f"<think>hm {{</think>\n\n{CALL(F)}", f"<think></think>{CALL(G)}"):
        assert accepted(grammar, vocabulary, text) == (text, True)
    assert accepted(grammar, vocabulary, "<think>hm</think>text") == ("<think>hm</think>", False)


def test_a_schema_that_cannot_be_enforced_is_refused_only_where_it_would_be(vocabulary: LLTokenizer) -> None:
    odd = tool(parameters={"type": "object", "properties": {"x": {"type": "string", "contentEncoding": "base64"}}})
    unsupported = tool(parameters={"type": "object", "dependentSchemas": {"a": {"not": {"required": ["b"]}}}})
    assert plan("auto", tools=[odd, tool("g", unsupported.function.parameters)]).constraint(vocabulary) is None
    with pytest.raises(InvalidRequest) as caught:
        plan("required", tools=[unsupported]).constraint(vocabulary)
    assert caught.value.param == "tools.0.function.parameters"


@pytest.mark.parametrize(
    ("template", "marks", "expected"),
    [
        (CHATML, (), JSON),
        (CHATML + "<tool_call>", (), HERMES),
        ("{{ tools }}[TOOL_CALLS]", (), MISTRAL),
        ("{{ tools }}", ("[TOOL_CALLS]",), MISTRAL),
        ("{{ tools }}[TOOL_CALLS]x[ARGS]", (), MISTRAL_NAMED),
        ('{{ tools }}{"name": "x", "parameters": {}}', (), LLAMA),
        ("{{ tools }}", ("<|python_tag|>",), LLAMA),
        ("{{ messages }}", ("<|python_tag|>",), None),
        ("{{ tools }}<tool_call><function=x>", (), QWEN_XML),
        ("{{ tools }}<tool_call>name\n<arg_key>", (), GLM),
        ("{{ tools }}<tool_call>{name}<arg_key>", (), GLM_COMPACT),
        ("{{ tools }}<minimax:tool_call>", (), MINIMAX),
        ("{{ tools }}<|channel|>commentary", (), None),
        ("{{ tools }}<|channel|>commentary<|message|>", ("<|channel|>", "<|message|>"), HARMONY),
        ("{{ tools }}<｜tool▁calls▁begin｜>", (), DEEPSEEK_V31),
        ("{{ tools }}<｜tool▁calls▁begin｜>```json", (), DEEPSEEK),
        ("{{ tools }}<|tool_calls_section_begin|>", (), KIMI),
        ("{{ tools }}", ("<|tool_calls_section_begin|>",), KIMI),
        ("{{ tools }}[f1(key=value), f2()]", (), PYTHONIC),
        ("{{ tools }}[f1(key=value)]", ("<|python_start|>",), LLAMA4_PYTHONIC),
        ("{{ tools }}<|tool_call_start|>[f()]", (), LFM2),
        ("{{ tools }}<function=x>", (), None),
        ("{{ tools }}<|tool_call_begin|>", (), None),
        ("{{ tools }}<|tool_call|>[", (), GRANITE),
        ("{{ tools }}", ("<|tool_call|>",), GRANITE),
        ("{{ tools }}<TOOLCALL>[", (), NEMOTRON),
        ("{{ tools }}<seed:tool_call><function=f>", (), SEED_OSS),
    ],
)
def test_the_format_is_read_from_template_and_vocabulary(
    template: str, marks: tuple[str, ...], expected: ToolFormat | None
) -> None:
    made = backend("wordpiece")
    made.add_special_tokens(list(marks))
    assert detect_format(Tokenizer(made, {}, {"default": template})) == expected
    assert detect_format(Tokenizer(made, {}, {"default": "no"}), template) == expected


def test_marks_that_are_special_tokens_are_known_by_id() -> None:
    made = backend("wordpiece")
    made.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"])
    ids = {made.token_to_id(text) for text in ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")}
    assert MISTRAL_NAMED.token_ids(Tokenizer(made, {}, {})) == ids
    assert JSON.token_ids(Tokenizer(made, {}, {})) == frozenset()


@pytest.mark.parametrize(
    "value",
    [
        {"function": {"name": "f"}},
        {"type": "web_search"},
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "f", "parameters": "x"}},
        {"type": "function", "function": {"name": "f", "strict": "maybe"}},
    ],
)
def test_tools_of_a_wrong_shape_fail_validation(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Tool.model_validate(value)


@pytest.mark.parametrize("value", ["always", 3, {"type": "function"}, {"type": "x", "function": {"name": "f"}}])
def test_choices_of_a_wrong_shape_fail_validation(value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ToolChoice).validate_python(value)


def test_the_tiny_models_template_teaches_hermes() -> None:
    template = (TINY_FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    assert detect_format(tokenizer(template=template)) == HERMES


TEXTS = {
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "maybe": {"anyOf": [{"enum": ["a"]}, {"type": "null"}, {"type": "integer", "maximum": 9}]},
        "code": {"type": "string", "pattern": "^[a-c]{2}$"},
        "short": {"type": "string", "maxLength": 3},
        "free": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["kind"],
    "$defs": {"Kind": {"type": "string", "enum": ["lamp", "rain"]}},
}


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("kind", "lamp", True),
        ("kind", "moon", False),
        ("maybe", "a", True),
        ("maybe", "null", True),
        ("maybe", "7", True),
        ("maybe", "17", False),
        ("maybe", "b", False),
        ("code", "ab", True),
        ("code", "ad", False),
        ("short", "abc", True),
        ("short", "abcd", False),
        ("free", "two\nlines </p> <b>", True),
    ],
)
def test_texts_between_tags_follow_the_schema_too(vocabulary: LLTokenizer, key: str, value: str, valid: bool) -> None:
    constraint = plan("required", style=QWEN_XML, tools=[tool(parameters=TEXTS)], parallel=False).constraint(vocabulary)
    assert constraint is not None
    pairs = {"kind": "rain"} | {key: value}
    elements = "".join(f"<parameter={name}>\n{given}\n</parameter>\n" for name, given in pairs.items())
    text = f"<tool_call>\n<function=f>\n{elements}</function>\n</tool_call>"
    assert (accepted(constraint.grammar, vocabulary, text) == (text, True)) is valid


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"properties": {"x": {"type": "string", "pattern": "a|b"}}}, "tools.0.function.parameters: pattern"),
        ({"anyOf": [{"required": ["x"]}]}, "tools.0.function.parameters.anyOf"),
        ({"required": ["x"]}, "tools.0.function.parameters.required"),
        ({"properties": {"a>b": {}}}, "tools.0.function.parameters.properties"),
    ],
)
def test_what_tags_cannot_enforce_is_refused_where_a_call_is_forced(
    vocabulary: LLTokenizer, schema: dict[str, Any], param: str
) -> None:
    forced = plan("required", style=QWEN_XML, tools=[tool(parameters={"type": "object", **schema})])
    with pytest.raises(InvalidRequest) as caught:
        forced.constraint(vocabulary)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("style", "call"),
    [
        (HERMES, CALL(F)),
        (MISTRAL, f"[TOOL_CALLS][{F}]"),
        (QWEN_XML, QWEN_F),
        (PYTHONIC, "[f(x=1)]"),
        (HARMONY, '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'),
    ],
)
def test_a_format_is_that_of_the_answer_beside_which_tools_may_be_called(
    vocabulary: LLTokenizer, style: ToolFormat, call: str
) -> None:
    schema = {"type": "object", "properties": {"y": {"enum": [2]}}, "required": ["y"], "additionalProperties": False}
    form = ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    asked = constraint_for(None, form, vocabulary)
    assert asked is not None
    head = "<|channel|>final<|message|>" if style == HARMONY else ""
    grammar = (
        plan("auto", style=style, tools=[tool(strict=True), tool("g")]).constraint_beside(asked, vocabulary).grammar
    )
    assert plan("auto", style=LLAMA).constraint_beside(asked, vocabulary) == asked
    for text in (call, f'{head}{{"y": 2}}'):
        assert accepted(grammar, vocabulary, text) == (text, True)
    assert not accepted(grammar, vocabulary, f'{head}{{"y": 3}}')[1]
    assert not accepted(grammar, vocabulary, call.replace("1", "2"))[1]
    assert accepted(grammar, vocabulary, f"{head}text") == (head, False)


MARKS = sorted({mark for style, _ in WRITTEN for mark in (*style.marks, *style.inner_marks)} | set(CHANNEL_MARKS))


@pytest.fixture(scope="module")
def special() -> Tokenizer:
    """A vocabulary in which the marks of every syntax are special tokens."""
    made = backend("byte level")
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Tokenizer(made, {"eos_token": "<|im_end|>"}, {"default": CHATML})


@pytest.mark.parametrize(("style", "text"), WRITTEN)
def test_marks_that_are_special_tokens_are_forced_and_read_by_id(
    special: Tokenizer, style: ToolFormat, text: str
) -> None:
    end = special.backend.token_to_id("<|im_end|>")
    forced = plan("required", style=style)
    constraint = forced.constraint(LLTokenizer(special.backend.to_str(), eos_token=end))
    assert constraint is not None
    matcher, ids = LLMatcher(LLTokenizer(special.backend.to_str(), eos_token=end), constraint.grammar), []
    for token_id in special.encode(text):
        assert matcher.consume_token(token_id), special.decode(ids, skip_special_tokens=False)
        ids.append(token_id)
    assert matcher.is_accepting()
    used = {mark for mark in MARKS if mark in text}
    assert {special.added_tokens[token_id] for token_id in ids if token_id in special.added_tokens} == used
    parser, detokenizer = forced.parser(), special.detokenizer(keep=style.token_ids(special))
    pieces = [piece for token_id in ids for piece in parser.push(detokenizer.push([token_id]))]
    pieces += parser.push(detokenizer.flush()) + parser.finish()
    assert {type(piece) for piece in pieces} == {CallStart, CallArguments}
