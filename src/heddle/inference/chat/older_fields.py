"""Fields under which clients of older servers ask for what has another name today."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from heddle.errors import InvalidRequest
from heddle.inference.chat.fields import Part
from heddle.inference.structured.constraints import StructuredOutputs
from heddle.inference.tools.formats import FunctionDefinition, FunctionName, NamedToolChoice, Tool, ToolChoice

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structural_tag": "structural_tag",
}
_SWITCHES = {
    "no-fallback": "disable_fallback",
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}


_SWITCH = "chat_template_kwargs.enable_thinking"


class ConstraintFields(Part):
    """Constraints on the output: `structured_outputs`, and its older names."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: StrictStr | dict[str, Any] | StrictBool | None = Field(default=None, deprecated=True)
    guided_regex: str | None = Field(default=None, deprecated=True)
    guided_choice: list[str] | None = Field(default=None, deprecated=True)
    guided_grammar: str | None = Field(default=None, deprecated=True)
    guided_whitespace_pattern: str | None = Field(default=None, deprecated=True)
    guided_decoding_backend: str | None = Field(default=None, deprecated=True)
    structural_tag: StrictStr | dict[str, Any] | None = Field(default=None, deprecated=True)

    @model_validator(mode="after")
    def _read_guided_fields(self) -> Self:
        values = self.__dict__
        given = {name: target for name, target in _GUIDED.items() if values[name] is not None}
        backend = values["guided_decoding_backend"]
        if not given:
            return self
        outputs = self.structured_outputs
        wanted = outputs.model_dump(by_alias=True, exclude_none=True) if outputs is not None else {}
        for name, target in given.items():
            _set_once(wanted, target, values[name], name, f"structured_outputs.{target}")
            self._older_names[f"structured_outputs.{target}"] = name
        if backend is not None:
            wanted = _read_backend(backend) | wanted
        self.structured_outputs = StructuredOutputs.model_validate(wanted)
        return self


def _read_backend(value: str) -> dict[str, Any]:
    """`name:switch,switch`: the name was a wish, not a condition."""
    name, _, switches = value.partition(":")
    known = {_SWITCHES[switch]: True for switch in switches.split(",") if switch in _SWITCHES}
    return {"_backend": name, "_backend_was_auto": True, **known}


def _set_once(into: dict[str, Any], key: str, value: Any, older: str, today: str) -> None:
    if into.get(key) not in (None, value):
        raise InvalidRequest(f"{older} and {today} are one field and differ", param=older)
    into[key] = value


class ReasoningOptions(Part):
    """How much the model thinks, as routers of several providers ask for it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingOptions(Part):
    """Whether the model thinks."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class FunctionChoice(BaseModel):
    """The function that must be called."""

    model_config = ConfigDict(extra="allow")
    name: str


class OlderChatFields(Part):
    """Tools, reasoning and variables of the template, and their older names."""

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[FunctionDefinition] | None = Field(default=None, deprecated=True)
    function_call: Literal["none", "auto"] | FunctionChoice | None = Field(default=None, deprecated=True)
    enable_thinking: bool | None = Field(default=None, deprecated=True)
    reasoning: ReasoningOptions | None = Field(default=None, deprecated=True)
    thinking: ThinkingOptions | None = Field(default=None, deprecated=True)

    @property
    def answers_with_function(self) -> bool:
        """True when the request asked for functions and not for tools: its answer has `function_call`."""
        return self.__dict__["functions"] is not None

    @model_validator(mode="after")
    def _read_functions(self) -> Self:
        functions, choice = self.__dict__["functions"], self.__dict__["function_call"]
        if functions is None:
            if choice not in (None, "none"):
                raise InvalidRequest("when function_call is used, functions must be set", param="function_call")
            return self
        if self.tools is not None or self.tool_choice is not None:
            raise InvalidRequest("functions and tools are one field; send tools alone", param="functions")
        self.tools = [Tool(type="function", function=function) for function in functions]
        self.parallel_tool_calls = False
        if isinstance(choice, FunctionChoice):
            self.tool_choice = NamedToolChoice(type="function", function=FunctionName(name=choice.name))
        else:
            self.tool_choice = choice
        return self

    @model_validator(mode="after")
    def _read_reasoning(self) -> Self:
        values = self.__dict__
        reasoning, thinking, switch = values["reasoning"], values["thinking"], values["enable_thinking"]
        if thinking is not None and thinking.type in ("enabled", "disabled"):
            switch = thinking.type == "enabled" if switch is None else switch
            self._older_names[_SWITCH] = "thinking"
        if reasoning is not None:
            if reasoning.exclude is not None:
                self.include_reasoning = not reasoning.exclude
            if reasoning.effort is not None and self.reasoning_effort is None:
                self.reasoning_effort = reasoning.effort
                self._older_names["reasoning_effort"] = "reasoning.effort"
            if reasoning.enabled is not None and switch is None:
                switch, self._older_names[_SWITCH] = reasoning.enabled, "reasoning.enabled"
        if values["enable_thinking"] is not None:
            self._older_names[_SWITCH] = "enable_thinking"
        if switch is not None:
            self.chat_template_kwargs = {"enable_thinking": switch} | (self.chat_template_kwargs or {})
        return self
