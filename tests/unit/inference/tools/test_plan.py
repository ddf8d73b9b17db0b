"""What tools and tool_choice of a request lead to; the grammars are run by the library that enforces them."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from pydantic import TypeAdapter, ValidationError

from heddle.errors import InvalidRequest
from heddle.inference.models.source import TINY_FOLDER
from heddle.inference.prompt.reasoning import after_optional_reasoning, detect_marks
from heddle.inference.tokenization.tokenizer import Tokenizer
from heddle.inference.tools import ToolFormat, ToolPlan, detect_format
from heddle.inference.tools.formats import HERMES, JSON, LLAMA, MISTRAL, MISTRAL_NAMED
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta
from heddle.inference.tools.request import NamedToolChoice, Tool, ToolChoice
from tests.unit.inference.vocabularies import CHATML, backend, tokenizer

SCHEMA = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}
NAMED = NamedToolChoice.model_validate({"type": "function", "function": {"name": "f"}})
F, G = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {"any": [1, "a"]}}'
BAD_F = F.replace("1", "2")


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    """The byte-level vocabulary as the constraint library reads it; the marks of Hermes are tokens in it."""
    made = tokenizer()
    return LLTokenizer(made.backend.to_str(), eos_token=made.eos_token_ids[0])


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


def test_an_explicit_none_hides_the_tools_and_still_checks_them() -> None:
    assert ToolPlan.of([tool()], "none", True, None) is None
    assert refused([tool(), tool()], "none") == "tools.1.function.name"


@pytest.mark.parametrize(
    ("tools", "choice", "style", "param"),
    [
        ([], None, HERMES, "tools"),
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


BARE_F, BARE_G = F.replace("arguments", "parameters"), G.replace("arguments", "parameters")


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (LLAMA, BARE_F),
        (LLAMA, f"{BARE_F}; {BARE_G}"),
        (JSON, F),
        (MISTRAL, f"[TOOL_CALLS][{F}, {G}]"),
        (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'),
    ],
)
def test_what_a_grammar_allows_its_parser_reads(vocabulary: LLTokenizer, style: ToolFormat, text: str) -> None:
    forced = plan("required", style=style)
    constraint = forced.constraint(vocabulary)
    assert constraint is not None
    assert accepted(constraint.grammar, vocabulary, text) == (text, True)
    parser = forced.parser()
    pieces = [*parser.push(text), *parser.finish()]
    assert {type(piece) for piece in pieces} == {CallStart, CallArguments}
    assert parser.num_calls == text.count('"f"') + text.count("f[") + text.count('"g"') + text.count("g[")


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
    while not matcher.is_stopped() and len(ids) < 300:
        allowed = [token_id for token_id, bias in enumerate(matcher.compute_logit_bias()) if bias]
        chosen = random.choice(allowed)
        if vocabulary.eos_token in allowed and (random.random() < 0.6 or chosen == vocabulary.eos_token):
            return ids
        assert matcher.consume_token(chosen)
        ids.append(chosen)
    return ids if matcher.is_accepting() else None


@pytest.mark.parametrize("style", [HERMES, LLAMA, JSON, MISTRAL, MISTRAL_NAMED], ids=lambda style: style.name)
@pytest.mark.parametrize("early", [False, True])
def test_whatever_is_written_under_constraint_is_read_as_valid_calls(
    vocabulary: LLTokenizer, style: ToolFormat, early: bool
) -> None:
    forced = plan("required", style=style, tools=[tool('f"ö', BOUNDED), tool("g", BOUNDED)])
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
                assert piece.name in ('f"ö', "g")
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
    grammar = after_optional_reasoning(constraint.grammar, vocabulary, marks)
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
        ("{{ tools }}<tool_call><function=x>", (), None),
        ("{{ tools }}<tool_call>name<arg_key>", (), None),
        ("{{ tools }}<|channel|>commentary", (), None),
        ("{{ tools }}<｜tool▁calls▁begin｜>", (), None),
        ("{{ tools }}<|tool_call|>[", (), None),
    ],
)
def test_the_format_is_read_from_template_and_vocabulary(
    template: str, marks: tuple[str, ...], expected: ToolFormat | None
) -> None:
    made = backend("wordpiece")
    made.add_special_tokens(list(marks))
    assert detect_format(Tokenizer(made, {}, {"default": template}, ())) == expected
    assert detect_format(Tokenizer(made, {}, {"default": "no"}, ()), template) == expected


def test_marks_that_are_special_tokens_are_known_by_id() -> None:
    made = backend("wordpiece")
    made.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"])
    ids = {made.token_to_id(text) for text in ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")}
    assert MISTRAL_NAMED.token_ids(Tokenizer(made, {}, {}, ())) == ids
    assert JSON.token_ids(Tokenizer(made, {}, {}, ())) == frozenset()


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
