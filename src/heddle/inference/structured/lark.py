"""Grammars in the Lark dialect of llguidance: pieces of text, and grammars of requests (Lark or GBNF)."""

import json
import re
from collections.abc import Sequence
from typing import Any

from heddle.inference.structured.checks import MAX_RULE_CHAIN, MAX_RULES, chain_length, check_text
from heddle.inference.structured.guidance import LLTokenizer, refusal, shorten
from heddle.inference.structured.schema import JsonStyle, compile_schema

OPTIONS = '%llguidance {"no_forcing": true}'
"""Text that can be only one way is not looked up in advance: for long repetitions that takes minutes."""

ANYTHING = "/(?s:.*)/"


def literal(text: str) -> str:
    """A string literal; the empty text as well."""
    return json.dumps(text)


def json_rule(schema: dict[str, Any] | bool, style: JsonStyle | None = None, param: str = "tools") -> str:
    """The body of a rule that matches JSON valid under `schema`, to be put after `name: `.

    Every keyword of the schema is enforced; InvalidRequest (with `param`) names what cannot be.
    """
    return "%json " + json.dumps(compile_schema(schema, style or JsonStyle(), param))


def text_without(forbidden: Sequence[str]) -> str:
    """The body of a terminal: any text in which none of `forbidden` occurs; for the right-hand side of `NAME: `."""
    if not forbidden:
        return ANYTHING
    holding = " | ".join(literal(text) for text in forbidden)
    return f"{ANYTHING} & ~({ANYTHING} ({holding}) {ANYTHING})"


def whole_grammar(lark: str, others: dict[str, str] | None = None) -> str:
    """A Lark text (and named ones that it refers to as `@name`) in the JSON form that matchers take."""
    grammars = [{"lark_grammar": f"{lark}\n{OPTIONS}\n"}]
    grammars += [{"name": name, "lark_grammar": f"{text}\n{OPTIONS}\n"} for name, text in (others or {}).items()]
    return json.dumps({"grammars": grammars})


def name_grammar(grammar: str, name: str, lark: str) -> str:
    """A grammar (JSON form) of a Lark text that refers to the given one as `@name`."""
    first, *others = json.loads(grammar)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**first, "name": name}, *others]})


def mark(tokenizer: LLTokenizer, text: str) -> str:
    """A mark, by its id where it is one token, because text never matches such a token."""
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{ids[0]}]>" if len(ids) == 1 else literal(text)


def text_up_to(tokenizer: LLTokenizer, name: str, end: str) -> list[str]:
    """Rules by which `name` matches any text up to the first occurrence of a mark, and the mark as well."""
    closing = mark(tokenizer, end)
    # as text it is matched together with what goes before: that alone would run on into the beginning of the mark
    lazy = "" if closing.startswith("<") else "[lazy]"
    return [f"{name}{lazy}: {name.upper()} {closing}", f"{name.upper()}: {ANYTHING}"]


MAX_GRAMMAR_BYTES = 128 * 1024
MAX_NESTING = 100

_PIECE = re.compile(
    r'"(?:\\.|[^"\\\n])*+"|//[^\n]*|/(?:\\.|[^/\\\n])++/'
    r"|^[ \t]*[?!]*(?P<rule>[A-Za-z_]\w*)[^\S\n]*(?:\.-?\d+)?(?:\[[^\]\n]*\])?[^\S\n]*:|(?P<name>[A-Za-z_]\w*)",
    re.MULTILINE,
)
"""What may stand in Lark: texts, comments and expressions, in which nothing is a name; the head of a rule; a name."""
_EBNF_RULE = re.compile(r"^[ \t]*[A-Za-z_][\w.-]*[ \t]*::=", re.MULTILINE)


def to_lark(grammar: str, param: str) -> str:
    """The grammar in Lark syntax; EBNF is recognised by its `::=` and must define `root`."""
    check_text(grammar, MAX_GRAMMAR_BYTES, param)
    if grammar.lstrip().startswith("{"):
        raise refusal(param, "must be text in EBNF or Lark syntax")
    lark = _from_ebnf(grammar, param) if _EBNF_RULE.search(grammar) else grammar
    references: dict[str, list[str]] = {}
    name = ""
    for found in _PIECE.finditer(lark):
        if found["rule"]:
            name = found["rule"]
            references.setdefault(name, [])
        elif found["name"] and name:
            references[name].append(found["name"])
    if len(references) > MAX_RULES:
        raise refusal(param, f"has {len(references)} rules; the limit is {MAX_RULES}")
    longest = chain_length(["start"], references)
    if longest > MAX_RULE_CHAIN:
        raise refusal(param, f"{longest} rules refer to each other in a row; the limit is {MAX_RULE_CHAIN}")
    return lark


def _from_ebnf(grammar: str, param: str) -> str:
    depth = 0
    for character in grammar:
        depth = max(0, depth + (character in "([") - (character in ")]"))
        if depth > MAX_NESTING:
            raise refusal(param, f"is nested more than {MAX_NESTING} levels deep")
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the converter raises the bare class
        raise refusal(param, f"invalid EBNF: {shorten(' '.join(str(error).split()), 200)}") from None
