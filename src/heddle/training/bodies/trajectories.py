"""Trajectories as clients send them (interface, section 2.4; contract training.md, section 2).

What a type, a range or a missing field forbids is refused here with its place (422). Defects that the field tolerates
(a choice without logprobs, an empty group) pass, and are counted when the job runs.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from heddle.http import RequestModel
from heddle.training.bodies.items import checked

Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastZero = Annotated[Finite, Field(ge=0)]
AboveZero = Annotated[Finite, Field(gt=0)]
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
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, Finite | bool] = Field(default_factory=dict)
    metadata: dict[str, Finite | str | bool | None] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    start_time: str | None = None


class TrajectoryGroup(Part):
    """Rollouts of one scenario, compared with each other."""

    trajectories: list[Trajectory]
    exceptions: list[ExceptionInfo] = Field(default_factory=list)
    metadata: dict[str, Finite | str | bool | None] = Field(default_factory=dict)
    metrics: dict[str, Finite | bool] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)


class LogRequest(Part):
    """The body of the log endpoint (interface, section 2.5)."""

    split: str
    trajectory_groups: list[TrajectoryGroup]

    @model_validator(mode="after")
    def _split_is_named(self) -> "LogRequest":
        if not self.split.strip():
            raise PydanticCustomError("value_error", "split must not be empty")
        return self
