"""Choosing tokens from logits: greedy, or at random under temperature, min_p, top_k and top_p.

Randomness is a function of a request's seed and the position in its output alone, and one uniform number chooses one
token by the inverse of the cumulative distribution in the order of token ids. So neighbours, the size of the batch,
a preemption or a restart change no draw.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.inference.engine.base import Sampling
from heddle.inference.engine.local.tops import top

GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
FIRST_LOOK = 64
MORE_LOOK = 16
"""Best tokens that top_p looks at first; so many times more when they do not reach its sum."""
CHUNK = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def is_greedy(sampling: Sampling) -> bool:
    """Whether the best token is taken."""
    return sampling.temperature < GREEDY_BELOW


def uniforms(seeds: NDArray[np.uint64], positions: Rows[int]) -> NDArray[np.float32]:
    """One number in [0, 1) for each (mixed seed, output position)."""
    value = seeds + np.array(positions, dtype=np.uint64) * _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _FIRST_FACTOR
    value = (value ^ (value >> np.uint64(27))) * _SECOND_FACTOR
    value ^= value >> np.uint64(31)
    result: NDArray[np.float32] = (value >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return result


@dataclass(slots=True)
class DrawParameters:
    """Parameters of the rows that are drawn, as columns [rows, 1]; None = no row has it."""

    temperature: Tensor | None
    min_p: Tensor | None
    top_rows: Tensor | None
    """int64 [n]: the rows that have top_k or top_p; the next two are about these only."""
    top_k: Tensor | None
    """0 = off."""
    top_p: Tensor | None
    first_look: int

    @classmethod
    def of(cls, samplings: Rows[Sampling], vocab_size: int, device: torch.device) -> "DrawParameters":
        """Columns of some requests' values."""

        def column(values: list[float] | list[int], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        temperatures = [max(sampling.temperature, LOWEST_TEMPERATURE) for sampling in samplings]
        min_p = [sampling.min_p for sampling in samplings]
        top_k = [sampling.top_k if 0 < sampling.top_k < vocab_size else 0 for sampling in samplings]
        top_p = [sampling.top_p for sampling in samplings]
        limited = [row for row in range(len(samplings)) if top_k[row] or top_p[row] < 1.0]
        looks = [top_k[row] or FIRST_LOOK for row in limited]
        return cls(
            temperature=column(temperatures) if any(value != 1.0 for value in temperatures) else None,
            min_p=column(min_p) if any(min_p) else None,
            top_rows=torch.tensor(limited, device=device) if limited else None,
            top_k=column([top_k[row] for row in limited], torch.int64) if limited else None,
            top_p=column([top_p[row] for row in limited]) if limited else None,
            first_look=min(max(looks, default=0), vocab_size),
        )


def draw(logits: Tensor, parameters: DrawParameters, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids [rows] and the highest logit [rows], which is not finite where nothing can be drawn.

    `logits` [rows, vocabulary] is kept; `uniform` is [rows].
    """
    highest = logits.amax(1)
    chances = (logits if parameters.temperature is None else logits / parameters.temperature).softmax(1)
    if parameters.min_p is not None:
        least = chances.amax(1, keepdim=True) * parameters.min_p
        chances.masked_fill_(chances < least, 0.0)
    if parameters.top_rows is not None:
        least = _least_of_top(chances, parameters)
        chances.masked_fill_(chances < least, 0.0)
    return _pick(chances, uniform), highest


def _least_of_top(chances: Tensor, parameters: DrawParameters) -> Tensor:
    """The lowest chance [rows, 1] that top_k and top_p leave in each row; ties with it stay."""
    rows, top_k, top_p = parameters.top_rows, parameters.top_k, parameters.top_p
    assert rows is not None and top_k is not None and top_p is not None
    if len(rows) == len(chances):
        return _top_border(chances, top_k, top_p, parameters.first_look)
    least = torch.zeros(len(chances), 1, device=chances.device)
    least[rows] = _top_border(chances[rows], top_k, top_p, parameters.first_look)
    return least


def _top_border(chances: Tensor, top_k: Tensor, top_p: Tensor, look: int) -> Tensor:
    """As `_least_of_top`, looking at the best `look` chances, and at more for rows whose top_p needs it."""
    width = chances.shape[1]
    highest = top(chances, look)[0]
    whole = top_k == 0
    inside = torch.where(whole, look, top_k)
    highest = highest.masked_fill(torch.arange(look, device=chances.device) >= inside, 0.0)
    sums = highest.cumsum(1)
    limits = top_p * torch.where(whole, chances.sum(1, keepdim=True), sums[:, -1:])
    kept = (sums - highest < limits) & (highest > 0.0)
    last = kept.sum(1, keepdim=True).sub_(1).clamp_(min=0)
    border = highest.gather(1, last).masked_fill_(whole & (top_p >= 1.0), 0.0)
    if look == width:
        return border
    unsure = (whole & (top_p < 1.0) & (sums[:, -1:] < limits)).squeeze(1)
    if bool(unsure.any()):
        more = min(look * MORE_LOOK, width)
        border[unsure] = _top_border(chances[unsure], top_k[unsure], top_p[unsure], more)
    return border


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token of each row whose part of the cumulative weight holds the uniform number."""
    rows, width = weights.shape
    if width <= 4 * CHUNK:
        return _search(weights, uniform[:, None] * weights.sum(1, keepdim=True))[0]
    if width % CHUNK:
        weights = torch.nn.functional.pad(weights, (0, -width % CHUNK))
    chunks = weights.view(rows, -1, CHUNK)
    sums = chunks.sum(2)
    chunk, rest = _search(sums, uniform[:, None] * sums.sum(1, keepdim=True))
    inside, _ = _search(chunks[torch.arange(rows, device=weights.device), chunk], rest)
    return chunk * CHUNK + inside


def _search(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first place [rows] whose cumulative weight is above the target [rows, 1], and what the target exceeds
    the weight before it by [rows, 1]. Rounding never leads to a place without weight."""
    sums = weights.cumsum(1)
    target = torch.minimum(target, torch.nextafter(sums[:, -1:], torch.zeros_like(target)))
    place = torch.searchsorted(sums, target, right=True).clamp_(max=weights.shape[1] - 1)
    before = sums.gather(1, place) - weights.gather(1, place)
    return place.squeeze(1), (target - before).clamp_(min=0.0)
