"""One token for each sequence of a step: logprobs, adjustments and the draw, each on the rows that need it."""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.inference.engine.base import RequestRefused, Sampling
from heddle.inference.engine.local.draw import (
    LOWEST_TEMPERATURE,
    DrawParameters,
    count_above,
    draw,
    find_best,
    find_top,
    is_greedy,
    uniforms,
)
from heddle.inference.engine.local.sequence import RawLogprobs, Sequence, TokenCounts
from heddle.models.scoring import find_scale

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not know."""


def describe_logprobs(logits: Tensor, chosen: list[int], best: list[int]) -> list[RawLogprobs]:
    """Logprobs of one chosen token per row of untouched logits [rows, vocabulary], and of the `best[row]` best ones."""
    highest, total = find_scale(logits)
    picked = logits.gather(1, torch.tensor(chosen, device=logits.device)[:, None])
    ranks = count_above(logits, picked)
    values = ((picked - highest) - total).squeeze(1).tolist()
    tops = _top(logits, highest, total, best)
    return [
        (token, max(value, LOWEST), rank + 1, several)
        for token, value, rank, several in zip(chosen, values, ranks, tops, strict=True)
    ]


def add_choices(known: list[RawLogprobs], logits: Tensor, sampling: Sampling, place: int) -> list[RawLogprobs]:
    """The same with the logprobs of the tokens of `prompt_choices` behind the best ones; row 0 is at `place`."""
    choices, result = sampling.prompt_choices, []
    assert choices is not None
    highest, total = find_scale(logits)
    for row, (token, value, rank, best) in enumerate(known):
        ids = list(choices.ids[place + row]) if choices.ids else []
        if choices.draws and is_greedy(sampling):
            ids += [int(logits[row].argmax())] * choices.draws
        elif choices.draws:
            chances = (logits[row].double() / max(sampling.temperature, LOWEST_TEMPERATURE)).softmax(0).cumsum(0)
            uniform = np.random.default_rng([choices.seed, place + row]).random(choices.draws)
            found = torch.searchsorted(chances, torch.from_numpy(uniform).to(chances.device) * chances[-1], right=True)
            ids += found.clamp(max=len(chances) - 1).tolist()
        values = ((logits[row, ids] - highest[row]) - total[row]).clamp(min=LOWEST).tolist()
        result.append((token, value, rank, (*best, *zip(ids, values, strict=True))))
    return result


def _top(logits: Tensor, highest: Tensor, total: Tensor, best: list[int]) -> list[tuple[tuple[int, float], ...]]:
    """The best tokens of each row, ties by lower id; one more is looked at, to see a tie across the border."""
    most = min(max(best), logits.shape[1])
    if not most:
        return [()] * len(best)
    seen = min(most + 1, logits.shape[1])
    raw, ids = (tensor.cpu() for tensor in find_top(logits, seen))
    values, ids = _sort_ties(raw, ids)
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


def _sort_ties(raw: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
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


NEVER = float("-inf")


def forbidden_tokens(sequence: Sequence, eos: Rows[int]) -> list[int]:
    """Last tokens of bad words whose start was just generated, and ends before the minimum length."""
    sampling = sequence.request.sampling
    output = sequence.output_count
    tokens = []
    for word in sampling.bad_words:
        start = len(word) - 1
        if start <= output and (not start or tuple(sequence.tokens[-start:]) == word[:-1]):
            tokens.append(word[-1])
    if output < sampling.min_tokens:
        tokens += [*eos, *sampling.stop_token_ids]
    return tokens


def forbid(logits: Tensor, tokens: list[tuple[int, list[int]]]) -> None:
    """Forbid tokens of rows, given as (row, tokens)."""
    width = logits.shape[1]
    flat = [row * width + token for row, several in tokens for token in several]
    if flat:
        logits.view(-1)[torch.tensor(flat, device=logits.device)] = NEVER


def penalise(logits: Tensor, rows: Rows[tuple[int, TokenCounts]]) -> None:
    """Repetition penalty on tokens of prompt and output, then frequency and presence penalty on those of the output."""
    sizes = [len(counts.ids) for _, counts in rows]
    if not any(sizes):
        return
    width = logits.shape[1]
    places = np.concatenate([counts.ids + row * width for row, counts in rows])
    times = np.concatenate([counts.counts for _, counts in rows])
    factors = np.repeat([counts.repetition for _, counts in rows], sizes).astype(np.float32)
    lowered = np.repeat([counts.frequency for _, counts in rows], sizes) * times
    lowered += np.repeat([counts.presence for _, counts in rows], sizes) * (times > 0)
    flat, index = logits.view(-1), torch.from_numpy(places).to(logits.device)
    factor = torch.from_numpy(factors).to(logits.device)
    values = flat[index]
    values = torch.where(values > 0, values / factor, values * factor)
    flat[index] = values - torch.from_numpy(lowered.astype(np.float32)).to(logits.device)


@dataclass(slots=True)
class Choices:
    """Tokens by row; rows in `failures` have none that counts, rows in `ended` end without one."""

    tokens: list[int]
    logprobs: dict[int, RawLogprobs] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


class RowPlan:
    """Which rows of a batch need what; stays valid while the same sequences are in the same rows."""

    def __init__(self, sequences: list[Sequence], vocab_size: int, device: torch.device) -> None:
        self.sequences = sequences
        samplings = [sequence.request.sampling for sequence in sequences]
        rows = range(len(sequences))
        self.logprobs = [row for row in rows if samplings[row].logprobs is not None]
        self.best = [samplings[row].logprobs or 0 for row in self.logprobs]
        divisors = [samplings[row].logprobs_temperature for row in self.logprobs]
        tempered = any(divisor != 1.0 for divisor in divisors)
        self.logprobs_temperature = torch.tensor(divisors, device=device)[:, None] if tempered else None
        self.allowed = [
            (row, torch.tensor(sampling.allowed_token_ids, device=device))
            for row, sampling in enumerate(samplings)
            if sampling.allowed_token_ids is not None
        ]
        self.words = [row for row in rows if samplings[row].bad_words or samplings[row].min_tokens]
        biases = [
            (row * vocab_size + token, value)
            for row, sampling in enumerate(samplings)
            for token, value in sampling.logit_bias.items()
        ]
        self.bias_places = torch.tensor([place for place, _ in biases], dtype=torch.int64, device=device)
        self.bias_values = torch.tensor([value for _, value in biases], dtype=torch.float32, device=device)
        self.counted = [(row, counts) for row in rows if (counts := sequences[row].counts) is not None]
        self.constrained = [row for row in rows if sequences[row].matcher is not None]
        self.adjusted = bool(self.allowed or self.words or biases or self.counted or self.constrained)
        self.greedy = [row for row in rows if is_greedy(samplings[row])]
        self.random = [row for row in rows if not is_greedy(samplings[row])]
        self.seeds: NDArray[np.uint64] = np.array([sequences[row].seed for row in self.random], dtype=np.uint64)
        self.parameters = DrawParameters.of([samplings[row] for row in self.random], vocab_size, device)
        self.greedy_index = torch.tensor(self.greedy, dtype=torch.int64, device=device)
        self.random_index = torch.tensor(self.random, dtype=torch.int64, device=device)


class Sampler:
    """Draws tokens; keeps only what it worked out about the last batch."""

    def __init__(self, vocab_size: int, eos: tuple[int, ...], words: int) -> None:
        self._vocab_size = vocab_size
        self._eos = eos
        self._words = words
        self._plan: RowPlan | None = None

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Choices:
        """A token for each row of logits, float32 [sequences, vocabulary], which are changed in place."""
        plan = self._plan
        if plan is None or plan.sequences != sequences:
            plan = self._plan = RowPlan(sequences, self._vocab_size, logits.device)
        raw = logits
        if plan.logprobs and (plan.adjusted or len(plan.logprobs) < len(sequences)):
            raw = logits[plan.logprobs]
        choices = Choices([])
        if plan.adjusted:
            for row, allowed in plan.allowed:
                kept = logits[row, allowed]
                logits[row].fill_(NEVER)
                logits[row, allowed] = kept
            forbid(logits, [(row, forbidden_tokens(sequences[row], self._eos)) for row in plan.words])
            if len(plan.bias_places):
                logits.view(-1).index_add_(0, plan.bias_places, plan.bias_values)
            if plan.counted:
                penalise(logits, plan.counted)
            if plan.constrained:
                self._constrain(logits, sequences, plan, choices)
        highest = self._choose(logits, sequences, plan, choices)
        if not all(map(math.isfinite, highest)):
            self._explain(highest, sequences, plan, choices)
        if plan.logprobs:
            if plan.logprobs_temperature is not None:
                raw = raw / plan.logprobs_temperature
            chosen = [choices.tokens[row] for row in plan.logprobs]
            choices.logprobs = dict(zip(plan.logprobs, describe_logprobs(raw, chosen, plan.best), strict=True))
        return choices

    def _constrain(self, logits: Tensor, sequences: list[Sequence], plan: RowPlan, choices: Choices) -> None:
        """Grammar masks; a grammar that breaks fails its own request only."""
        rows: list[int] = []
        bits: NDArray[np.int32] = np.zeros((len(plan.constrained), self._words), dtype=np.int32)
        for row in plan.constrained:
            matcher = sequences[row].matcher
            if matcher is None or not matcher.active:
                continue
            try:
                matcher.fill(bits[len(rows)])
            except Exception as error:
                choices.failures[row] = error
            else:
                rows.append(row)
        if rows:
            width = logits.shape[1]
            allowed = np.unpackbits(bits[: len(rows)].view(np.uint8), axis=1, bitorder="little", count=width)
            forbidden = torch.from_numpy(allowed == 0).to(logits.device)
            for row, mask in zip(rows, forbidden, strict=True):
                logits[row].masked_fill_(mask, NEVER)

    def _choose(self, logits: Tensor, sequences: list[Sequence], plan: RowPlan, choices: Choices) -> list[float]:
        """Fill in the tokens; returns the highest logit of each row."""
        if not plan.random:
            highest, tokens = find_best(logits)
        else:
            positions = [sequences[row].output_count for row in plan.random]
            uniform = torch.from_numpy(uniforms(plan.seeds, positions, plan.parameters.columns)).to(logits.device)
            if not plan.greedy:
                tokens, highest = draw(logits, plan.parameters, uniform)
            else:
                tokens = torch.empty(len(sequences), dtype=torch.int64, device=logits.device)
                highest = torch.empty(len(sequences), device=logits.device)
                greedy, random = plan.greedy_index, plan.random_index
                highest[greedy], tokens[greedy] = find_best(logits[greedy])
                tokens[random], highest[random] = draw(logits[random], plan.parameters, uniform)
        choices.tokens = tokens.tolist()
        return highest.tolist()

    def _explain(self, highest: list[float], sequences: list[Sequence], plan: RowPlan, choices: Choices) -> None:
        """Why rows without a finite best token have none."""
        for row, value in enumerate(highest):
            if math.isfinite(value) or row in choices.failures:
                continue
            matcher = sequences[row].matcher
            if matcher is not None and matcher.complete:
                choices.ended.add(row)
            elif value == NEVER and plan.adjusted:
                choices.failures[row] = RequestRefused("the constraints of this request leave no token to generate")
            else:
                # Sent again it would meet the same weights.
                choices.failures[row] = RequestRefused("the model's logits are not numbers")
        for row in (*choices.failures, *choices.ended):
            choices.tokens[row] = min(choices.tokens[row], self._vocab_size - 1)
