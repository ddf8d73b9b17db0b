"""The settings of a supervised job with every default filled in."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

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
