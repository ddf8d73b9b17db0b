"""`experimental_config` of a training job: every field with its range; null is its default (training.md, 2)."""

from collections.abc import Collection
from functools import cache
from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from heddle.training.bodies.trajectories import AboveZero, AtLeastZero, Count, Finite, Part, Step
from heddle.training.config import BOUNDS, KlSource, Level, LossName, RlConfig

_TAU = ("kimi_k2_tau", "alt_k2_tau")


MOST_UNKNOWN, LONGEST_NAME = 100, 200


def check_unknown(names: Collection[str]) -> None:
    """Unknown fields are named in an event, which must stay of a size that clients read; raises PydanticCustomError."""
    if len(names) > MOST_UNKNOWN or any(len(name) > LONGEST_NAME for name in names):
        raise PydanticCustomError(
            "value_error",
            f"at most {MOST_UNKNOWN} unknown fields are ignored, with names of at most {LONGEST_NAME} characters",
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
    importance_sampling_level: Level | None = None
    kimi_k2_tau: AtLeastZero | None = Field(None, validation_alias=AliasChoices(*_TAU))
    kl_penalty_coef: AtLeastZero | None = None
    kl_penalty_reference_step: Step | None = None
    kl_penalty_source: KlSource | None = None
    kl_penalty_step_lag: Count | None = None
    kl_ref_adapter_path: str | None = None
    learning_rate: AboveZero | None = None
    logprob_calculation_chunk_size: Count | None = None
    loss_fn: LossName | None = None
    mask_prob_ratio: bool | None = None
    max_negative_advantage_importance_sampling_weight: AboveZero | None = None
    normalize_advantages: bool | None = None
    num_trajectories_learning_rate_multiplier_power: Finite | None = None
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
        return self

    def unknown(self) -> list[str]:
        """The names of fields that heddle does not know."""
        return sorted(self.model_extra or {})


def resolve(given: ExperimentalConfig | None) -> RlConfig:
    """Fill in the defaults; the bounds depend on the loss (training.md, section 2, point 2)."""
    if given is None:
        return RlConfig()
    known = [name for name in RlConfig.__slots__ if name in ExperimentalConfig.model_fields]
    values = {name: value for name in known if (value := getattr(given, name)) is not None}
    loss: LossName = given.loss_fn or ("ppo" if given.ppo else "cispo")
    low, high = BOUNDS[loss]
    values.setdefault("epsilon", low)
    values.setdefault("epsilon_high", values["epsilon"] if high is None else high)
    return RlConfig(**values, loss=loss, ignored=tuple(given.unknown()))
