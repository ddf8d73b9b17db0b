"""Choosing tokens from logits: greedy, or at random under temperature, min_p, top_k and top_p."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.inference.engine.base import Sampling

GROUPS = 16
LEAST_GAIN = 8
"""Looking at groups first pays when there are this many more of them than entries wanted."""


def find_best(scores: Tensor) -> tuple[Tensor, Tensor]:
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


def find_top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
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


GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
FIRST_LOOK = 64
"""Best tokens that top_p looks at."""
CHUNK = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
TRIES = 8
_COLUMNS: NDArray[np.uint64] = np.arange(TRIES + 1, dtype=np.uint64)[:, None] * np.uint64(0xD1342543DE82EF95)


def is_greedy(sampling: Sampling) -> bool:
    """Whether the best token is taken."""
    return sampling.temperature < GREEDY_BELOW


def uniforms(seeds: NDArray[np.uint64], positions: Rows[int], columns: int = 1) -> NDArray[np.float32]:
    """Numbers in [0, 1) for each (mixed seed, output position), [columns, rows]; the first is the same for any
    number of columns."""
    value = (seeds + (np.array(positions, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)[None] + _COLUMNS[:columns]
    value = (value ^ (value >> np.uint64(30))) * _FIRST_FACTOR
    value = (value ^ (value >> np.uint64(27))) * _SECOND_FACTOR
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
    look: int
    """Best tokens that are looked at for top_k and top_p."""

    @classmethod
    def of(cls, samplings: Rows[Sampling], vocab_size: int, device: torch.device) -> "DrawParameters":
        """Columns of some requests' values."""

        def column(values: list[float] | list[int], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        temperatures = [max(sampling.temperature, LOWEST_TEMPERATURE) for sampling in samplings]
        min_p = [sampling.min_p for sampling in samplings]
        top_k = [sampling.top_k if 0 < sampling.top_k < vocab_size else 0 for sampling in samplings]
        top_p = [float(np.float32(sampling.top_p)) for sampling in samplings]  # what is 1 there limits nothing
        limited = [row for row in range(len(samplings)) if top_k[row] or top_p[row] < 1.0]
        looks = [top_k[row] or FIRST_LOOK for row in limited]
        return cls(
            temperature=column(temperatures) if any(value != 1.0 for value in temperatures) else None,
            min_p=column(min_p) if any(min_p) else None,
            top_rows=torch.tensor(limited, device=device) if limited else None,
            top_k=column([top_k[row] for row in limited], torch.int64) if limited else None,
            top_p=column([top_p[row] for row in limited]) if limited else None,
            look=min(max(looks, default=0), vocab_size),
        )

    @property
    def columns(self) -> int:
        """Uniform numbers for each row: more than one when a draw may have to be repeated."""
        return 1 if self.top_p is None else TRIES + 1


def draw(logits: Tensor, parameters: DrawParameters, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids [rows] and the highest logit [rows], which is not finite where nothing can be drawn.

    `logits` [rows, vocabulary] is kept; `uniform` is [parameters.columns, rows].
    """
    highest = logits.amax(1)
    chances = (logits if parameters.temperature is None else logits / parameters.temperature).softmax(1)
    if parameters.min_p is not None:
        drop_below(chances, chances.amax(1, keepdim=True) * parameters.min_p)
    unsure: list[int] = []
    if parameters.top_rows is not None:
        unsure = _cut_top(chances, parameters)
    tokens = _pick(chances, uniform[0])
    if unsure:
        _redraw(tokens, chances, parameters, uniform, unsure)
    return tokens, highest


def _cut_top(chances: Tensor, parameters: DrawParameters) -> list[int]:
    """Make all chances zero that top_k and top_p leave out; ties with the lowest one that is left stay.

    Returns the rows where top_p leaves more tokens than were looked at: they are as before.
    """
    rows, top_k, top_p = parameters.top_rows, parameters.top_k, parameters.top_p
    assert rows is not None and top_k is not None and top_p is not None
    every = len(rows) == len(chances)
    part = chances if every else chances[rows]
    highest = find_top(part, parameters.look)[0]
    whole = top_k == 0
    inside = torch.where(whole, FIRST_LOOK, top_k)
    highest.masked_fill_(torch.arange(parameters.look, device=chances.device) >= inside, 0.0)
    sums = highest.cumsum(1)
    limits = top_p * torch.where(whole, part.sum(1, keepdim=True), sums[:, -1:])
    kept = sums - highest < limits
    border = highest.gather(1, kept.sum(1, keepdim=True).sub_(1).clamp_(min=0))
    unsure = whole & (sums[:, -1:] < limits)
    border.masked_fill_(unsure, 0.0)
    if every:
        drop_below(chances, border)
    else:
        least = torch.zeros(len(chances), 1, device=chances.device)
        least[rows] = border
        drop_below(chances, least)
    return rows[unsure.squeeze(1)].tolist()


def _redraw(tokens: Tensor, chances: Tensor, parameters: DrawParameters, uniform: Tensor, rows: list[int]) -> None:
    """Draw again in rows whose token does not belong to the best ones that sum up to top_p.

    Drawing from all until one belongs is drawing from those that belong. That needs no sorting, and a token belongs
    when the better ones together have less than top_p; after so many tries the sorted chances decide.
    """
    assert parameters.top_rows is not None and parameters.top_p is not None
    index = torch.tensor(rows, device=chances.device)
    limits = torch.zeros(len(chances), 1, device=chances.device)
    limits[parameters.top_rows] = parameters.top_p
    part = chances[index]
    limit = limits[index] * part.sum(1, keepdim=True)
    for attempt in range(1, TRIES + 1):
        drawn = tokens[index]
        wrong = (sum_above(part, part.gather(1, drawn[:, None])) >= limit).squeeze(1)
        if not bool(wrong.any()):
            return
        index, part, limit = index[wrong], part[wrong], limit[wrong]
        if attempt == TRIES:
            falling = part.sort(dim=1, descending=True).values
            kept = falling.cumsum(1) - falling < limit
            drop_below(part, falling.gather(1, kept.sum(1, keepdim=True).sub_(1)))
        tokens[index] = _pick(part, uniform[attempt][index])


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
