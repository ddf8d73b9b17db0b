"""The bodies of training routes (contract training.md, section 1), apart from trajectories."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from heddle.training.bodies.experimental_config import ExperimentalConfig, check_unknown
from heddle.training.bodies.source import SourceRequest
from heddle.training.bodies.trajectories import AboveZero, Count, Part, Step, TrajectoryGroup
from heddle.training.queue.promotion import PromotionRequest
from heddle.training.sft_config import SftConfig

Id = Annotated[UUID, Field(strict=False)]


def _none_beside_source(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("value_error", "give trajectory_groups or source, not both")


class CreateModel(Part):
    """A trainable model: a name in a project, and what it is made from."""

    entity: str | None = None
    project: str
    name: str
    base_model: str
    return_existing: bool = False


class DeleteCheckpoints(Part):
    """Which steps to delete."""

    steps: list[Step]


class Rollback(Part):
    """Which step the bare name is to mean."""

    step: Step


class JobHead(Part):
    """A job without its trajectories."""

    model_id: Id
    experimental_config: ExperimentalConfig | None = None
    promotion: PromotionRequest | None = None
    source: SourceRequest | None = None


class CreateJob(JobHead):
    """A job on trajectories of the body."""

    trajectory_groups: list[TrajectoryGroup]


class CreateJobFromSource(JobHead):
    """A job on calls of the trace service (ours)."""

    source: SourceRequest
    trajectory_groups: Annotated[None, BeforeValidator(_none_beside_source)] = None


class SftSettings(Part):
    """How a supervised job learns; null is the default. Whatever else is here is ignored and named in an event."""

    model_config = ExperimentalConfig.model_config

    batch_size: Count | Literal["auto"] | None = None
    learning_rate: AboveZero | Annotated[list[AboveZero], Field(min_length=1)] | None = None
    assistant_turns: Literal["all", "last"] | None = None
    metric_logging: dict[str, Any] | None = None
    """Where the service that this wire comes from sends its charts; there is no such place here."""


class CreateSftJob(Part):
    """A supervised job on a file of chat rows."""

    model_id: Id
    training_data_url: Annotated[str, Field(min_length=1)]
    config: SftSettings | None = None
    experimental_config: dict[str, Any] | None = None
    promotion: PromotionRequest | None = None

    @model_validator(mode="after")
    def _names_few_unknown(self) -> "CreateSftJob":
        check_unknown(self._unknown())
        return self

    def _unknown(self) -> set[str]:
        given = (self.config.model_extra if self.config else None) or {}
        return {*given, *(self.experimental_config or {})}

    def settings(self) -> SftConfig:
        """The settings with every default filled in."""
        given = self.config or SftSettings()
        values = {name: value for name in ("learning_rate", "assistant_turns") if (value := getattr(given, name))}
        if isinstance(given.batch_size, int):
            values["batch_size"] = given.batch_size
        if isinstance(given.learning_rate, list):
            values["learning_rate"] = tuple(given.learning_rate)
        ignored = self._unknown()
        if given.metric_logging:
            ignored.add("metric_logging")
        return SftConfig(**values, ignored=tuple(sorted(ignored)))
