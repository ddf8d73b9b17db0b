"""Trajectories made by hand, and renderers for tests that need no chat template."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.trajectory_renderer import TrajectoryRenderer
from heddle.training.config import RlConfig
from heddle.training.sequences import Prepared, sequences

Json = dict[str, Any]
END = 2
"""The end-of-turn token of the tiny model."""


@cache
def tiny_renderer() -> TrajectoryRenderer:
    """The chat template and tokenizer of the shipped model."""
    return TrajectoryRenderer.load(TINY_FOLDER)


def user(text: str) -> Json:
    """A message of the user."""
    return {"role": "user", "content": text}


def choice(text: str | None, ids: Sequence[int], logprobs: Sequence[float | None] | None = None, **extra: Any) -> Json:
    """A sampled choice as clients send it: ids as `token_id:17`, a logprob of -0.5 each unless given."""
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    content = [
        {"token": f"token_id:{token_id}", "bytes": [], "logprob": value, "top_logprobs": []}
        for token_id, value in zip(ids, values, strict=True)
    ]
    message = {"role": "assistant", "content": text, "refusal": None, "tool_calls": None}
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": message,
        "logprobs": {"content": content, "refusal": None},
        **extra,
    }


def said(text: str) -> Json:
    """A choice whose ids are the text's own and the end of the turn."""
    return choice(text, [*tiny_renderer().encode(text), END])


def trajectory(*items: Json, reward: float = 0.0, **extra: Any) -> Json:
    """One rollout."""
    return {"messages_and_choices": list(items), "reward": reward, **extra}


def group(*members: Json, **extra: Any) -> Json:
    """One group."""
    return {"trajectories": list(members), **extra}


def pair(*items: Json, **extra: Any) -> Json:
    """A group in which these items got reward 1, and a plain answer reward 0."""
    return group(trajectory(*items, reward=1.0, **extra), trajectory(user("?"), said("no")))


def prepared(*groups: Json, max_length: int = 2048, **settings: Any) -> Prepared:
    """Sequences by the tiny model's tokenizer."""
    return sequences(groups, tiny_renderer(), RlConfig(**settings), max_length)


def known(logprobs: Sequence[float]) -> list[float | None]:
    """Logprobs that can be compared: NaN is None."""
    return [None if math.isnan(value) else value for value in logprobs]
