"""Pieces of grammar text in the Lark dialect of llguidance."""

import json
from collections.abc import Sequence
from typing import Any

from heddle.inference.structured.schema import compiled_schema
from heddle.inference.structured.style import JsonStyle

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
