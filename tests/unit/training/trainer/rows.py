"""Hand-made rows and jobs for the trainer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heddle.training.trainer.packing import Row


def make_row(families: Sequence[tuple[int, Sequence[int]]], seed: int = 0, vocab: int = 512, **fixed: Any) -> Row:
    """A row of families: (tokens of the shared prompt or 0, tokens of each sequence behind it).

    The first token of each sequence is not trained; old logprobs, advantages and weights are random.
    """
    generator = np.random.default_rng(seed)
    segments: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    mask: list[bool] = []
    number = 0
    for prompt, children in families:
        parent = number
        if prompt:
            segments += [number] * prompt
            parents += [number] * prompt
            positions += range(prompt)
            mask += [False] * prompt
            number += 1
        for length in children:
            segments += [number] * length
            parents += [parent if prompt else number] * length
            positions += range(prompt, prompt + length)
            mask += [False] + [True] * (length - 1)
            number += 1
    count = len(segments)
    values: dict[str, Any] = {
        "tokens": generator.integers(1, vocab, count),
        "positions": np.array(positions),
        "segments": np.array(segments),
        "parents": np.array(parents),
        "mask": np.array(mask),
        "logprobs": -generator.random(count) * 8,
        "advantages": generator.normal(size=count),
        "weights": generator.random(count) + 0.5,
        "sequences": sum(len(children) for _, children in families),
    }
    return Row(**values | fixed)
