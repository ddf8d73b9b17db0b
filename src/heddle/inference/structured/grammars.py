"""Grammars of requests: Lark, or EBNF as llama.cpp writes it (GBNF)."""

import re

from heddle.inference.structured.guidance import shortened
from heddle.inference.structured.limits import MAX_RULE_CHAIN, MAX_RULES, chain_length, check_text
from heddle.inference.structured.values import refusal

MAX_GRAMMAR_BYTES = 128 * 1024
MAX_NESTING = 100

_PIECE = re.compile(
    r'"(?:\\.|[^"\\\n])*+"|//[^\n]*|/(?:\\.|[^/\\\n])++/'
    r"|^[ \t]*[?!]*(?P<rule>[A-Za-z_]\w*)[^\S\n]*(?:\.-?\d+)?(?:\[[^\]\n]*\])?[^\S\n]*:|(?P<name>[A-Za-z_]\w*)",
    re.MULTILINE,
)
"""What may stand in Lark: texts, comments and expressions, in which nothing is a name; the head of a rule; a name."""
_EBNF_RULE = re.compile(r"^[ \t]*[A-Za-z_][\w.-]*[ \t]*::=", re.MULTILINE)


def lark_of(grammar: str, param: str) -> str:
    """The grammar in Lark syntax; EBNF is recognised by its `::=` and must define `root`."""
    check_text(grammar, MAX_GRAMMAR_BYTES, param)
    if grammar.lstrip().startswith("{"):
        raise refusal(param, "must be text in EBNF or Lark syntax")
    lark = _from_ebnf(grammar, param) if _EBNF_RULE.search(grammar) else grammar
    _check_rules(lark, param)
    return lark


def _from_ebnf(grammar: str, param: str) -> str:
    _check_nesting(grammar, param)
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the converter raises the bare class
        raise refusal(param, f"broken EBNF: {_short(error)}") from None


def _check_rules(lark: str, param: str) -> None:
    """Refuse more rules, or longer chains of them, than the compiler can follow."""
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


def _check_nesting(grammar: str, param: str) -> None:
    """The converter works by recursion."""
    depth = 0
    for character in grammar:
        depth = max(0, depth + (character in "([") - (character in ")]"))
        if depth > MAX_NESTING:
            raise refusal(param, f"is nested more than {MAX_NESTING} levels deep")


def _short(error: Exception) -> str:
    return shortened(" ".join(str(error).split()), 200)
