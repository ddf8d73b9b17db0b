"""What the tools of one request mean for its prompt, its constraint and the reading of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from heddle import json_schemas
from heddle.errors import InvalidRequest
from heddle.inference.structured.compiler import checked
from heddle.inference.structured.constraint import Constraint
from heddle.inference.structured.lark import whole_grammar
from heddle.inference.tools.formats import ToolFormat
from heddle.inference.tools.grammar import CallGrammar
from heddle.inference.tools.parser import ToolParser
from heddle.inference.tools.request import NamedToolChoice, Tool, ToolChoice
from heddle.ipc.bounded import TooMuchWork

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The checked tools of a request with the choice among them."""

    tools: tuple[Tool, ...]
    mode: Mode
    named: str | None
    several: bool
    """More than one call may be made."""
    style: ToolFormat

    @classmethod
    def of(
        cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool, style: ToolFormat | None
    ) -> ToolPlan | None:
        """The plan; None for a request in which no tool can be called. An omitted choice is `auto`.

        InvalidRequest for an empty list, names that repeat, a choice that fits no tool, and a model without a format
        for tools. Schemas are looked at by `check_parameters`.
        """
        if tools is None:
            if choice not in (None, "none"):
                raise InvalidRequest("when tool_choice is used, tools must be set", param="tool_choice")
            return None
        _check(tools)
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        if named is not None and named not in {tool.function.name for tool in tools}:
            raise InvalidRequest(f"tool_choice: there is no tool '{named}' among the tools", param="tool_choice")
        if choice == "none":
            return None
        if style is None:
            raise InvalidRequest(
                "tools: the chat template of this model has no place for tools, or calls them in an unknown syntax",
                param="tools",
            )
        mode: Mode = "named" if isinstance(choice, NamedToolChoice) else choice or "auto"
        return cls(tuple(tools), mode, named, parallel and named is None, style)

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
        return self.is_forced or any(tool.function.strict for tool in self.tools)

    @property
    def is_named(self) -> bool:
        """The request names the tool that must be called."""
        return self.named is not None

    def constraint(self, tokenizer: LLTokenizer) -> Constraint | None:
        """What forces the output to be a call, or keeps calls of strict functions valid; None when it is free.

        Compiles, so call it in a thread. InvalidRequest for a schema that cannot be enforced.
        """
        functions = [
            (tool.function, f"tools.{index}.function")
            for index, tool in enumerate(self.tools)
            if self.named in (None, tool.function.name)
        ]
        grammar = CallGrammar(tokenizer, self.style, functions)
        if self.is_forced:
            lark = grammar.forced(self.several)
        elif self.constrains:
            lark = grammar.free(self.several)
        else:
            return None
        return Constraint(checked(whole_grammar(lark), tokenizer, "tools"))

    def as_json(self) -> dict[str, Any]:
        """The plan for another process; `from_json` reads it."""
        chosen = {"mode": self.mode, "named": self.named, "several": self.several}
        return {**chosen, "tools": self.shown, "style": asdict(self.style)}

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> ToolPlan:
        """The plan that `as_json` gave."""
        tools = tuple(map(Tool.model_validate, plan["tools"]))
        return cls(tools, plan["mode"], plan["named"], plan["several"], ToolFormat(**plan["style"]))

    def parser(self, early: bool = False) -> ToolParser:
        """A parser for one output; `early` for streams: calls are given out while they are being written."""
        names = frozenset(tool.function.name for tool in self.tools)
        return ToolParser(self.style, names, early=early, only_first=not self.several)


def _check(tools: Sequence[Tool]) -> None:
    if not tools:
        raise InvalidRequest("tools must not be an empty list: send at least one tool, or none at all", param="tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name, at = tool.function.name, f"tools.{index}.function"
        if name in seen:
            raise InvalidRequest(f"{at}.name: there are two tools named '{name}'", param=f"{at}.name")
        seen.add(name)
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise InvalidRequest(f"{at}.parameters must describe an object", param=f"{at}.parameters")


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
