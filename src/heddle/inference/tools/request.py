"""Tools and the choice among them, as a request states them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class FunctionDefinition(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments object; null takes any object."""
    strict: bool | None = None
    """Arguments follow the schema in auto mode too; where a call is forced they always do."""


class Tool(BaseModel):
    """One tool of the request."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(BaseModel):
    """The function that must be called."""

    model_config = ConfigDict(extra="allow")
    name: str


class NamedToolChoice(BaseModel):
    """Exactly this function must be called."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
