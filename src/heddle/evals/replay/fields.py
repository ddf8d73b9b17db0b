"""The fields of a chat request that a replay carries over from a stored call, and may override."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heddle.wire.jsontypes import Json


class ReplayParams(BaseModel):
    """Parameters of the replayed requests, each over the recorded one; any other name is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    response_format: Json | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None


_FIELDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation()) for name, field in ReplayParams.model_fields.items()
}


def carried(recorded: Json) -> Json:
    """The fields of a recorded request that can be sent again; what SDKs write for `not given` is left out."""
    found = {}
    for name, adapter in _FIELDS.items():
        value = recorded.get(name)
        if value is None or value == "NOT_GIVEN":
            continue
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            continue
        found[name] = value
    return found
