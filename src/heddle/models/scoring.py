"""Log-probabilities of tokens, computed by the engine's forward pass whether it samples them or is asked about them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor

from heddle.models.interfaces import Batch, CausalModel, Lane, SavedBlock, Span

STEP_TOKENS = 1024
LOGIT_BYTES = 64 * 2**20
"""Most memory for the logits of one step."""


def find_scale(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit and the logarithm of the sum of all over it, both [rows, 1]: what turns logits into
    log-probabilities, `(logit - highest) - total`."""
    highest = logits.amax(1, keepdim=True)
    # In float64: what another place in the batch changes of a logarithm is lost when it is rounded to float32.
    return highest, logits.softmax(1).amax(1, keepdim=True).double().log_().neg_().float()


def pick_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token, int64 [rows], in each row of logits, float32 [rows, vocabulary]."""
    highest, total = find_scale(logits)
    return ((logits.gather(1, tokens[:, None]) - highest) - total).squeeze(1)


@dataclass(slots=True)
class KnownSequence:
    """Tokens of which some are scored."""

    tokens: Tensor
    """int64."""
    wanted: list[int]
    """Ascending places of the scored tokens, all above 0."""
    shared: int = 0
    """Leading tokens that it has in common with the sequence before."""


@dataclass(slots=True)
class _Progress:
    sequence: KnownSequence
    lane: Lane
    done: int
    """Tokens with keys and values."""
    keeps: int
    """Blocks that the next sequences can use."""
    scored: int = 0
    results: list[Tensor] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Tokens to compute: the last one that is wanted predicts nothing."""
        return self.sequence.wanted[-1] - self.done

    def find_wanted(self, count: int) -> list[int]:
        """Places of the scored tokens that the next `count` tokens predict."""
        places = self.sequence.wanted
        return places[self.scored : bisect_right(places, self.done + count)]


class TokenScorer:
    """Scores sequences in order; what a sequence shares with the one before is computed once."""

    def __init__(self, model: CausalModel, adapter: str | None) -> None:
        self._model = model
        self._adapter = adapter
        self._cache = model.new_cache()
        self._most_rows = max(self._cache.block_tokens, LOGIT_BYTES // (4 * model.vocab_size))
        self._blocks: list[SavedBlock] = []
        self._begun: list[_Progress] = []
        self._results: list[Tensor] = []

    @torch.inference_mode()
    def score(self, sequences: Sequence[KnownSequence]) -> Tensor:
        """Log-probabilities of all wanted tokens, in order: float32 on the CPU."""
        for sequence, following in zip_longest(sequences, sequences[1:]):
            shared_next = 0 if following is None else following.shared
            self._begin(sequence, shared_next)
            is_needed_next = shared_next and not sequence.shared
            if is_needed_next or sum(begun.left for begun in self._begun) >= STEP_TOKENS:
                self._finish()
        self._finish()
        return torch.cat([torch.empty(0), *self._results])

    def _begin(self, sequence: KnownSequence, shared_next: int) -> None:
        """Open a lane and fill it with what is known already."""
        size = self._cache.block_tokens
        if not sequence.shared:
            self._blocks = []
        known = self._blocks[: min(sequence.shared, sequence.wanted[0] - 1) // size]
        lane = self._cache.open_lane(len(sequence.tokens))
        self._cache.restore_blocks(lane, known)
        keeps = shared_next // size if self._cache.saves_blocks and not sequence.shared else 0
        self._begun.append(_Progress(sequence, lane, len(known) * size, keeps))

    def _finish(self) -> None:
        """Compute all sequences that have begun."""
        while spans := self._next_spans():
            self._step(spans)
        for begun in self._begun:
            self._results += begun.results
            if begun.keeps:
                self._blocks = [self._cache.save_block(begun.lane, index) for index in range(begun.keeps)]
            self._cache.close_lane(begun.lane)
        self._begun = []

    def _next_spans(self) -> list[tuple[_Progress, int]]:
        """What the next step computes, and how many tokens of each."""
        spans = []
        room, rows = STEP_TOKENS, self._most_rows
        for begun in self._begun:
            count = min(begun.left, room)
            wanted = begun.find_wanted(count)
            if len(wanted) > rows:
                count = wanted[rows] - 1 - begun.done
                wanted = wanted[:rows]
            if count > 0:
                spans.append((begun, count))
                room -= count
                rows -= len(wanted)
        return spans

    def _step(self, spans: list[tuple[_Progress, int]]) -> None:
        """One forward pass over some tokens of some sequences."""
        batch = Batch(torch.empty(0), [], [], rows := [])
        tokens, targets = [], []
        first = 0
        for begun, count in spans:
            wanted = begun.find_wanted(count)
            rows += [first + place - 1 - begun.done for place in wanted]
            targets.append(begun.sequence.tokens[wanted])
            tokens.append(begun.sequence.tokens[begun.done : begun.done + count])
            batch.prefills.append(Span(begun.lane, begun.done, count, self._adapter))
            first += count
        batch.token_ids = torch.cat(tokens)
        logits = self._model.forward(batch, self._cache)
        found = pick_logprobs(logits, torch.cat(targets).to(logits.device)).cpu()
        for (begun, count), result in zip(spans, torch.split(found, [len(part) for part in targets]), strict=True):
            begun.results.append(result)
            begun.done += count
            begun.scored += len(result)
