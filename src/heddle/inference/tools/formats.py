"""The syntaxes in which models write tool calls, and which of them a model uses."""

import re
from dataclasses import dataclass
from typing import Literal

from heddle.inference.tokenization.tokenizer import Tokenizer

Layout = Literal["tagged", "list", "named", "bare"]
"""tagged: `<start>{object}<end>` per call; list: `<start>[{object}, ...]`; named: `<start>name<separator>{arguments}`
per call; bare: `{object}; {object}` as the whole output."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How one model writes its calls."""

    name: str
    layout: Layout
    start: str = ""
    """What goes before a call (bare: may go before the first one)."""
    end: str = ""
    gap: str = ""
    """White space that the model was taught around the JSON inside the marks."""
    arguments_key: str = "arguments"
    separator: str = ""

    def token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Marks that are tokens; the detokenizer must show them even where they are special tokens."""
        marks = {self.start, self.end, self.separator, CALL_ID if self.separator else ""}
        return frozenset(token_id for token_id, text in tokenizer.added_tokens.items() if text in marks)


CALL_ID = "[CALL_ID]"
"""Newer Mistral models write an id of their own between name and arguments."""

HERMES = ToolFormat("hermes", "tagged", start="<tool_call>", end="</tool_call>", gap="\n")
LLAMA = ToolFormat("llama", "bare", start="<|python_tag|>", arguments_key="parameters")
JSON = ToolFormat("json", "bare")
MISTRAL = ToolFormat("mistral", "list", start="[TOOL_CALLS]")
MISTRAL_NAMED = ToolFormat("mistral-named", "named", start="[TOOL_CALLS]", separator="[ARGS]")


FOREIGN = re.compile(r"<function=|<arg_key>|<\|channel\|>")
"""Signs of syntaxes that are not read here, though the marks of a known one may stand beside them."""
OTHER_MARK = re.compile(r"<[^<>{}\s'\"]*tool[^<>{}\s'\"]*call[^<>{}\s'\"]*begin[^<>{}\s'\"]*>|<\|tool_call")


def detect_format(tokenizer: Tokenizer, template: str | None = None) -> ToolFormat | None:
    """The format that a chat template (or else those of the model) teaches; None without tools or in a foreign syntax.

    A template with tools but without any marks is taken to mean plain JSON objects.
    """
    source = "\n".join(tokenizer.chat_templates.values()) if template is None else template
    added = set(tokenizer.added_tokens.values())
    if "tools" not in source or FOREIGN.search(source):
        return None
    if MISTRAL.start in source or MISTRAL.start in added:
        return MISTRAL_NAMED if MISTRAL_NAMED.separator in source else MISTRAL
    if HERMES.start in source:
        return HERMES
    if OTHER_MARK.search(source):
        return None
    if LLAMA.start in added or '"parameters"' in source:
        return LLAMA
    return JSON
