"""The bodies of training routes (contract training.md, section 1), apart from trajectories."""

from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from heddle.http.routing import RequestModel
from heddle.training.calls import GROUP_FIELDS
from heddle.training.config import DpoConfig, KlSource, RlConfig, SftConfig
from heddle.training.losses.base import Correction, KlEstimator, Level, LossName
from heddle.training.rewards import CALL_FIELDS
from heddle.training.schemas.trajectories import (
    LONGEST_NAME,
    AboveZero,
    AtLeastZero,
    Count,
    Finite,
    Part,
    Step,
    TrajectoryGroup,
)
from heddle.wire.calls import CallConditions, OrderTerm
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import parse_query, split_path

_TAU = ("kimi_k2_tau", "alt_k2_tau")


MOST_UNKNOWN = 100


def check_unknown(names: Collection[str]) -> None:
    """Unknown fields are named in an event, which must stay of a size that clients read; raises PydanticCustomError."""
    if len(names) > MOST_UNKNOWN or any(len(name) > LONGEST_NAME for name in names):
        raise PydanticCustomError(
            "value_error",
            f"at most {MOST_UNKNOWN} unknown fields with names of up to {LONGEST_NAME} characters are allowed",
        )


def is_known(name: str) -> bool:
    """True for a field that acts."""
    return name in ExperimentalConfig.model_fields or name in _TAU


class ExperimentalConfig(Part):
    """What a client may set; null is the default of every field. Unknown fields are ignored and named in an event."""

    model_config = ConfigDict(strict=True, extra="allow")

    advantage_balance: Annotated[Finite, Field(ge=-1, le=1)] | None = None
    allow_training_without_logprobs: bool | None = None
    epsilon: AtLeastZero | None = None
    epsilon_high: AtLeastZero | None = None
    importance_correction: Correction | None = None
    importance_correction_max: AboveZero | None = None
    importance_correction_min: AtLeastZero | None = None
    importance_sampling_level: Level | None = None
    kimi_k2_tau: AtLeastZero | None = Field(None, validation_alias=AliasChoices(*_TAU))
    kl_estimator: KlEstimator | None = None
    kl_loss_coef: AtLeastZero | None = None
    kl_penalty_coef: AtLeastZero | None = None
    kl_penalty_reference_step: Step | None = None
    kl_penalty_source: KlSource | None = None
    kl_penalty_step_lag: Count | None = None
    kl_ref_adapter_path: str | None = None
    learning_rate: AboveZero | None = None
    logprob_calculation_chunk_size: Count | None = None
    loss_fn: LossName | None = None
    loss_fn_config: dict[str, FiniteFloat] | None = None
    mask_prob_ratio: bool | None = None
    max_negative_advantage_importance_sampling_weight: AboveZero | None = None
    max_steps_off_policy: Step | None = None
    normalize_advantages: bool | None = None
    num_trajectories_learning_rate_multiplier_power: Finite | None = None
    off_policy_mask_threshold: Finite | None = None
    packed_sequence_length: Count | None = None
    plot_tensors: bool | None = None
    ppo: bool | None = None
    precalculate_logprobs: bool | None = None
    scale_learning_rate_by_reward_std_dev: bool | None = None
    scale_rewards: bool | None = None
    truncated_importance_sampling: AboveZero | None = None

    @classmethod
    @cache
    def _known_keys(cls) -> frozenset[str]:
        return super()._known_keys() | set(_TAU)

    @model_validator(mode="before")
    @classmethod
    def _null_hides_nothing(cls, data: Any) -> Any:
        """A null under one of a field's two names is not in the way of a value under the other."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in _TAU}

    @model_validator(mode="after")
    def _holds_together(self) -> "ExperimentalConfig":
        if self.kl_penalty_reference_step is not None and self.kl_penalty_step_lag is not None:
            raise PydanticCustomError(
                "value_error", "give only one of kl_penalty_reference_step and kl_penalty_step_lag"
            )
        check_unknown(self.model_extra or {})
        try:
            resolve_config(self)
        except ValueError as error:
            raise PydanticCustomError("value_error", "{reason}", {"reason": str(error)}) from None
        return self

    def unknown(self) -> list[str]:
        """The names of fields that heddle does not know."""
        return sorted(self.model_extra or {})


def resolve_config(given: ExperimentalConfig | None) -> RlConfig:
    """Fill in the defaults, which depend on the loss; raises ValueError for settings that do not go together."""
    if given is None:
        return RlConfig()
    known = [name for name in RlConfig.__slots__ if name in ExperimentalConfig.model_fields]
    values = {name: value for name in known if (value := getattr(given, name)) is not None}
    loss: LossName = given.loss_fn or ("ppo" if given.ppo else "cispo")
    if loss == "cross_entropy":
        raise ValueError("cross_entropy is not a loss for trajectories; use a fine-tuning job")
    return RlConfig.of_loss(loss, **values, ignored=given.unknown())


MOST_CALLS = 10_000


class _Strict(LazyModel):
    """A part of a source; an unknown key is refused, as a condition that is not applied would train on other calls."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class SourceFilter(_Strict, CallConditions):
    """The filter of /calls/stream_query; only root calls are taken unless it says otherwise."""


class SourceSort(_Strict, OrderTerm):
    """One term of an order."""


class SourceReward(_Strict):
    """A scorer's feedback, or a value inside the call (see `Reward`)."""

    path: str = ""
    feedback_type: Annotated[str, Field(min_length=1)] | None = None
    values: dict[str, FiniteFloat] | None = None
    default: FiniteFloat | None = None

    @model_validator(mode="after")
    def _is_found_somewhere(self) -> "SourceReward":
        if self.feedback_type is None and split_path(self.path)[0] not in CALL_FIELDS:
            raise PydanticCustomError(
                "value_error", "give a feedback_type, or a path that starts with inputs, output, attributes or summary"
            )
        return self


def _checked_query(value: Any) -> Any:
    if value is not None:
        parse_query(value, ("body", "source", "query"))
    return value


class SourceRequest(_Strict):
    """Which calls of the trace service are rollouts, what they earned, and which are compared with each other."""

    project_id: str
    filter: SourceFilter | None = None
    query: Annotated[dict[str, Any] | None, PlainValidator(_checked_query)] = None
    sort_by: list[SourceSort] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_CALLS)] = 1000
    reward: SourceReward | None = None
    """Null where a judge gives the rewards."""
    group_by: str | list[str] | None = None

    @model_validator(mode="after")
    def _groups_by_paths(self) -> "SourceRequest":
        for path in [self.group_by] if isinstance(self.group_by, str) else self.group_by or []:
            if split_path(path)[0] not in GROUP_FIELDS:
                known = ", ".join(GROUP_FIELDS)
                raise PydanticCustomError(
                    "value_error", "a path of group_by must start with one of {known}", {"known": known}
                )
        return self


class PromotionRequest(RequestModel):
    """`promotion` of a training job; an unknown key is refused, as it would promote by another rule."""

    model_config = ConfigDict(strict=True, extra="forbid")

    evaluation: Annotated[str, Field(min_length=1)]
    """`weave:///entity/project/object/name:version` of an Evaluation."""
    minimum_gain: FiniteFloat = 0.0
    """The new score must reach the old one plus this."""
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] = 0.0
    max_tokens: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Of an answer; null is `usual_answer`."""


class RulerRequest(RequestModel):
    """`ruler` of a training job: who judges, and by what; an unknown key is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    judge_model: Annotated[str, Field(min_length=1)] | None = None
    """A model of this server or of a provider, as /completions/create names it; null is the model's base."""
    rubric: Annotated[str, Field(min_length=1, max_length=50_000)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = 0.0
    """Null leaves it to the judge's server."""
    max_tokens: Annotated[int, Field(ge=1, le=2**53)] | None = None


def default_max_tokens(max_model_len: int) -> int:
    """Tokens of an answer where a rule does not say: a policy that went wrong may never end one by itself."""
    return max(1, min(1024, max_model_len // 4))


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
    lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = None


class DeleteCheckpoints(Part):
    """Which steps to delete."""

    steps: list[Step]


class Rollback(Part, extra="forbid"):
    """Which step the bare name is to mean."""

    step: Step


class JobHead(Part):
    """A job without its trajectories."""

    model_id: Id
    experimental_config: ExperimentalConfig | None = None
    promotion: PromotionRequest | None = None
    source: SourceRequest | None = None
    reward_from: Literal["ruler"] | None = None
    """Who gives the trajectories their rewards; null: they have them."""
    ruler: RulerRequest | None = None

    @model_validator(mode="after")
    def _has_rewards(self) -> "JobHead":
        if self.ruler is not None and self.reward_from is None:
            raise PydanticCustomError("value_error", "ruler requires reward_from: ruler")
        if self.source is not None and self.source.reward is None and self.reward_from is None:
            missing = InitErrorDetails(type="missing", loc=("source", "reward"), input=None)
            raise ValidationError.from_exception_data("job", [missing])
        return self


class CreateJob(JobHead):
    """A job on trajectories of the body."""

    trajectory_groups: list[TrajectoryGroup]


class CreateJobFromSource(JobHead):
    """A job on calls of the trace service (ours)."""

    source: SourceRequest
    trajectory_groups: Annotated[None, BeforeValidator(_none_beside_source)] = None


class _RowsSettings(Part):
    model_config = ExperimentalConfig.model_config

    batch_size: Count | Literal["auto"] | None = None
    learning_rate: AboveZero | Annotated[list[AboveZero], Field(min_length=1)] | None = None


class SftSettings(_RowsSettings):
    """How a supervised job learns; null is the default. Whatever else is here is ignored and named in an event."""

    assistant_turns: Literal["all", "last"] | None = None
    metric_logging: dict[str, Any] | None = None
    """Where the service that this wire comes from sends its charts; there is no such place here."""


class DpoSettings(_RowsSettings):
    """How a job learns from preferences; null is the default. Unknown fields are ignored and named in an event."""

    beta: AboveZero | None = None


class _RowsJob(Part):
    """A job on a file of rows."""

    model_id: Id
    training_data_url: Annotated[str, Field(min_length=1)]
    promotion: PromotionRequest | None = None
    config: _RowsSettings | None = None

    @model_validator(mode="after")
    def _names_few_unknown(self) -> Self:
        check_unknown(self._unknown())
        return self

    def _unknown(self) -> set[str]:
        return set((self.config and self.config.model_extra) or ())


def _given(settings: _RowsSettings, *names: str) -> dict[str, Any]:
    """The settings that were given, as the config has them."""
    values = {name: value for name in (*names, "learning_rate") if (value := getattr(settings, name)) is not None}
    if isinstance(settings.batch_size, int):
        values["batch_size"] = settings.batch_size
    return values


class CreateDpoJob(_RowsJob):
    """A job on pairs of a chosen and a rejected answer."""

    config: DpoSettings | None = None

    def settings(self) -> DpoConfig:
        """The settings with every default filled in."""
        given = self.config or DpoSettings()
        return DpoConfig(**_given(given, "beta"), ignored=sorted(self._unknown()))


class CreateSftJob(_RowsJob):
    """A supervised job on a file of chat rows."""

    config: SftSettings | None = None
    experimental_config: dict[str, Any] | None = None

    def _unknown(self) -> set[str]:
        return {*super()._unknown(), *(self.experimental_config or {})}

    def settings(self) -> SftConfig:
        """The settings with every default filled in."""
        given = self.config or SftSettings()
        ignored = self._unknown()
        if given.metric_logging:
            ignored.add("metric_logging")
        return SftConfig(**_given(given, "assistant_turns"), ignored=sorted(ignored))
