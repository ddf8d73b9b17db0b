"""The best entries of each row of a wide matrix, faster than by the plain operations of torch on a CPU."""

import numpy as np
import torch
from torch import Tensor

GROUPS = 16
LEAST_GAIN = 8
"""Looking at groups first pays when there are this many more of them than entries wanted."""


def best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The highest entry of each row, [rows], and its place, the lowest of equal ones."""
    if scores.device.type == "cpu":
        places = torch.from_numpy(scores.numpy().argmax(1))
        return scores.gather(1, places[:, None]).squeeze(1), places
    values, places = scores.max(1)
    return values, places


def count_above(scores: Tensor, limits: Tensor) -> list[int]:
    """How many entries of each row are above its limit, [rows, 1]."""
    if scores.device.type == "cpu":
        return (scores.numpy() > limits.numpy()).sum(1, dtype=np.int32).tolist()  # type: ignore[no-any-return]
    return (scores > limits).sum(1).tolist()


def drop_below(chances: Tensor, limits: Tensor) -> None:
    """Make entries that are below the limit of their row, [rows, 1], zero, in place."""
    if chances.device.type == "cpu":
        values = chances.numpy()
        np.multiply(values, values >= limits.numpy(), out=values)
    else:
        chances.masked_fill_(chances < limits, 0.0)


def sum_above(chances: Tensor, limits: Tensor) -> Tensor:
    """The sum of the entries of each row that are above its limit, both [rows, 1]; entries are not negative."""
    counts = torch.tensor(count_above(chances, limits), dtype=torch.float32, device=chances.device)[:, None]
    return (chances - limits).clamp_(min=0.0).sum(1, keepdim=True) + counts * limits


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest entries of each row in falling order, and their places.

    Every entry of the result lies in one of the `count` groups with the highest maxima: only those are searched.
    """
    rows, width = scores.shape
    if width // GROUPS < LEAST_GAIN * count:
        found = scores.topk(count, dim=1)
        return found.values, found.indices
    if width % GROUPS:
        scores = torch.nn.functional.pad(scores, (0, -width % GROUPS), value=float("-inf"))
    strided = scores.view(rows, GROUPS, -1)
    groups = strided.amax(1).topk(count, dim=1, sorted=False).indices
    inside = strided.gather(2, groups[:, None, :].expand(-1, GROUPS, -1)).reshape(rows, -1)
    found = inside.topk(count, dim=1)
    member, group = found.indices // count, found.indices % count
    return found.values, member * strided.shape[2] + groups.gather(1, group)
