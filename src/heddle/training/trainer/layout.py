"""A packed row as tensors: what the model reads, and which of its predictions are trained."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heddle.training.base import Row
from heddle.training.trainer.attention import Segments
from heddle.training.trainer.loss import Tokens


@dataclass(slots=True)
class Layout:
    """One row, without its padding; `predictors` and below have one entry for each trained token."""

    tokens: Tensor
    """int64 [length]."""
    segments: Segments
    predictors: Tensor
    """int64: the place whose output predicts the token."""
    targets: Tensor
    """int64: the token itself."""
    known: Tokens
    device: torch.device

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return len(self.targets)

    @property
    def length(self) -> int:
        """The number of tokens that are read."""
        return len(self.tokens)


def lay_out(row: Row, device: torch.device) -> Layout:
    """Tensors of a row; a trained token that nothing stands before is not predicted and left out."""
    kept = np.flatnonzero(row.segments >= 0)
    numbers, parents = row.segments[kept], row.parents[kept]
    predictors = before(numbers, parents)
    chosen = np.flatnonzero(row.mask[kept] & (predictors >= 0))
    source = kept[chosen]

    def values(array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
        return torch.from_numpy(np.asarray(array[source], dtype=np.float64)).to(device)

    known = Tokens(
        old=values(row.logprobs),
        advantages=values(row.advantages),
        weights=values(row.weights),
        mask=torch.ones(len(source), dtype=torch.bool, device=device),
        segments=torch.from_numpy(numbers[chosen]).to(device),
    )
    tokens = torch.from_numpy(np.asarray(row.tokens[kept], dtype=np.int64)).to(device)
    return Layout(
        tokens=tokens,
        segments=Segments(numbers, parents, np.asarray(row.positions[kept], dtype=np.int64)),
        predictors=torch.from_numpy(predictors[chosen]).to(device),
        targets=tokens[torch.from_numpy(chosen).to(device)],
        known=known,
        device=device,
    )


def before(
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]], parents: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The place before each token: in its segment, else the last one of its parent; -1 where there is none."""
    places = np.arange(len(numbers), dtype=np.int64) - 1
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    last = dict(zip(numbers[starts].tolist(), [*(starts[1:] - 1).tolist(), len(numbers) - 1], strict=True))
    for start in starts.tolist():
        number, parent = int(numbers[start]), int(parents[start])
        places[start] = last[parent] if parent != number else -1
    return places
