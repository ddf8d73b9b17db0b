"""Grammars of requests: Lark, or EBNF as llama.cpp writes it (GBNF)."""

import re

from heddle.inference.structured.limits import check_text
from heddle.inference.structured.values import refusal, shortened

MAX_GRAMMAR_BYTES = 128 * 1024
MAX_NESTING = 100

_EBNF_RULE = re.compile(r"^[ \t]*[A-Za-z_][\w.-]*[ \t]*::=", re.MULTILINE)


def lark_of(grammar: str, param: str) -> str:
    """The grammar in Lark syntax; EBNF is recognised by its `::=` and must define `root`."""
    check_text(grammar, MAX_GRAMMAR_BYTES, param)
    if grammar.lstrip().startswith("{"):
        raise refusal(param, "must be text in EBNF or Lark syntax")
    if not _EBNF_RULE.search(grammar):
        return grammar
    _check_nesting(grammar, param)
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the converter raises the bare class
        raise refusal(param, f"broken EBNF: {_short(error)}") from None


def _check_nesting(grammar: str, param: str) -> None:
    """The converter works by recursion."""
    depth = 0
    for character in grammar:
        depth = max(0, depth + (character in "([") - (character in ")]"))
        if depth > MAX_NESTING:
            raise refusal(param, f"is nested more than {MAX_NESTING} levels deep")


def _short(error: Exception) -> str:
    return shortened(" ".join(str(error).split()), 200)
