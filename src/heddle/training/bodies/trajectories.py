"""Trajectories as clients send them (interface, section 2.4; contract training.md, section 2).

What a type, a range or a missing field forbids is refused here with its place (422). Defects that the field tolerates
(a choice without logprobs, an empty group) pass, and are counted when the job runs.
"""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, field_validator
from pydantic_core import PydanticCustomError

from heddle.http import RequestModel
from heddle.training.bodies.items import checked

Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastZero = Annotated[Finite, Field(ge=0)]
AboveZero = Annotated[Finite, Field(gt=0)]
LARGEST = 2**53
"""The largest integer that every reader of JSON keeps."""
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Step = Annotated[int, Field(ge=0, le=LARGEST)]
Version = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


def _figure(value: Any) -> Any:
    """A finite number or a truth; one place for what is wrong, where a union of types would name several."""
    if not isinstance(value, (int, float)):
        raise PydanticCustomError("float_type", "Input should be a number, true or false")
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise PydanticCustomError("finite_number", "Input should be a finite number")
    return value


def _mark(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (int, float)):
        raise PydanticCustomError("value_error", "Input should be a number, a text, true, false or null")
    return _figure(value)


Figures = dict[str, Annotated[float | bool, PlainValidator(_figure, json_schema_input_type=float | bool)]]
Marks = dict[
    str, Annotated[float | str | bool | None, PlainValidator(_mark, json_schema_input_type=float | str | bool | None)]
]
Item = Annotated[dict[str, Any], AfterValidator(checked)]
"""A chat message (`role`) or a sampled choice (`finish_reason` and `message`)."""


class Part(RequestModel):
    """A nested object of a training body; numbers are numbers and texts are texts."""

    model_config = ConfigDict(strict=True)


class ToolFunction(Part):
    """What a tool is called with."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """A tool that the model may call."""

    type: str
    function: ToolFunction


class History(Part):
    """One conversation of a trajectory."""

    messages_and_choices: list[Item]
    tools: list[Tool] | None = None


class ExceptionInfo(Part):
    """A rollout that failed; no member of the group."""

    type: str = ""
    message: str = ""
    traceback: str | None = None


class Trajectory(Part):
    """One rollout with its reward; nothing is required."""

    messages_and_choices: list[Item] = Field(default_factory=list)
    tools: list[Tool] | None = None
    additional_histories: list[History] = Field(default_factory=list)
    reward: Finite = 0.0
    initial_policy_version: Version | None = None
    final_policy_version: Version | None = None
    metrics: Figures = Field(default_factory=dict)
    metadata: Marks = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    start_time: str | None = None


class TrajectoryGroup(Part):
    """Rollouts of one scenario, compared with each other."""

    trajectories: list[Trajectory]
    exceptions: list[ExceptionInfo] = Field(default_factory=list)
    metadata: Marks = Field(default_factory=dict)
    metrics: Figures = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)


class LogRequest(Part):
    """The body of the log endpoint (interface, section 2.5)."""

    split: str
    trajectory_groups: list[TrajectoryGroup]

    @field_validator("split")
    @classmethod
    def _is_named(cls, value: str) -> str:
        if not value.strip():
            raise PydanticCustomError("value_error", "split must not be empty")
        return value
