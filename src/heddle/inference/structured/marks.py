"""Marks in the output of a model (of reasoning, of tool calls) as Lark: most are tokens of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.inference.structured.lark import ANYTHING, literal

if TYPE_CHECKING:
    from llguidance import LLTokenizer


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
