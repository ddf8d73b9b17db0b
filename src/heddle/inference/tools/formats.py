"""Tools of a request, and the syntaxes in which models write calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ConfigDict, Field

from heddle.inference.tokenizer import Tokenizer
from heddle.inference.tools import channels
from heddle.inference.tools.element_calls import ElementMarks
from heddle.wire.lazy_model import LazyModel


class FunctionDefinition(LazyModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments object; null takes any object."""
    strict: bool | None = None
    """Arguments follow the schema in auto mode too; where a call is forced they always do."""


class Tool(LazyModel):
    """One tool of the request."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: FunctionDefinition


def make_tool(name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None) -> Tool:
    """A function of another interface; templates see only what it says."""
    said = {"description": description, "parameters": parameters, "strict": strict}
    function = {"name": name, **{key: value for key, value in said.items() if value is not None}}
    return Tool.model_validate({"type": "function", "function": function})


class FunctionName(LazyModel):
    """The function that must be called."""

    model_config = ConfigDict(extra="allow")
    name: str


class NamedToolChoice(LazyModel):
    """Exactly this function must be called."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: FunctionName


class AllowedTools(LazyModel):
    """Those of the tools that may be called, and whether one of them must be."""

    model_config = ConfigDict(extra="allow")
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedToolChoice] = Field(min_length=1)


class AllowedToolsChoice(LazyModel):
    """All tools are shown to the model, and only some of them may be called."""

    model_config = ConfigDict(extra="allow")
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


Layout = Literal["tagged", "list", "named", "bare", "elements", "pythonic", "harmony"]
"""tagged: `<start>{object}<end>` per call; list: `<start>[{object}, ...]`; named: `<start>name<separator>{arguments}`
per call; bare: `{object}; {object}` as the whole output; elements: `<start>`, tags around the name and each argument;
pythonic: `[name(argument=value), ...]`; harmony: messages with a recipient."""

_BLANK = " \t\r\n"


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
    section_start: str = ""
    """What goes before all calls together."""
    section_end: str = ""
    before_name: str = ""
    after_name: str = ""
    after_arguments: str = ""
    name_pattern: re.Pattern[str] = re.compile("(.+)")
    """Named layout: finds the name in what stands before the arguments."""
    inner_marks: tuple[str, ...] = ()
    """Marks inside a call."""
    elements: ElementMarks | None = None
    separators: str = _BLANK
    """Characters between marks and calls that say nothing."""
    has_short_ids: bool = False
    """The template takes ids of nine letters and digits only."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks around calls."""
        return tuple(text for text in (self.end, self.start, self.section_start, self.section_end) if text)

    @property
    def openings(self) -> tuple[str, ...]:
        """The texts that may begin a call in the middle of content."""
        element = self.elements.name if self.elements is not None else ""
        return tuple(text for text in (self.section_start, self.start, element) if text)

    @property
    def brackets(self) -> str:
        """Where calls need no mark: the characters that an output of calls begins with."""
        return {"bare": "{[", "pythonic": "["}.get(self.layout, "")

    @property
    def needs_known_names(self) -> bool:
        """Only the names of the request's tools tell a call from text that looks like one."""
        return bool(self.brackets) or (self.elements is not None and not self.elements.name)

    def token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Marks that are tokens; the detokenizer must show them even where they are special tokens."""
        if self.layout == "harmony":
            return channels.mark_ids(tokenizer)
        marks = {*self.marks, *self.inner_marks}
        return frozenset(token_id for token_id, text in tokenizer.added_tokens.items() if text in marks)


_LISTED = _BLANK + ",;[]"

HERMES = ToolFormat("hermes", "tagged", start="<tool_call>", end="</tool_call>", gap="\n")
LLAMA = ToolFormat("llama", "bare", start="<|python_tag|>", arguments_key="parameters", separators=_LISTED)
JSON = ToolFormat("json", "bare", separators=_LISTED)
MISTRAL = ToolFormat("mistral", "list", start="[TOOL_CALLS]", separators=_LISTED, has_short_ids=True)
NEMOTRON = ToolFormat("nemotron", "list", start="<TOOLCALL>", end="</TOOLCALL>", separators=_LISTED)
GRANITE = ToolFormat("granite", "list", start="<|tool_call|>", separators=_LISTED)
MISTRAL_NAMED = ToolFormat(
    "mistral-named",
    "named",
    start="[TOOL_CALLS]",
    after_name="[ARGS]",
    # newer models write an id of their own between name and arguments
    name_pattern=re.compile(r"([^\[]+?)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?"),
    inner_marks=("[ARGS]", "[CALL_ID]"),
    has_short_ids=True,
)
PYTHONIC = ToolFormat("pythonic", "pythonic", separators=_LISTED)
LLAMA4_PYTHONIC = ToolFormat(
    "llama4-pythonic", "pythonic", start="<|python_start|>", end="<|python_end|>", separators=_LISTED
)
LFM2 = ToolFormat("lfm2", "pythonic", start="<|tool_call_start|>", end="<|tool_call_end|>", separators=_LISTED)
_FUNCTION_MARKS = ElementMarks(
    name="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
    close="</function>",
    line="\n",
)
QWEN_XML = ToolFormat(
    "qwen-xml",
    "elements",
    start="<tool_call>",
    end="</tool_call>",
    gap="\n",
    elements=replace(_FUNCTION_MARKS, padding="\n"),
)
SEED_OSS = replace(
    QWEN_XML, name="seed-oss", start="<seed:tool_call>", end="</seed:tool_call>", elements=_FUNCTION_MARKS
)
_GLM_MARKS = ElementMarks(
    name="",
    name_end="\n",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    close="</tool_call>",
    line="\n",
)
_GLM_INNER = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GLM = ToolFormat(
    "glm", "elements", start="<tool_call>", end="</tool_call>", elements=_GLM_MARKS, inner_marks=_GLM_INNER
)
GLM_COMPACT = replace(GLM, name="glm-compact", elements=replace(_GLM_MARKS, name_end="", line=""))
MINIMAX = ToolFormat(
    "minimax",
    "elements",
    start="<minimax:tool_call>",
    end="</minimax:tool_call>",
    gap="\n",
    elements=ElementMarks(
        name='<invoke name="',
        name_end='">',
        key='<parameter name="',
        key_end='">',
        value="",
        value_end="</parameter>",
        close="</invoke>",
        line="\n",
    ),
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek-v3.1",
    "named",
    start="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    section_start="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    after_name="<｜tool▁sep｜>",
    name_pattern=re.compile(r"(.+?)\s*<｜tool▁sep｜>"),
    inner_marks=("<｜tool▁sep｜>",),
)
DEEPSEEK = replace(
    DEEPSEEK_V31,
    name="deepseek",
    before_name="function<｜tool▁sep｜>",
    after_name="\n```json\n",
    after_arguments="\n```",
    name_pattern=re.compile(r"(?:function)?<｜tool▁sep｜>\s*(.+?)(?:\s*```(?:json)?)?"),
    separators=_BLANK + "`",
)
KIMI = ToolFormat(
    "kimi",
    "named",
    start="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    section_start="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    before_name="functions.",
    after_name=":0<|tool_call_argument_begin|>",
    name_pattern=re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>"),
    inner_marks=("<|tool_call_argument_begin|>",),
)
HARMONY = ToolFormat("harmony", "harmony")

OTHER_MARK = re.compile(
    r"<function=|<arg_key>|"
    r"<[^<>{}\s'\"]*tool[^<>{}\s'\"]*call[^<>{}\s'\"]*begin[^<>{}\s'\"]*>|<\|tool_call"
)
"""Signs of syntaxes that are not read here."""
_TAUGHT_CALL = re.compile(r"\[\w+\(\w+=\w+[^\]\n]{0,200}\)")
"""How templates show a list of calls of Python functions."""


def detect_format(tokenizer: Tokenizer, template: str | None = None) -> ToolFormat | None:
    """The format that a chat template (or else those of the model) teaches; None without tools or in a foreign syntax.

    A template with tools but without any marks is taken to mean plain JSON objects.
    """
    source = "\n".join(tokenizer.chat_templates.values()) if template is None else template
    added = set(tokenizer.added_tokens.values())
    if "tools" not in source:
        return None
    if channels.CHANNEL in source:
        return HARMONY if channels.speaks_harmony(tokenizer, source) else None
    if MISTRAL.start in source or MISTRAL.start in added:
        return MISTRAL_NAMED if MISTRAL_NAMED.after_name in source else MISTRAL
    if DEEPSEEK.section_start in source:
        return DEEPSEEK if "```json" in source else DEEPSEEK_V31
    for style in (KIMI, MINIMAX, LFM2, SEED_OSS, NEMOTRON, GRANITE):
        opening = style.section_start or style.start
        if opening in source or opening in added:
            return style
    if HERMES.start in source:
        if QWEN_XML.openings[-1] in source:
            return QWEN_XML
        if _GLM_MARKS.key in source:
            return GLM_COMPACT if "}<arg_key>" in source else GLM
        return HERMES
    if OTHER_MARK.search(source):
        return None
    if _TAUGHT_CALL.search(source):
        return LLAMA4_PYTHONIC if LLAMA4_PYTHONIC.start in source or LLAMA4_PYTHONIC.start in added else PYTHONIC
    if LLAMA.start in added or '"parameters"' in source:
        return LLAMA
    return JSON
