"""Settings of training jobs with every default filled in."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["token", "sequence", "average", "geometric_average"]
KlSource = Literal["current_learner", "sample"]
LossName = Literal["cispo", "ppo"]
BOUNDS: dict[LossName, tuple[float, float | None]] = {"cispo": (1.0, 4.0), "ppo": (0.2, None)}
"""The default `epsilon` and `epsilon_high` of each loss; None: the same as epsilon."""


@dataclass(frozen=True, slots=True)
class RlConfig:
    """A job's settings with every default filled in; kept with the job, so that a later default changes nothing."""

    advantage_balance: float = 0.0
    allow_training_without_logprobs: bool = False
    loss: LossName = "cispo"
    epsilon: float = 1.0
    epsilon_high: float = 4.0
    importance_sampling_level: Level = "token"
    kimi_k2_tau: float | None = None
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
    num_trajectories_learning_rate_multiplier_power: float = 0.0
    packed_sequence_length: int | None = None
    plot_tensors: bool = False
    precalculate_logprobs: bool = False
    scale_learning_rate_by_reward_std_dev: bool = False
    scale_rewards: bool = True
    truncated_importance_sampling: float | None = None
    ignored: tuple[str, ...] = ()
    """Names of unknown fields."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the job keeps them."""
        return asdict(self) | {"ignored": list(self.ignored)}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> "RlConfig":
        """What `as_json` made; jobs of earlier versions say `ppo` instead of the name of the loss."""
        values = {**values, "ignored": tuple(values.get("ignored", ()))}
        if values.pop("ppo", False):
            values["loss"] = "ppo"
        return cls(**values)


AUTO_BATCH = 2
AssistantTurns = Literal["all", "last"]


@dataclass(frozen=True, slots=True)
class SftConfig:
    """Kept with the job, so that a later default changes nothing."""

    batch_size: int = AUTO_BATCH
    """Chats of one gradient step; `auto` on the wire is 2."""
    learning_rate: float | tuple[float, ...] = 5e-5
    """One for all steps, or one for each."""
    assistant_turns: AssistantTurns = "all"
    """Which answers of a chat are trained."""
    ignored: tuple[str, ...] = ()
    """Names of unknown fields."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the job keeps them."""
        return asdict(self) | {"learning_rate": self.rates(), "ignored": list(self.ignored)}

    def rates(self) -> float | list[float]:
        """The learning rate as JSON has it."""
        return list(self.learning_rate) if isinstance(self.learning_rate, tuple) else self.learning_rate

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> "SftConfig":
        """What `as_json` made."""
        rate = values.get("learning_rate", 5e-5)
        rate = tuple(rate) if isinstance(rate, list) else rate
        return cls(**values | {"learning_rate": rate, "ignored": tuple(values.get("ignored", ()))})
