"""Log-probabilities of the chosen token, its rank, and the best k, before masks and penalties change the logits."""

import numpy as np
import torch
from torch import Tensor

from heddle.inference.engine.local.sequence import RawLogprobs
from heddle.inference.engine.local.tops import count_above, top

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not know."""


def describe(logits: Tensor, chosen: list[int], best: list[int]) -> list[RawLogprobs]:
    """Logprobs of one chosen token per row of untouched logits [rows, vocabulary], and of the `best[row]` best ones."""
    total = logits.softmax(1).amax(1, keepdim=True).log_().neg_()
    highest = logits.amax(1, keepdim=True)
    picked = logits.gather(1, torch.tensor(chosen, device=logits.device)[:, None])
    ranks = count_above(logits, picked)
    values = ((picked - highest) - total).squeeze(1).tolist()
    tops = _top(logits, highest, total, best)
    return [
        (token, max(value, LOWEST), rank + 1, several)
        for token, value, rank, several in zip(chosen, values, ranks, tops, strict=True)
    ]


def _top(logits: Tensor, highest: Tensor, total: Tensor, best: list[int]) -> list[tuple[tuple[int, float], ...]]:
    """The best tokens of each row, ties by lower id; one more is looked at, to see a tie across the border."""
    most = min(max(best), logits.shape[1])
    if not most:
        return [()] * len(best)
    seen = min(most + 1, logits.shape[1])
    raw, ids = (tensor.cpu() for tensor in top(logits, seen))
    values, ids = _sorted(raw, ids)
    values = ((values - highest.cpu()) - total.cpu()).clamp_(min=LOWEST)
    raw_rows, id_rows, value_rows = raw.tolist(), ids.tolist(), values.tolist()
    result = []
    for row, wanted in enumerate(best):
        k = min(wanted, most)
        if 0 < k < seen and raw_rows[row][k - 1] == raw_rows[row][k]:
            result.append(_top_with_ties(logits[row], float(highest[row]), float(total[row]), raw_rows[row][k - 1], k))
        else:
            result.append(tuple(zip(id_rows[row][:k], value_rows[row][:k], strict=True)))
    return result


def _sorted(raw: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Values in falling order with their ids, equal values by rising id."""
    by_id = ids.argsort(1)
    values = raw.gather(1, by_id)
    falling = values.argsort(dim=1, descending=True, stable=True)
    return values.gather(1, falling), ids.gather(1, by_id).gather(1, falling)


def _top_with_ties(
    logits: Tensor, highest: float, total: float, border: float, count: int
) -> tuple[tuple[int, float], ...]:
    """The best of one row when values equal to the last one are left out."""
    whole = logits.cpu().numpy()
    ids = np.flatnonzero(whole >= np.float32(border))
    order = np.lexsort((ids, -whole[ids]))[:count]
    values = np.maximum((whole[ids[order]] - np.float32(highest)) - np.float32(total), LOWEST)
    return tuple(zip(ids[order].tolist(), values.tolist(), strict=True))
