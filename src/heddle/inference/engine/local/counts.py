"""What the penalties count: the tokens of a sequence."""

from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

from heddle.inference.engine.base import Sampling

_FIRST_ROOM = 256


class TokenCounts:
    """The different tokens of a prompt and its output, and how often the output has each; grows token by token."""

    def __init__(self, prompt: Rows[int], sampling: Sampling) -> None:
        known = list(dict.fromkeys(prompt)) if sampling.repetition_penalty != 1.0 else []
        self.repetition = sampling.repetition_penalty
        self.frequency = sampling.frequency_penalty
        self.presence = sampling.presence_penalty
        self._places = {token: place for place, token in enumerate(known)}
        self._ids: NDArray[np.int64] = np.zeros(len(known) + _FIRST_ROOM, dtype=np.int64)
        self._counts: NDArray[np.float32] = np.zeros(len(known) + _FIRST_ROOM, dtype=np.float32)
        self._ids[: len(known)] = known

    @staticmethod
    def needed(sampling: Sampling) -> bool:
        """Whether any of the three penalties does something."""
        return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)

    def add(self, token: int) -> None:
        """Count one generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """The different tokens."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Times in the output, for each of `ids`."""
        return self._counts[: len(self._places)]
