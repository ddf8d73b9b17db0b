"""Bodies of the improvement routes; an unknown key inside a part is refused, as it would improve something else."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from heddle.ci.comparison import parse_condition
from heddle.errors import InvalidRequest
from heddle.evals.replay.schemas import Query
from heddle.http.own_bodies import OwnCallsFilter, OwnReq
from heddle.http.routing import ResponseModel
from heddle.training.schemas.requests import ExperimentalConfig, RulerRequest
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import split_path

MOST_CHATS = 10_000
COLUMN_ROOTS = ("inputs", "output", "attributes", "summary", "feedback")


class _Part(LazyModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class WeakCalls(_Part):
    """Which calls are weak: all given conditions hold; `below` is a bound of the scores of a monitor or a scorer."""

    filter: OwnCallsFilter | None = None
    query: Query | None = None
    error_group: str | None = Field(default=None, min_length=1)
    monitor: str | None = Field(default=None, min_length=1)
    scorer: str | None = Field(default=None, min_length=1)
    below: FiniteFloat | None = None
    limit: int = Field(default=1000, ge=1, le=MOST_CHATS)

    @model_validator(mode="after")
    def _says_which(self) -> "WeakCalls":
        if (self.below is None) != (self.monitor is None and self.scorer is None):
            raise PydanticCustomError("value_error", "`below` and a `monitor` or `scorer` must be given together")
        if not (self.filter or self.query or self.error_group or self.below is not None):
            raise PydanticCustomError(
                "value_error",
                "set filter, query, error_group, or monitor or scorer with below to select the weak calls",
            )
        return self


def _checked_condition(text: str) -> str:
    try:
        parse_condition(text)
    except InvalidRequest as error:
        raise PydanticCustomError("value_error", "{reason}", {"reason": error.reason}) from None
    return text


def _checked_path(path: str) -> str:
    if split_path(path)[0] not in COLUMN_ROOTS:
        raise PydanticCustomError(
            "value_error", "a path must start with one of {known}", {"known": ", ".join(COLUMN_ROOTS)}
        )
    return path


Condition = Annotated[str, AfterValidator(_checked_condition)]


class Rollouts(_Part):
    """What one step samples, and when training ends."""

    steps: int = Field(default=30, ge=1, le=1000)
    """At most so many gradient jobs."""
    chats: int = Field(default=8, ge=1, le=256)
    answers: int = Field(default=8, ge=2, le=32)
    """Per chat; they are compared with each other."""
    temperature: float = Field(default=1.0, gt=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1, le=2**53)
    """Of an answer, also in the gate; null is that of a promotion."""
    target_reward: FiniteFloat = 0.98
    """A step whose answers reach it in the mean is the last."""


class Gate(_Part):
    """Conditions of `heddle eval run`, candidate against the policy before; one that holds refuses the candidate."""

    held_out: list[Condition] = Field(default=["score <= 0", "error_share > 0"], max_length=20)
    general: list[Condition] = Field(default=["score < -0.02", "error_share > 0"], max_length=20)


class Watch(_Part):
    """After a promotion: the mean of a monitor's newest scores falling below a bound takes it back."""

    monitor: str = Field(min_length=1)
    below: FiniteFloat
    calls: int = Field(default=20, ge=1, le=1000)
    """So many scores of calls that began after the promotion decide."""
    hours: float = Field(default=168.0, gt=0, le=24 * 365)


class ImprovementCreateReq(OwnReq):
    """What is improved, by what, how much it may cost, and what it must not break."""

    model: str = Field(min_length=1, max_length=128)
    """The name of a trainable model of the project."""
    weak: WeakCalls
    columns: dict[str, Annotated[str, AfterValidator(_checked_path)]] = Field(default_factory=dict, max_length=20)
    """Columns of the dataset beside the chat, such as `target`: a path into the call."""
    scorers: list[str] = Field(min_length=1, max_length=10)
    """Refs; the mean of their scores is the reward, and what the gate compares."""
    ruler: RulerRequest | None = None
    """With it the training jobs take their rewards from a judge, and scorers measure only."""
    general: str | None = None
    """The ref of an evaluation that must not get worse."""
    held_out: float = Field(default=0.3, gt=0, lt=1)
    """The share of the chats that training never sees."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    rollouts: Rollouts = Field(default_factory=Rollouts)
    experimental_config: ExperimentalConfig | None = None
    gate: Gate = Field(default_factory=Gate)
    watch: Watch | None = None
    budget_seconds: float = Field(default=3600.0, gt=0, le=30 * 86_400)
    """CPU seconds of the server and its processes before the gate."""
    name: str | None = Field(default=None, min_length=1, max_length=100)

    @model_validator(mode="after")
    def _keeps_own_columns(self) -> "ImprovementCreateReq":
        if taken := sorted({"messages", "tools", "source"} & self.columns.keys()):
            raise PydanticCustomError(
                "value_error", "the column {name} is reserved: it is filled from the call", {"name": taken[0]}
            )
        return self


class ImprovementCreateRes(ResponseModel):
    """The improvement."""

    id: str


class ImprovementReq(OwnReq):
    """One improvement."""

    id: str


class ImprovementQueryReq(OwnReq):
    """The improvements of a project, newest first."""

    model: str | None = None
    limit: int = Field(default=100, ge=0, le=1000)
    offset: int = Field(default=0, ge=0)


State = Literal["queued", "running", "watching", "succeeded", "failed", "cancelled"]
Outcome = Literal["promoted", "refused", "rolled_back"]
StepName = Literal["select", "baseline", "rollouts", "training", "gate", "promotion", "watch"]


Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class StepSchema(ResponseModel):
    """One entry of the timeline; `seconds` of CPU time, `result` what it came to so far."""

    name: StepName
    number: int | None
    """Which of the rollouts or training jobs, from 1."""
    state: Literal["running", "succeeded", "stopped"]
    started_at: Instant
    ended_at: Instant | None
    seconds: float
    result: Json


class ImprovementSchema(ResponseModel):
    """An improvement with its timeline."""

    id: str
    project_id: str
    name: str | None
    model: str
    model_id: str
    state: State
    outcome: Outcome | None
    reason: str | None
    """Why the gate refused, or why it was taken back."""
    error: str | None
    created_at: Instant
    ended_at: Instant | None
    spent_seconds: float
    budget_seconds: float
    request: Json
    steps: list[StepSchema]


class ImprovementRes(ResponseModel):
    """One improvement."""

    improvement: ImprovementSchema


class ImprovementQueryRes(ResponseModel):
    """The improvements of a page."""

    improvements: list[ImprovementSchema]
