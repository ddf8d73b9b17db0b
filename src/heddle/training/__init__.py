"""Reinforcement learning and fine-tuning on what happened: from trajectories to a policy that is served at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.training.calls import trajectory_groups
    from heddle.training.rewards import Reward
    from heddle.training.source import fetch_trajectory_groups

__all__ = ["Reward", "fetch_trajectory_groups", "trajectory_groups"]
_HOMES = {"Reward": "rewards", "trajectory_groups": "calls", "fetch_trajectory_groups": "source"}


def __getattr__(name: str) -> Any:
    """The public helpers, imported when they are first asked for: a worker process needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
