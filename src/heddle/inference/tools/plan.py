"""What the tools of one request mean for its prompt, its constraint and the reading of its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heddle.errors import InvalidRequest
from heddle.inference.structured.guidance import Constraint, LLTokenizer, check_grammar
from heddle.inference.structured.lark import OPTIONS, name_grammar, whole_grammar
from heddle.inference.tools.formats import AllowedToolsChoice, NamedToolChoice, Tool, ToolChoice, ToolFormat
from heddle.inference.tools.grammar import CallGrammar
from heddle.inference.tools.harmony import HarmonyParser
from heddle.inference.tools.parser import OutputParser, ToolParser
from heddle.ipc import json_schemas
from heddle.ipc.bounded import TooMuchWork

_ANSWER = "form"
Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The checked tools of a request with the choice among them."""

    tools: tuple[Tool, ...]
    mode: Mode
    callable_names: frozenset[str]
    """The tools that may be called; the others are only shown."""
    is_named: bool
    """The request names the one tool that must be called."""
    several: bool
    """More than one call may be made."""
    style: ToolFormat

    @classmethod
    def of(
        cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool, style: ToolFormat | None
    ) -> ToolPlan | None:
        """The plan; None for a request in which no tool can be called. An omitted choice is `auto`.

        InvalidRequest for names that repeat, a choice that fits no tool, and a model without a format
        for tools. Schemas are looked at by `check_parameters`.
        """
        if tools is not None and not tools and choice is None:
            raise InvalidRequest(
                "tools must not be an empty list: send at least one tool, or none at all", param="tools"
            )
        if not tools:
            # Agents without tools send an empty list with the choice that agents with tools send.
            if choice not in (None, "none") and (tools is None or choice != "auto"):
                raise InvalidRequest("when tool_choice is used, tools must be set", param="tool_choice")
            return None
        seen: set[str] = set()
        for index, tool in enumerate(tools):
            name, at = tool.function.name, f"tools.{index}.function"
            if name in seen:
                raise InvalidRequest(f"{at}.name: several tools are named '{name}'", param=f"{at}.name")
            seen.add(name)
            if (tool.function.parameters or {}).get("type", "object") != "object":
                raise InvalidRequest(f"{at}.parameters must describe an object", param=f"{at}.parameters")
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        callable_names = frozenset(seen if named is None else (named,))
        if isinstance(choice, AllowedToolsChoice):
            callable_names = frozenset(tool.function.name for tool in choice.allowed_tools.tools)
            choice = choice.allowed_tools.mode
        for name in sorted(callable_names - seen):
            raise InvalidRequest(f"tool_choice: tool '{name}' is not in tools", param="tool_choice")
        if choice == "none":
            return None
        if style is None:
            raise InvalidRequest(
                "tools: the chat template of this model does not support tools, or uses an unknown syntax to call them",
                param="tools",
            )
        mode: Mode = "named" if isinstance(choice, NamedToolChoice) else choice or "auto"
        return cls(tuple(tools), mode, callable_names, named is not None, parallel and named is None, style)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as the template gets them."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    @property
    def is_forced(self) -> bool:
        """The output must be a call."""
        return self.mode in ("required", "named")

    @property
    def constrains(self) -> bool:
        """The output is limited by the tools."""
        is_limited = len(self.callable_names) < len(self.tools)
        return self.is_forced or is_limited or any(tool.function.strict for tool in self.tools)

    def constraint(self, tokenizer: LLTokenizer) -> Constraint | None:
        """What forces the output to be a call, or keeps calls of strict functions valid; None when it is free.

        Compiles, so call it in a thread. InvalidRequest for a schema that cannot be enforced.
        """
        grammar = self._grammar(tokenizer)
        if self.is_forced:
            lark = grammar.forced(self.several)
        elif self.constrains:
            lark = grammar.free(self.several)
        else:
            return None
        return Constraint(check_grammar(whole_grammar(lark), tokenizer, "tools"))

    def constraint_beside(self, answer: Constraint, tokenizer: LLTokenizer) -> Constraint:
        """What lets the model call tools, or else answer in a form; compiles, as `constraint` does.

        Calls without marks begin like JSON answers, and nothing tells them apart in time: there the form alone holds.
        """
        if self.style.layout == "bare":
            return answer
        lark = self._grammar(tokenizer).beside(self.several, _ANSWER)
        combined = name_grammar(answer.grammar, _ANSWER, f"{lark}\n{OPTIONS}\n")
        return Constraint(check_grammar(combined, tokenizer, "tools"))

    def _grammar(self, tokenizer: LLTokenizer) -> CallGrammar:
        functions = [
            (tool.function, f"tools.{index}.function")
            for index, tool in enumerate(self.tools)
            if tool.function.name in self.callable_names
        ]
        return CallGrammar(tokenizer, self.style, functions)

    def parser(self, early: bool = False) -> OutputParser:
        """A parser for one output; `early` for streams: calls are given out while they are being written."""
        schemas = {
            tool.function.name: tool.function.parameters
            for tool in self.tools
            if tool.function.name in self.callable_names
        }
        if self.style.layout == "harmony":
            return HarmonyParser(schemas, early=early, only_first=not self.several)
        return ToolParser(self.style, schemas, early=early, only_first=not self.several)


async def check_parameters(tools: Sequence[Tool]) -> None:
    """Raise InvalidRequest for the first tool whose parameters are no JSON Schema."""
    given = {f"tools.{index}.function.parameters": tool.function.parameters for index, tool in enumerate(tools)}
    schemas = {at: schema for at, schema in given.items() if schema}
    if not schemas:
        return
    try:
        problems = await json_schemas.check_schemas(list(schemas.values()))
    except TooMuchWork as error:
        param = next(iter(schemas)) if len(schemas) == 1 else "tools"
        raise InvalidRequest(f"{param}: to check it {error}", param=param) from None
    for at, problem in zip(schemas, problems, strict=True):
        if problem is not None:
            raise InvalidRequest(f"{at} is not a JSON Schema: {problem}", param=at)
