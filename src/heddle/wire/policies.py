"""Where training and inference meet: the served versions of trainable models, and the base models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model that this server serves, and therefore can train."""

    id: str
    folder: Path
    digest: str
    """Eight hex digits of its files."""
    vocab_size: int
    max_model_len: int
    config: dict[str, Any]
    """Its `config.json`."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """What a trainable model is called; clients write `wandb-artifact:///entity/project/name`."""

    entity: str
    project: str
    name: str


class PolicyHost(Protocol):
    """Serves the versions of trainable models."""

    async def base_models(self) -> list[BaseModel]:
        """The base models that can be trained; empty where none is served."""
        ...

    async def offer(self, policy: PolicyName, step: int, base_model: str, folder: str, user: str) -> None:
        """Make a step addressable from its PEFT folder, which stays where it is (relative to the data folder).

        Returns when it is listed, and loaded where the engine runs; does nothing when it is offered already.
        Raises InvalidRequest when the folder does not fit the base model. `latest` stays where it is.
        """
        ...

    async def point(self, policy: PolicyName, step: int) -> None:
        """Let the bare name mean a step, at once and durably; requests that run end with the step they began with."""
        ...

    async def latest(self, policy: PolicyName) -> int | None:
        """The step that the bare name means; None for a name that is not trainable."""
        ...

    async def withdraw(self, policy: PolicyName, steps: list[int], user: str) -> None:
        """Take steps away: from the engine, the list and the addresses. Their folders are the caller's to remove."""
        ...

    async def forget(self, policy: PolicyName, user: str) -> None:
        """Take the whole name away, with all its steps."""
        ...
