"""Settings of training jobs with every default filled in."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from heddle.training.losses import LOSSES
from heddle.training.losses.base import Correction, KlEstimator, Level, Loss, LossName

KlSource = Literal["current_learner", "sample"]


@dataclass(frozen=True, slots=True)
class RlConfig:
    """A job's settings with every default filled in; kept with the job, so that a later default changes nothing."""

    advantage_balance: float = 0.0
    allow_training_without_logprobs: bool = False
    loss: LossName = "cispo"
    loss_fn_config: dict[str, float] = field(default_factory=dict)
    """Every option of the loss."""
    epsilon: float = 1.0
    epsilon_high: float = 4.0
    importance_sampling_level: Level = "token"
    importance_correction: Correction | None = None
    importance_correction_min: float | None = None
    importance_correction_max: float | None = None
    kimi_k2_tau: float | None = None
    kl_estimator: KlEstimator = "k3"
    kl_loss_coef: float = 0.0
    kl_penalty_coef: float = 0.0
    kl_penalty_reference_step: int | None = None
    kl_penalty_source: KlSource = "current_learner"
    kl_penalty_step_lag: int | None = None
    kl_ref_adapter_path: str | None = None
    learning_rate: float = 5e-6
    logprob_calculation_chunk_size: int = 1024
    mask_prob_ratio: bool = False
    max_negative_advantage_importance_sampling_weight: float | None = None
    normalize_advantages: bool = True
    max_steps_off_policy: int | None = None
    num_trajectories_learning_rate_multiplier_power: float = 0.0
    off_policy_mask_threshold: float | None = None
    packed_sequence_length: int | None = None
    plot_tensors: bool = False
    precalculate_logprobs: bool = False
    scale_learning_rate_by_reward_std_dev: bool = False
    scale_rewards: bool = True
    truncated_importance_sampling: float | None = None
    ignored: list[str] = field(default_factory=list)
    """Names of unknown fields."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the job keeps them."""
        return asdict(self)

    @property
    def compares(self) -> bool:
        """True where another policy's logprobs are needed."""
        return self.kl_penalty_coef > 0 or self.kl_loss_coef > 0 or LOSSES[self.loss].needs_reference

    @classmethod
    def of_loss(cls, loss: LossName, **values: Any) -> "RlConfig":
        """Settings with the defaults of a loss; raises ValueError that names what does not go with it."""
        chosen = LOSSES[loss]
        level = values.get("importance_sampling_level")
        if level is not None and level not in chosen.levels:
            raise ValueError(
                f"importance_sampling_level {level} is not supported by {chosen.name}; expected one of: "
                f"{', '.join(chosen.levels)}"
            )
        _check_correction(chosen, values)
        options = _fill_options(chosen, values.pop("loss_fn_config", None) or {})
        if chosen.bounds is None:
            for name in ("epsilon", "epsilon_high", "mask_prob_ratio"):
                if values.get(name) not in (None, False):
                    raise ValueError(f"{name} is not supported by {loss}, which does not clip the ratio")
        else:
            low, high = chosen.bounds
            values.setdefault("epsilon", low)
            values.setdefault("epsilon_high", values["epsilon"] if high is None else high)
        values.setdefault("importance_sampling_level", chosen.levels[0])
        values.setdefault("scale_rewards", chosen.scales_rewards)
        return cls(**values, loss=loss, loss_fn_config=options)

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> "RlConfig":
        """What `as_json` made; jobs of earlier versions say `ppo` instead of the name of the loss."""
        values = {**values}
        if values.pop("ppo", False):
            values["loss"] = "ppo"
        return cls(**values)


def _check_correction(loss: Loss, values: Mapping[str, Any]) -> None:
    mode: str | None = values.get("importance_correction")
    low, high = values.get("importance_correction_min"), values.get("importance_correction_max")
    if mode is None:
        if low is not None or high is not None:
            raise ValueError("importance_correction_min and importance_correction_max require importance_correction")
        if loss.corrects_itself and values.get("truncated_importance_sampling") is not None:
            raise ValueError(
                f"truncated_importance_sampling is not supported by {loss.name}; use importance_correction"
            )
        return
    if values.get("truncated_importance_sampling") is not None:
        raise ValueError("give only one of truncated_importance_sampling and importance_correction")
    if low is None and high is None:
        raise ValueError(f"{mode} requires importance_correction_min or importance_correction_max")
    if low is not None and high is not None and low >= high:
        raise ValueError("importance_correction_min must be below importance_correction_max")
    if loss.corrects_itself and mode.startswith("sequence"):
        raise ValueError(
            f"importance_correction {mode} is not supported by {loss.name}; use token_truncate or token_mask"
        )


def _fill_options(loss: Loss, given: Mapping[str, float]) -> dict[str, float]:
    """Every option of a loss; raises ValueError for one that it does not have, or that is out of range."""
    for name, value in given.items():
        option = loss.options.get(name)
        if option is None:
            known = ", ".join(loss.options) or "none"
            raise ValueError(f"{loss.name} has no option {name[:100]} in loss_fn_config; its options: {known}")
        if not math.isfinite(value) or value < option.least or (option.is_open and value == option.least):
            raise ValueError(f"loss_fn_config.{name} must be {'>' if option.is_open else '≥'} {option.least:g}")
    return {name: float(given.get(name, option.default)) for name, option in loss.options.items()}


AUTO_BATCH = 2
AssistantTurns = Literal["all", "last"]


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """What jobs on rows of chats have in common; kept with the job, so that a later default changes nothing."""

    batch_size: int = AUTO_BATCH
    """Rows of one gradient step; `auto` on the wire is 2."""
    learning_rate: float | list[float] = 5e-5
    """One for all steps, or one for each."""
    ignored: list[str] = field(default_factory=list)
    """Names of unknown fields."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the job keeps them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SftConfig(ChatConfig):
    """Settings of fine-tuning."""

    assistant_turns: AssistantTurns = "all"
    """Which answers of a chat are trained."""


@dataclass(frozen=True, slots=True)
class DpoConfig(ChatConfig):
    """Settings of training on preferences."""

    learning_rate: float | list[float] = 1e-5
    """Ten times what DPO of all weights takes."""
    beta: float = 0.1
    """How much the ratio to the reference counts."""
