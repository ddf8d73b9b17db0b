"""Grammars (Lark, as llguidance reads it) in which a model can only write valid tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.inference.structured.lark import json_rule, literal, mark, text_up_to, text_without
from heddle.inference.tools.formats import ToolFormat
from heddle.inference.tools.request import FunctionDefinition

if TYPE_CHECKING:
    from llguidance import LLTokenizer

ANY_OBJECT = {"type": "object"}


class CallGrammar:
    """The calls of one request in the syntax of one model."""

    def __init__(self, tokenizer: LLTokenizer, style: ToolFormat, functions: Sequence[tuple[FunctionDefinition, str]]):
        """`functions`: those that may be called, each with the name of its field for error messages."""
        self._tokenizer = tokenizer
        self._style = style
        self._functions = functions

    def forced(self, several: bool) -> str:
        """Lark for nothing but calls: one, or as many as the model likes."""
        return "\n".join([f"start: {self._calls(several)}", *self._rules([True] * len(self._functions))])

    def free(self, several: bool) -> str:
        """Lark for any text, in which the calls that occur have valid arguments where the function is strict."""
        style = self._style
        if style.layout == "bare":
            start = f"{self._calls(several)} | PLAIN"
            rules = [r"PLAIN: /([^{\[\s](.|\n)*)?/"]
        else:
            rules = [*text_up_to(self._tokenizer, "opening", style.start), f"TEXT: {text_without([style.start])}"]
            start = f"(opening {self._after_start(several)}){'*' if several else '?'} TEXT"
        strict = [bool(function.strict) for function, _ in self._functions]
        return "\n".join([f"start: {start}", *rules, *self._rules(strict)])

    def _rules(self, strict: Sequence[bool]) -> list[str]:
        """One rule per function for its call and one for its arguments."""
        style = self._style
        rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(self._functions)))}"]
        for number, ((function, param), exact) in enumerate(zip(self._functions, strict, strict=True)):
            schema = ANY_OBJECT | (function.parameters or {}) if exact else ANY_OBJECT
            rules.append(f"arguments_{number}: {json_rule(schema, param=f'{param}.parameters')}")
            if style.layout == "named":
                name = f"{literal(function.name)} {mark(self._tokenizer, style.separator)}"
                rules.append(f"call_{number}: {name} arguments_{number}")
            else:
                head = f'{{"name": {json.dumps(function.name, ensure_ascii=False)}, "{style.arguments_key}": '
                rules.append(f'call_{number}: {literal(head)} arguments_{number} "}}"')
        return rules

    def _calls(self, several: bool) -> str:
        """Lark for one call, or for one or more, with the marks around them."""
        style = self._style
        if style.layout == "bare":
            return "call (/; ?/ call)*" if several else "call"
        one = f"{mark(self._tokenizer, style.start)} {self._after_start(several)}"
        if style.layout == "list" or not several:
            return one
        between = "/\\n?/ " if style.layout == "tagged" else ""
        return f"{one} ({between}{one})*"

    def _after_start(self, several: bool) -> str:
        """Lark for what follows a start mark."""
        style = self._style
        if style.layout == "named":
            return "call"
        if style.layout == "list":
            return f'{literal(style.gap + "[")} call{" (/, ?/ call)*" if several else ""} "]"'
        gap = f"{literal(style.gap)} " if style.gap else ""
        return f"{gap}call {gap}{mark(self._tokenizer, style.end)}"
