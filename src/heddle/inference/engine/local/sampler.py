"""One token for each sequence of a step: logprobs, adjustments and the draw, each on the rows that need it."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.inference.engine.base import EngineFailed, RequestRefused
from heddle.inference.engine.local import adjust
from heddle.inference.engine.local.draw import DrawParameters, draw, is_greedy, uniforms
from heddle.inference.engine.local.logprobs import describe
from heddle.inference.engine.local.sequence import RawLogprobs, Sequence
from heddle.inference.engine.local.tops import best


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
            self._adjust(logits, sequences, plan, choices)
        highest = self._choose(logits, sequences, plan, choices)
        if not all(map(math.isfinite, highest)):
            self._explain(highest, sequences, plan, choices)
        if plan.logprobs:
            if plan.logprobs_temperature is not None:
                raw = raw / plan.logprobs_temperature
            chosen = [choices.tokens[row] for row in plan.logprobs]
            choices.logprobs = dict(zip(plan.logprobs, describe(raw, chosen, plan.best), strict=True))
        return choices

    def _adjust(self, logits: Tensor, sequences: list[Sequence], plan: RowPlan, choices: Choices) -> None:
        """Allowed ids, bad words, minimum length, bias, penalties, grammar: in this order."""
        for row, allowed in plan.allowed:
            adjust.keep_allowed(logits, row, allowed)
        adjust.forbid(logits, [(row, adjust.forbidden_now(sequences[row], self._eos)) for row in plan.words])
        if len(plan.bias_places):
            logits.view(-1).index_add_(0, plan.bias_places, plan.bias_values)
        if plan.counted:
            adjust.penalise(logits, plan.counted)
        if plan.constrained:
            self._constrain(logits, sequences, plan, choices)

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
            adjust.mask_rows(logits, rows, bits[: len(rows)])

    def _choose(self, logits: Tensor, sequences: list[Sequence], plan: RowPlan, choices: Choices) -> list[float]:
        """Fill in the tokens; returns the highest logit of each row."""
        if not plan.random:
            highest, tokens = best(logits)
        else:
            positions = [sequences[row].output_count for row in plan.random]
            uniform = torch.from_numpy(uniforms(plan.seeds, positions, plan.parameters.columns)).to(logits.device)
            if not plan.greedy:
                tokens, highest = draw(logits, plan.parameters, uniform)
            else:
                tokens = torch.empty(len(sequences), dtype=torch.int64, device=logits.device)
                highest = torch.empty(len(sequences), device=logits.device)
                greedy, random = plan.greedy_index, plan.random_index
                highest[greedy], tokens[greedy] = best(logits[greedy])
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
            elif value == adjust.NEVER and plan.adjusted:
                choices.failures[row] = RequestRefused("the constraints of this request leave no token to generate")
            else:
                choices.failures[row] = EngineFailed("the model's logits are not numbers")
        for row in (*choices.failures, *choices.ended):
            choices.tokens[row] = min(max(choices.tokens[row], 0), self._vocab_size - 1)
