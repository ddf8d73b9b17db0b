"""Grammars that force valid tool calls, in the syntax in which a model writes them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from heddle.inference.structured.guidance import LLTokenizer, refusal
from heddle.inference.structured.lark import json_rule, literal, mark, text_up_to, text_without
from heddle.inference.tools.channels import answer_head, call_head, message_rules
from heddle.inference.tools.element_grammar import ElementRules
from heddle.inference.tools.formats import FunctionDefinition, ToolFormat

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
        rules = self._rules([True] * len(self._functions))
        if self._style.layout == "harmony":
            return "\n".join(["start: thoughts call", *message_rules(self._tokenizer), *rules])
        return "\n".join([f"start: {self._calls(several)}", *rules])

    def free(self, several: bool) -> str:
        """Lark for any text, in which the calls that occur have valid arguments where the function is strict."""
        style = self._style
        if style.layout == "harmony":
            start = f"thoughts (call | {answer_head(self._tokenizer)} TEXT)"
            rules = [*message_rules(self._tokenizer), f"TEXT: {text_without([])}"]
        elif style.brackets and not (style.layout == "pythonic" and style.start):
            start = f"{self._calls(several)} | PLAIN"
            rules = [rf"PLAIN: /([^{re.escape(style.brackets)}\s](.|\n)*)?/"]
        else:
            opening = style.section_start or style.start
            rules = [*text_up_to(self._tokenizer, "opening", opening), f"TEXT: {text_without([opening])}"]
            start = f"(opening {self._after_opening(several)}){'*' if several else '?'} TEXT"
        strict = [bool(function.strict) for function, _ in self._functions]
        return "\n".join([f"start: {start}", *rules, *self._rules(strict)])

    def beside(self, several: bool, other: str) -> str:
        """Lark for calls, valid where their function is strict, or for what the grammar named `other` matches."""
        rules = self._rules([bool(function.strict) for function, _ in self._functions])
        if self._style.layout == "harmony":
            head = answer_head(self._tokenizer)
            return "\n".join([f"start: thoughts (call | {head} @{other})", *message_rules(self._tokenizer), *rules])
        return "\n".join([f"start: {self._calls(several)} | @{other}", *rules])

    def _rules(self, strict: Sequence[bool]) -> list[str]:
        """One rule per function for its call, and those of its arguments."""
        rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(self._functions)))}"]
        for number, ((function, param), exact) in enumerate(zip(self._functions, strict, strict=True)):
            schema: dict[str, Any] = ANY_OBJECT | (function.parameters or {}) if exact else ANY_OBJECT
            rules += self._call_rules(number, function.name, schema, f"{param}.parameters")
        return rules

    def _call_rules(self, number: int, name: str, schema: dict[str, Any], param: str) -> list[str]:
        style, call = self._style, f"call_{number}"
        if style.layout == "elements" and style.elements is not None:
            if not name or re.search(r"[\s<>{}\[\]\"'=]", name):
                raise refusal(param.replace(".parameters", ".name"), "this model can call no function of such a name")
            return ElementRules(self._tokenizer, style.elements, call, param).rules(name, schema)
        if style.layout == "pythonic":
            return ElementRules(self._tokenizer, None, call, param).rules(name, schema)
        arguments = f"arguments_{number}"
        rule = f"{arguments}: {json_rule(schema, param=param)}"
        if style.layout == "harmony":
            return [rule, f"{call}: {call_head(self._tokenizer, name)} {arguments}"]
        if style.layout == "named":
            head, tail = self._text(f"{style.before_name}{name}{style.after_name}"), self._text(style.after_arguments)
            return [rule, f"{call}: {head} {arguments} {tail}"]
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{style.arguments_key}": '
        return [rule, f'{call}: {literal(head)} {arguments} "}}"']

    def _text(self, text: str) -> str:
        """Lark for a text that may hold marks."""
        marks = "|".join(re.escape(inner) for inner in self._style.inner_marks)
        parts = re.split(f"({marks})", text) if marks else [text]
        return " ".join(
            mark(self._tokenizer, part) if part in self._style.inner_marks else literal(part) for part in parts if part
        )

    def _calls(self, several: bool) -> str:
        """Lark for one call, or for one or more, with the marks around them."""
        style = self._style
        if style.layout == "bare":
            return "call (/; ?/ call)*" if several else "call"
        if not style.openings:
            return self._after_opening(several)
        opening = mark(self._tokenizer, style.section_start or style.start)
        one = f"{opening} {self._after_opening(several)}"
        if style.layout in ("list", "pythonic") or style.section_start or not several:
            return one
        between = "/\\n?/ " if style.layout in ("tagged", "elements") else ""
        return f"{one} ({between}{one})*"

    def _after_opening(self, several: bool) -> str:
        """Lark for what follows the mark before a call, or before all of them."""
        style = self._style
        end = mark(self._tokenizer, style.end) if style.end else ""
        if style.section_start:
            one = f"{mark(self._tokenizer, style.start)} call {end}"
            more = f" (/\\n?/ {one})*" if several else ""
            return f"{one}{more} {mark(self._tokenizer, style.section_end)}"
        if style.layout == "named":
            return "call"
        if style.layout in ("list", "pythonic"):
            return f'{literal(style.gap + "[")} call{" (/, ?/ call)*" if several else ""} "]" {end}'
        gap = f"{literal(style.gap)} " if style.gap else ""
        closes_itself = style.elements is not None and style.elements.close == style.end
        return f"{gap}call" if closes_itself else f"{gap}call {gap}{end}"
