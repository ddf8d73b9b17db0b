"""Pieces of grammar text in the Lark dialect of llguidance."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heddle.inference.structured.schema import JsonStyle, compiled_schema

if TYPE_CHECKING:
    from llguidance import LLTokenizer

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
    return "%json " + json.dumps(compiled_schema(schema, style or JsonStyle(), param))


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


def mark(tokenizer: "LLTokenizer", text: str) -> str:
    """A mark, by its id where it is one token, because text never matches such a token."""
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{ids[0]}]>" if len(ids) == 1 else literal(text)


def text_up_to(tokenizer: "LLTokenizer", name: str, end: str) -> list[str]:
    """Rules by which `name` matches any text up to the first occurrence of a mark, and the mark as well."""
    closing = mark(tokenizer, end)
    # as text it is matched together with what goes before: that alone would run on into the beginning of the mark
    lazy = "" if closing.startswith("<") else "[lazy]"
    return [f"{name}{lazy}: {name.upper()} {closing}", f"{name.upper()}: {ANYTHING}"]
